"""The subcommands of which each is one end of a run: the server, clients, the evaluator."""

import argparse
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from pausefl.cli.option_values import at_least_1, back_to_of, config_name, experiment_of
from pausefl.config.experiment import Experiment
from pausefl.config.loading import load_experiment
from pausefl.config.toml_source import own_document
from pausefl.config.validation import check_address
from pausefl.exit_status import check_outcome
from pausefl_process.events import MetricsServed
from pausefl_process.logs import set_up_log
from pausefl_process.outbox import posted_output
from pausefl_proto.errors import ConfigError, PauseflError, first_error


@posted_output()
def server(options: argparse.Namespace) -> None:
    """Serve an experiment to clients that come."""
    from pausefl.observers import Observed, load_observers
    from pausefl.runtime.provenance import is_served, note_start, note_unserved
    from pausefl.runtime.run_dir import made_run_dir, new_run_dir, resume_command
    from pausefl.runtime.server.plan import server_plan
    from pausefl.runtime.server.process import serve_run
    from pausefl.runtime.terminal import printed_events
    from pausefl_process.resources import allow_many_files

    set_up_log()
    allow_many_files()
    experiment = experiment_of(options)
    _refuse_whole_runs(experiment, "server")
    if options.resume and options.run_dir is None:
        raise ConfigError("--resume: needs --run-dir")
    run_dir = Path(options.run_dir) if options.resume else new_run_dir(config_name(options), options.run_dir)
    observers, settings = load_observers(experiment.experiment.observers), experiment.model_dump(mode="json")
    with (
        made_run_dir(experiment, run_dir, resume=options.resume),
        printed_events(run_dir.name) as report,
        Observed(report, observers, run_dir, settings) as observed,
    ):
        was_served = is_served(run_dir)
        note_start(run_dir, served=True)
        try:
            result = serve_run(server_plan(experiment, run_dir.name), run_dir, observed.show, back_to_of(options))
        except PauseflError:
            if not was_served:
                note_unserved(run_dir)
            raise
    check_outcome(result.outcome, result.stopped_because, resume_command(run_dir))


@posted_output()
def evaluator(options: argparse.Namespace) -> None:
    """Evaluate the models of servers that ask."""
    from pausefl.evaluator.plan import evaluator_endpoint, evaluator_plan
    from pausefl.evaluator.process import serve_evaluator
    from pausefl.runtime.terminal import printed_events

    set_up_log()
    experiment = load_experiment(options.config, options.overrides)
    _refuse_virtual(experiment, "evaluator")
    with printed_events(f"evaluator of {config_name(options)}") as report:
        serve_evaluator(evaluator_plan(experiment), evaluator_endpoint(experiment), report)


@posted_output()
def client(options: argparse.Namespace) -> None:
    """Be a client, or the clients of a slot."""
    from pausefl.runtime.client.plan import client_plan
    from pausefl.runtime.client.process import run_clients_over_grpc
    from pausefl.runtime.terminal import printed_events
    from pausefl_process.resources import allow_many_files, keep_freed_memory
    from pausefl_process.waits import run_telling_waits

    check_address("--server", options.server)
    set_up_log()
    experiment, ledgers = _experiment_of_client(options), Path(options.ledger_dir)
    _refuse_whole_runs(experiment, "client")
    allow_many_files()
    keep_freed_memory()
    with (
        _clients_to_be(experiment, options) as client_ids,
        printed_events(f"clients of {config_name(options) if options.config else options.server}") as report,
        first_error(),
    ):

        def tell(address: str) -> None:
            report(MetricsServed(f"http://{address}/metrics"))

        run_telling_waits(
            run_clients_over_grpc(client_plan(experiment), client_ids, options.server, ledgers, on_metrics=tell)
        )


def _experiment_of_client(options: argparse.Namespace) -> Experiment:
    """From the file that was given, or else from the server, but for what is this client's own."""
    if options.config is not None:
        if options.own is not None:
            raise ConfigError("--own: goes without CONFIG, which is all the client's own")
        return load_experiment(options.config, options.overrides)
    if options.client_id is None:
        raise ConfigError("--slot: needs CONFIG, which names the clients of a slot")
    from pausefl.runtime.client.offer import fetch_experiment

    own = own_document(options.own, options.overrides)
    return fetch_experiment(options.server, options.client_id, own)


def _refuse_whole_runs(experiment: Experiment, command: str) -> None:
    """ConfigError for what only the process that plays a whole run can do."""
    _refuse_virtual(experiment, command)
    if experiment.latency.injection == "netem":
        raise ConfigError(
            f'latency.injection = "netem": goes with pausefl run, which makes the namespaces; pausefl {command} takes'
            ' "link"'
        )


def _refuse_virtual(experiment: Experiment, command: str) -> None:
    """ConfigError for a command that is one part of a run on a real network."""
    if experiment.experiment.clock == "virtual":
        raise ConfigError(
            f'experiment.clock = "virtual": goes with pausefl run, which plays all parts in one process; pausefl'
            f' {command} takes "real"'
        )


def _clients_to_be(experiment: Experiment, options: argparse.Namespace) -> AbstractContextManager[list[str]]:
    """The ids of the clients this process is, held against others where they go by slot."""
    from pausefl.runtime.client.slots import claimed_clients

    at_least_1("--count", options.count)
    if options.slot is None:
        if options.count > 1:
            raise ConfigError("--count: goes with --slot")
        return nullcontext([options.client_id])
    if options.slot != "auto" and not options.slot.isdecimal():
        raise ConfigError(f"--slot {options.slot}: must be auto or a number from 0")
    slot = None if options.slot == "auto" else int(options.slot)
    return claimed_clients(experiment.client_ids, slot, options.count, Path(options.ledger_dir))
