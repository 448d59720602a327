"""The subcommands that run one part of an experiment: the server, clients, or the evaluator."""

import argparse
import math
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from pathlib import Path

from pausefl.cli.option_values import at_least_1, back_to_of, config_name, experiment_of
from pausefl.experiment.experiment import Experiment, load_experiment
from pausefl.experiment.toml_source import own_document
from pausefl.experiment.validation import check_address
from pausefl.outcomes import check_outcome
from pausefl.runtime.processes.logs import set_up_log
from pausefl.runtime.processes.outbox import posted_output
from pausefl.runtime.processes.resources import allow_many_files, keep_freed_memory, refuse_few_files
from pausefl.runtime.standing_fleet import refuse_virtual, refuse_whole_runs
from pausefl.runtime.terminal import printed_events
from pausefl_proto.errors import ConfigError, PauseflError, first_error


@posted_output()
def server(options: argparse.Namespace) -> None:
    """Serve an experiment to clients that connect."""
    from pausefl.runtime.observers import Observed, load_observers
    from pausefl.runtime.own_code import own_code
    from pausefl.runtime.plan import plan_of
    from pausefl.runtime.provenance import is_served, note_start, note_unserved
    from pausefl.runtime.run_dir import made_run_dir, new_run_dir, refuse_clients_elsewhere, resume_command
    from pausefl.runtime.server.process import serve_run

    set_up_log()
    allow_many_files()
    experiment = experiment_of(options)
    refuse_few_files(clients=experiment.clients.count)
    refuse_whole_runs(experiment, "pausefl server")
    if options.resume and options.run_dir is None:
        raise ConfigError("--resume: needs --run-dir")
    run_dir = Path(options.run_dir) if options.resume else new_run_dir(config_name(options), options.run_dir)
    observers = load_observers(experiment.experiment.observers)
    plan = plan_of(experiment, run_dir.name)
    with ExitStack() as running:
        running.enter_context(made_run_dir(plan.settings, run_dir, resume=options.resume))
        refuse_clients_elsewhere(run_dir, served=True)
        set_up_log(run_dir.name)
        report = running.enter_context(printed_events(run_dir.name))
        observed = running.enter_context(Observed(report, observers, run_dir, plan.settings))
        was_served = is_served(run_dir)
        note_start(run_dir, code=own_code(plan.settings), served=True)
        try:
            result = serve_run(plan.server, run_dir, observed.show, back_to_of(options))
        except PauseflError:
            if not was_served:
                note_unserved(run_dir)
            raise
    check_outcome(result.outcome, result.stopped_because, resume_command(run_dir))


@posted_output()
def evaluator(options: argparse.Namespace) -> None:
    """Evaluate the models of servers that ask."""
    from pausefl.runtime.evaluator.plan import evaluator_plan
    from pausefl.runtime.evaluator.process import serve_evaluator

    set_up_log()
    experiment = load_experiment(options.config, options.overrides)
    refuse_virtual(experiment, "pausefl evaluator")
    with printed_events(f"evaluator of {config_name(options)}") as report:
        serve_evaluator(evaluator_plan(experiment), report)


@posted_output()
def client(options: argparse.Namespace) -> None:
    """Run a client, or the clients of a slot: for one run, or with --stay for one run after another."""
    from pausefl.runtime.processes.waits import run_telling_waits

    check_address("--server", options.server)
    lifetime = _lifetime_of(options)
    set_up_log()
    experiment, taken_of = _experiment_of_client(options)
    refuse_whole_runs(experiment, "pausefl client")
    allow_many_files()
    keep_freed_memory()
    with (
        _clients_to_be(experiment, options) as client_ids,
        printed_events(f"clients of {config_name(options) if options.config else options.server}") as report,
        first_error(),
    ):
        refuse_few_files(ledgers=len(client_ids))
        ledgers = Path(options.ledger_dir)
        if options.stay:
            from pausefl.runtime.client.staying import StayingClients, stay

            clients = StayingClients(options.server, client_ids, ledgers, experiment, taken_of, lifetime)
            run_telling_waits(stay(clients, report))
        else:
            from pausefl.runtime.client.plan import client_plan
            from pausefl.runtime.client.process import run_clients_over_grpc

            plan = client_plan(experiment)
            run_telling_waits(run_clients_over_grpc(plan, client_ids, options.server, ledgers, report))


def _experiment_of_client(options: argparse.Namespace) -> tuple[Experiment, Callable[[str], Experiment]]:
    """The client's experiment, and a function that returns the experiment to play from a server's offer.

    The experiment comes from CONFIG, or else from the server, except for the client's own settings. For a client that
    stays, it has only the client's own settings until a server offers the rest.
    """
    from pausefl.runtime.client.agreement import accepted
    from pausefl.runtime.client.connecting import fetch_experiment, way_of

    if options.config is not None:
        if options.own is not None:
            raise ConfigError("--own: goes without CONFIG, which is all the client's own")
        experiment = load_experiment(options.config, options.overrides)
        return experiment, lambda _: experiment
    if options.client_id is None:
        raise ConfigError("--slot: needs CONFIG, which names the clients of a slot")
    own = own_document(options.own, options.overrides)
    here = way_of(own) if options.stay else fetch_experiment(options.server, options.client_id, own)
    return here, partial(accepted, own=own)


def _lifetime_of(options: argparse.Namespace) -> float:
    """The ε that a client may spend in all of its runs; infinite by default. ConfigError for a wrong value."""
    lifetime: float | None = options.epsilon_lifetime
    if lifetime is None:
        return math.inf
    if not options.stay:
        raise ConfigError(
            f"--epsilon-lifetime {lifetime:g}: goes with --stay; a run's own budget is privacy.epsilon_budget"
        )
    if not (math.isfinite(lifetime) and lifetime > 0):
        raise ConfigError(f"--epsilon-lifetime {lifetime:g}: must be a finite number above 0")
    return lifetime


def _clients_to_be(experiment: Experiment, options: argparse.Namespace) -> AbstractContextManager[list[str]]:
    """The ids of the clients of this process. Those of a slot are held for the block, so no other process runs them."""
    from pausefl.runtime.client.slots import claimed_clients

    at_least_1("--count", options.count)
    if options.slot is None:
        if options.count > 1:
            raise ConfigError("--count: goes with --slot")
        return nullcontext([options.client_id])
    if not re.fullmatch("auto|[0-9]{1,9}", options.slot):
        raise ConfigError(f"--slot {options.slot}: must be auto or a number from 0")
    slot = None if options.slot == "auto" else int(options.slot)
    return claimed_clients(experiment.client_ids, slot, options.count, Path(options.ledger_dir))
