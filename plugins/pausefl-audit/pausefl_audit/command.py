"""The command `pausefl audit`: it audits, after a run with canaries if one is asked for, and prints tables."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from pausefl.cli.arguments import CONFIG_HELP, add_set, folder
from pausefl.cli.option_values import refuse_beside
from pausefl.terminal_table import plain_console
from pausefl_audit.audit import play_with_canaries, run_audit
from pausefl_proto.errors import ConfigError


def audit_arguments(sub: ArgumentParser) -> None:
    """Add the arguments of `pausefl audit`."""
    sub.add_argument("config", metavar="RUN_OR_CONFIG", help=f"a run directory, {CONFIG_HELP}")
    sub.add_argument("--uploads", type=int, default=20_000, metavar="N", help="per attack and world (default 20000)")
    played = "first play it there, as a run that is dealt canaries whose releases are audited too, or go on with it"
    sub.add_argument("--run-dir", type=folder, metavar="DIR", help=played)
    add_set(sub)


def audit(options: Namespace) -> None:
    """Audit as the options ask, and print what was found. PauseflError if the mechanism is broken."""
    if options.uploads < 100:
        raise ConfigError(f"--uploads {options.uploads}: must be at least 100")
    if Path(options.config).is_dir():
        refuse_beside(options, "RUN_DIR", "--uploads")
    source, console = options.config, plain_console()
    if options.run_dir is not None:
        source = play_with_canaries(source, options.overrides, Path(options.run_dir))
    with console.status(f"sending {options.uploads:,} uploads in each of two worlds, attack by attack"):
        for part in run_audit(source, options.overrides, options.uploads).in_tables():
            console.print(part)
