"""The subcommands that help: reports, audits, benchmarks, data sets, certificates, checks."""

import argparse
import sys
from pathlib import Path

from pausefl.cli.option_values import experiment_of, refuse_beside
from pausefl.terminal_table import plain_console
from pausefl_proto.errors import ConfigError


def report(options: argparse.Namespace) -> None:
    """Draw the reports of run directories again."""
    from pausefl.campaigns.redrawing import report_folder

    for folder in options.run_dirs:
        for path in report_folder(Path(folder), csv=options.csv):
            print(path)


def audit(options: argparse.Namespace) -> None:
    """Test the mechanism of a client by sending many uploads in two worlds."""
    from pausefl.audit import run_audit

    if options.uploads < 100:
        raise ConfigError(f"--uploads {options.uploads}: must be at least 100")
    if Path(options.config).is_dir():
        refuse_beside(options, "RUN_DIR", "--uploads")
    console = plain_console()
    with console.status(f"sending {options.uploads:,} uploads in each of two worlds, attack by attack"):
        for part in run_audit(options.config, options.overrides, options.uploads):
            console.print(part)


def bench(options: argparse.Namespace) -> None:
    """Measure this machine."""
    from pausefl.bench import compare, run_all, run_benchmark

    sizes = {"clients": options.clients, "payload_bytes": options.payload_bytes}
    given = {name: size for name, size in sizes.items() if size is not None}
    if options.files and options.name != "diff":
        raise ConfigError(f"bench {options.name}: takes no files; only diff does")
    if given and options.name in ("all", "diff"):
        raise ConfigError(f"bench {options.name}: takes neither --clients nor --payload-bytes")
    if options.name == "diff":
        compare(options.files, as_json=options.json)
    elif options.name == "all":
        run_all(as_json=options.json)
    else:
        run_benchmark(options.name, given, as_json=options.json)


def data(options: argparse.Namespace) -> None:
    """Fetch data sets."""
    from pausefl_client.data.datasets import load_dataset, split_note

    data = load_dataset(options.name, seed=0)
    sizes = f"{len(data.train)} training, {len(data.validation)} validation, {len(data.test)} test examples"
    print(f"{data.name}: {sizes}, {data.classes} classes, inputs {'x'.join(map(str, data.input_shape))}")
    if note := split_note(data.name, len(data.test)):
        print(f"from {note}")


def certs(options: argparse.Namespace) -> None:
    """Make an authority, certificates and tokens."""
    from pausefl.certificates import make_certificates
    from pausefl.config.tables import ClientGroup

    if options.clients.isdecimal():
        count = int(options.clients)
        client_ids = ClientGroup(count=count).client_ids("client") if count else []
    else:
        client_ids = [client_id.strip() for client_id in options.clients.split(",") if client_id.strip()]
    for client_id in client_ids:
        if not client_id.isascii() or not client_id.isprintable() or "/" in client_id or client_id[0] == "-":
            raise ConfigError(f"--clients {client_id}: is no name for a file; letters, digits, - and _ make one")
    for line in make_certificates(Path(options.folder), options.hosts, client_ids):
        print(line)


def validate(options: argparse.Namespace) -> None:
    """Print an experiment with all its settings, and try out its own code."""
    if options.list:
        from pausefl.registries import listed

        print("\n".join(listed()))
        return
    if options.config is None:
        raise ConfigError("needs CONFIG or --list")
    from pausefl.config.groups import check_rounds
    from pausefl.evaluator.preflight import try_out
    from pausefl.observers import load_observers
    from pausefl.reference.listing import listing
    from pausefl.runtime.run_dir import check_goes_on

    experiment = experiment_of(options)
    if options.run_dir is not None:
        check_goes_on(experiment, Path(options.run_dir))
    check_rounds(experiment.groups, experiment.experiment.rounds, experiment.experiment.seed)
    load_observers(experiment.experiment.observers)
    print(listing(experiment), end="", flush=True)
    try_out(experiment, lambda text: print(f"pausefl: {text}", file=sys.stderr))


def completion(options: argparse.Namespace) -> None:
    """Print a shell's completion script."""
    import shtab

    print(shtab.complete(options.whole, options.shell))
