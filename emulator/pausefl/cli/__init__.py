"""The `pausefl` command. Each subcommand imports what it needs when it runs: a client needs no Prometheus, and a server
without evaluation needs no torch."""

import argparse
import os
import signal
import sys
from collections.abc import Sequence

from pausefl.cli import experiments, offline, tools
from pausefl.cli import processes as ends
from pausefl.cli.allocation import allocation
from pausefl.cli.arguments import make_parser, parse
from pausefl.cli.new import new
from pausefl.outcomes import exit_with_status, while_output_is_read
from pausefl.runtime.processes.environment import grpc_defaults
from pausefl.runtime.processes.logs import ask_for
from pausefl_process.ending import signals_to, sigterm_as_interrupt
from pausefl_process.files import check_places


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command. `exit_status` and docs/events.md define the exit status."""
    os.environ.update(grpc_defaults())
    # Children inherit the ignored SIGUSR1, so it ends none of them. Processes with an event loop handle it.
    with sigterm_as_interrupt(), signals_to(signal.SIG_IGN, signal.SIGUSR1), while_output_is_read():
        options = parse(parser(), arguments)
        exit_with_status(check_places, *(sys.argv[1:] if arguments is None else arguments))
        if "log_json" in options:
            ask_for(json=options.log_json, quiet=options.quiet, verbose=options.verbose)
        exit_with_status(options.command, options)


def parser() -> argparse.ArgumentParser:
    """The parser of all subcommands. In its result, `command` is the function that runs the subcommand."""
    return make_parser(
        {
            "new": new,
            "run": experiments.run,
            "compare": experiments.compare,
            "sweep": experiments.sweep,
            "reproduce": experiments.reproduce,
            "simulate": offline.simulate,
            "tune": offline.tune,
            "replay": offline.replay,
            "fit-latency": offline.fit_latency,
            "server": ends.server,
            "client": ends.client,
            "allocation": allocation,
            "evaluator": ends.evaluator,
            "report": tools.report,
            "audit": tools.audit,
            "bench": tools.bench,
            "data": tools.data,
            "certs": tools.certs,
            "validate": tools.validate,
            "completion": tools.completion,
        }
    )
