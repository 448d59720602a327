"""The `pausefl` command. Each subcommand imports what it needs when it runs: a client needs no Prometheus, and a server
without evaluation needs no torch."""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from typing import Any

from pausefl.cli.arguments import make_parser, parse
from pausefl.extras import is_installed, require
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
    "reproduce": "a published figure or table by name: its runs, its picture, published values in it",
    "tune": "search for parameters by latency, leakage and accuracy; writes the Pareto front",
    "replay": "fold a run's log through its policy, which must choose the same, or through another",
    "fit-latency": "fit a latency law to each client of a log or CSV file; prints an experiment as TOML",
    "audit": "attack the privacy mechanism of an experiment; check the ledgers of a run",
    "allocation": "one task of a fleet over several machines: the first serves, others are clients",
}
"""The help of the subcommands that plug-ins have."""
_PACKAGES = dict.fromkeys(("fit-latency", "replay"), "pausefl_offline")
"""The package of a subcommand, if not the one of its name. Its module `command` has a function of that name, and
another one that adds its arguments, such as `tune_arguments`."""
_EXTRAS = {"fit-latency": ("latency",), "tune": ("tune", "report")}
"""The extras that a subcommand of a plug-in needs, if not the one of its name."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command. `exit_status` and docs/events.md define the exit status."""
    os.environ.update(grpc_defaults())
    # Children inherit the ignored SIGUSR1, so it ends none of them. Processes with an event loop handle it.
    with sigterm_as_interrupt(), signals_to(signal.SIG_IGN, signal.SIGUSR1), while_output_is_read():
        exit_with_status(_main, sys.argv[1:] if arguments is None else arguments, arguments is None)


def _main(arguments: Sequence[str], is_process: bool) -> None:
    """Run one command. `is_process`: it has this process for itself."""
    options = parse(parser(*_OF_PLUGINS.keys() & {*arguments[:1]}), arguments)
    check_places(*arguments)
    if "log_json" in options:
        ask_for(json=options.log_json, quiet=options.quiet, verbose=options.verbose)
    if is_process and arguments[0] == "run" and "--virtual" in options.typed:
        begin_to_import(OF_A_VIRTUAL_RUN)  # while this process reads the experiment
    options.command(options)


def whole_parser() -> argparse.ArgumentParser:
    """The parser with the arguments of all subcommands that are installed."""
    return parser(*(name for name in _OF_PLUGINS if all(map(is_installed, _extras(name)))))


def parser(*of_plugins: str) -> argparse.ArgumentParser:
    """The parser of all subcommands. It lacks the arguments of plug-ins' subcommands other than `of_plugins`.

    In its result, `command` is the function that runs the subcommand. ConfigError if packages are not installed.
    """
    modules = {name: f"pausefl.cli.{of}" for of, names in _COMMANDS.items() for name in names}
    modules |= {name: f"{_PACKAGES.get(name, f'pausefl_{name}')}.command" for name in _OF_PLUGINS}
    require(*(extra for name in of_plugins for extra in _extras(name)))
    arguments = {name: partial(_call, modules[name], f"{name}_arguments") for name in of_plugins}
    plugged = {name: (said, arguments.get(name, lambda _: None)) for name, said in _OF_PLUGINS.items()}
    return make_parser({name: partial(_call, of, name) for name, of in modules.items()}, plugged)


def _extras(command: str) -> Sequence[str]:
    return _EXTRAS.get(command, (command,))


def _call(module: str, function: str, given: Any) -> None:
    """Call a function of a module that is imported only now: experiments take half a second to import."""
    getattr(import_module(module), function.replace("-", "_"))(given)
