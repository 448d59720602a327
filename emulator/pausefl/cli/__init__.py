"""The `pausefl` command. Each subcommand imports what it needs when it runs: a client needs no Prometheus, and a server
without evaluation needs no torch."""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module

from pausefl.cli.arguments import make_parser, parse
from pausefl.extras import require
from pausefl.outcomes import exit_with_status, while_output_is_read
from pausefl.runtime.forks import OF_A_VIRTUAL_RUN
from pausefl.runtime.processes.environment import grpc_defaults
from pausefl.runtime.processes.lifetime import begin_to_import
from pausefl.runtime.processes.logs import ask_for
from pausefl_process.ending import signals_to, sigterm_as_interrupt
from pausefl_process.files import check_places

_COMMANDS = {
    "experiments": ("run", "compare", "sweep"),
    "new": ("new",),
    "processes": ("server", "client", "evaluator"),
    "simulation": ("simulate",),
    "tools": ("report", "bench", "data", "certs", "validate", "completion"),
}
"""The subcommands, by the module of this package that has their functions."""
_OF_PLUGINS = {
    "allocation": ("pausefl_allocation", "allocation"),
    "audit": ("pausefl_audit", "audit"),
    "fit-latency": ("pausefl_offline", "latency"),
    "replay": ("pausefl_offline", "replay"),
    "reproduce": ("pausefl_reproduce", "reproduce"),
    "tune": ("pausefl_tune", "tune", "report"),
}
"""The subcommands of plug-ins: the package, whose module `command` has the function, and the extras that it needs."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command. `exit_status` and docs/events.md define the exit status."""
    os.environ.update(grpc_defaults())
    # Children inherit the ignored SIGUSR1, so it ends none of them. Processes with an event loop handle it.
    with sigterm_as_interrupt(), signals_to(signal.SIG_IGN, signal.SIGUSR1), while_output_is_read():
        options = parse(parser(), arguments)
        exit_with_status(check_places, *(sys.argv[1:] if arguments is None else arguments))
        if "log_json" in options:
            ask_for(json=options.log_json, quiet=options.quiet, verbose=options.verbose)
        if arguments is None and sys.argv[1] == "run" and "--virtual" in options.typed:
            begin_to_import(OF_A_VIRTUAL_RUN)  # while this process reads the experiment
        exit_with_status(options.command, options)


def parser() -> argparse.ArgumentParser:
    """The parser of all subcommands. In its result, `command` is the function that runs the subcommand."""
    own = {name: partial(_run, f"pausefl.cli.{of}", name, ()) for of, names in _COMMANDS.items() for name in names}
    plugged = {name: partial(_run, f"{of}.command", name, extras) for name, (of, *extras) in _OF_PLUGINS.items()}
    return make_parser(own | plugged)


def _run(module: str, command: str, extras: Sequence[str], options: argparse.Namespace) -> None:
    """Run a subcommand. Its module is imported only now: experiments take half a second to import."""
    require(*extras)
    getattr(import_module(module), command.replace("-", "_"))(options)
