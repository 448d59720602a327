"""Runs a whole experiment in its own directory: processes, log, summary, report."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from threading import Event, Thread
from typing import Any

from pausefl.experiment.client_records import owners_of
from pausefl.experiment.experiment import Experiment
from pausefl.experiment.groups import check_rounds
from pausefl.extras import require
from pausefl.results.figures import Figures
from pausefl.results.stored_summary import read_summary
from pausefl.runtime.fleet import Fleet
from pausefl.runtime.observers import Observed, Observer, load_observers
from pausefl.runtime.own_code import own_code
from pausefl.runtime.plan import plan_of
from pausefl.runtime.processes.resources import refuse_few_files
from pausefl.runtime.provenance import note_start
from pausefl.runtime.run_dir import REPORT, made_run_dir, refuse_clients_elsewhere
from pausefl.runtime.standing_fleet import StandingFleet
from pausefl_client.privacy.mechanism import ExactLaplace
from pausefl_process.events import Preparing, Report
from pausefl_process.files import prepare_folder
from pausefl_proto.errors import ConfigError
from pausefl_proto.wire import MOST_ROUNDS


def run_experiment(
    experiment: Experiment,
    run_dir: Path,
    report: Report,
    *,
    resume: bool = False,
    back_to: int | None = None,
    observers: Sequence[Observer] = (),
    fleet: StandingFleet | None = None,
    has_report: bool = True,
    stop: Event | None = None,
) -> dict[str, Any]:
    """Begin a run, or with `resume` continue it, and play it to its end. Returns its summary.

    With `has_report`, also write the report. A run ended by SIGTERM has none: its sender waits 30 s at most, and
    drawing may take longer. If the report fails, the summary remains. A finished run is left unchanged. `back_to` first
    discards the rounds after that one. `stop` ends the run as SIGTERM does. With `fleet`, clients come from outside.
    `observers` receive the run's progress, as the experiment's own observers do. Bad input leaves no directory behind.
    """
    if (rounds := experiment.experiment.rounds) > MOST_ROUNDS:  # as of --rounds, which is not checked with its table
        raise ConfigError(f"experiment.rounds = {rounds}: must be at most {MOST_ROUNDS}")
    if resume:
        refuse_clients_elsewhere(run_dir, served=fleet is not None)
    if fleet is not None:
        experiment = fleet.serve(experiment)
    trains = experiment.workload.model != "synthetic"
    # Now: the report must not fail after hours of rounds.
    require("server", *(["client"] if trains else []), *(["report"] if has_report else []))
    observers = [*observers, *load_observers(experiment.experiment.observers)]
    if trains:
        from pausefl_client.data.datasets import prepare_dataset

        prepare_dataset(experiment.workload.dataset)
    if experiment.privacy.enabled and experiment.privacy.sampler == "opendp":
        ExactLaplace()  # if OpenDP is missing, fail here as bad input, not in thirty client processes
    if experiment.privacy.enabled and experiment.privacy.ledger_dir and fleet is None:
        folder = experiment.privacy.ledger_dir  # an error is reported once, not by each client process
        prepare_folder(Path(folder), f'privacy.ledger_dir = "{folder}"')
    count, is_virtual = experiment.clients.count, experiment.experiment.clock == "virtual"
    refuse_few_files(clients=count, ledgers=count if is_virtual else experiment.clients_per_process)
    plan = plan_of(experiment, run_dir.name, fleet)
    with made_run_dir(plan.settings, run_dir, resume=resume) as lock:
        written = all((run_dir / name).exists() for name in ("summary.json", *([REPORT] if has_report else [])))
        if back_to is None and written and read_summary(run_dir)["rounds"] == plan.server.settings.rounds:
            return {**read_summary(run_dir)}  # every round was played
        if not resume:
            check_rounds(plan.clients.presence)
        owners = owners_of(experiment.workload, experiment.client_ids, experiment.experiment.seed_of("split"))
        own, address = own_code(plan.settings), fleet.address if fleet else ""
        note_start(run_dir, code=own, owners=owners, served=fleet is not None, fleet=address)
        processes = Fleet(plan, run_dir, lock, back_to, stop)
        if has_report and is_virtual:  # the import takes a second; another process plays meanwhile
            Thread(target=import_module, args=["pausefl.results.report"], daemon=True).start()
        with Observed(report, observers, run_dir, plan.settings, run_dir / "server.log") as observed:
            processes.run(observed.show)
    figures = Figures()
    if has_report and not processes.was_terminated:
        from pausefl.results.reading import read_run
        from pausefl.results.report import write_report

        report(Preparing("figures are drawn and the report is written"))
        figures.compute(REPORT, lambda: write_report(read_run(run_dir)))
    if not has_report or processes.was_terminated or figures.missing:
        (run_dir / REPORT).unlink(missing_ok=True)  # it covers earlier rounds only
    return {**read_summary(run_dir)}
