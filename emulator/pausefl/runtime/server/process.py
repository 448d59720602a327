"""Runs the server of one run: finds its model and evaluator and, at the end, writes its summary and model files."""

import asyncio
import gc
import json
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, closing
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from pausefl.experiment.client_records import has_control
from pausefl.results.summary import summarise
from pausefl.results.tally import RunTally
from pausefl.runtime.evaluator.plan import Evaluated, EvaluatorPlan, InitialModel
from pausefl.runtime.evaluator.process import find_evaluator
from pausefl.runtime.processes.lifetime import die_with_parent
from pausefl.runtime.processes.log_file import write_output_to
from pausefl.runtime.processes.logs import is_asked_for, set_up_log
from pausefl.runtime.processes.outbox import posted
from pausefl.runtime.processes.resources import allow_many_files, collect_seldom, keep_freed_memory
from pausefl.runtime.processes.waits import run_telling_waits
from pausefl.runtime.provenance import starts_of
from pausefl.runtime.run_dir import REPORT
from pausefl.runtime.server.model_files import ModelFiles
from pausefl.runtime.server.plan import ServerPlan
from pausefl_process.events import (
    Done,
    Failed,
    Notice,
    Preparing,
    ProgressEvent,
    Report,
    RoundCommitted,
    WaitingForClients,
    level_of,
    to_json,
    to_line,
)
from pausefl_process.files import Lock, sync_folder, write_durably
from pausefl_process.health import health_routes
from pausefl_process.http_server import WebServer
from pausefl_process.plugins import errors_of_own_code
from pausefl_proto.errors import ConfigError, PauseflError, first_error
from pausefl_proto.wire import Manifest, Vector
from pausefl_server.records import Evaluation
from pausefl_server.service import REAL, Platform, RunOutputs, RunResult, serve
from pausefl_server.storage.store import Store

# Freed memory that the process keeps: updates are freed at the end of a round, and come again in the next.
_ROUND_BYTES = 1 << 30

log = logging.getLogger("pausefl.server")


class ModelEvaluator(Protocol):
    """Makes θ_0 and evaluates models, in this process or another."""

    async def initial(self) -> InitialModel:
        """The model that a run begins with."""

    async def evaluate(self, theta: Vector, *, subset: bool, patient: bool) -> Evaluated:
        """θ's evaluations. Raises errors as `pausefl_server.rounds.evaluation.EvaluateModel` says."""


Evaluators = Callable[[EvaluatorPlan, Callable[[str], None]], AbstractAsyncContextManager[ModelEvaluator]]
"""Finds or makes an evaluator for a block, from its plan and a function that receives messages for the user."""


def work_for_fleet(
    work: Callable[[Report], object],
    run_dir: Path,
    events: "Connection[Any, Any]",
    lock: Lock | None = None,  # noqa: ARG001  # held as long as this process lives
) -> None:
    """Do the work of a process that `fleet` started. Write server.log, and report what happens through `events`."""
    die_with_parent()
    allow_many_files()
    with posted(events.send) as report:
        try:
            write_output_to(run_dir / "server.log")
            set_up_log(run_dir.name)
            work(partial(_log_and_report, report))
        except PauseflError as error:
            log.error("%s", error, exc_info=error.__cause__)
            report(Failed(str(error), isinstance(error, ConfigError)))
        else:
            report(Done())


def serve_run(plan: ServerPlan, run_dir: Path, report: Report, back_to: int | None = None) -> RunResult:
    """Serve one run to its end, over gRPC on the real clock. See `play`."""
    collect_seldom()
    keep_freed_memory(_ROUND_BYTES)
    with errors_of_own_code(), first_error():
        return run_telling_waits(play(plan, run_dir, sparing_clients(report), back_to))


def sparing_clients(report: Report) -> Report:
    """A `Report` that passes events on, and keeps the garbage collector from scanning objects of connected clients.

    Each client has about a hundred objects while it takes part. A full collection looked at all of them: it stopped the
    event loop for 0.3 s with 2,000 clients. An object that loses its last reference is freed all the same.
    """
    most_connected = 0

    def report_and_spare(event: ProgressEvent) -> None:
        nonlocal most_connected
        report(event)
        if isinstance(event, RoundCommitted) and event.connected > most_connected:
            most_connected = event.connected
            gc.freeze()

    return report_and_spare


async def play(
    plan: ServerPlan,
    run_dir: Path,
    report: Report,
    back_to: int | None,
    platform: Platform = REAL,
    evaluators: Evaluators = find_evaluator,
) -> RunResult:
    """Play one run to its end and write summary.json and the models. `report` gets the run's progress events.

    `back_to` first discards the rounds after that one. `evaluators` finds or makes an evaluator.
    ConfigError for bad input, PauseflError for a run that failed.
    """
    if plan.noise_notice:
        report(Notice(plan.noise_notice))
    async with _initial_model(plan, report, evaluators) as (model, evaluator):
        # A control variate, which the evaluator never sees, may travel with the model.
        is_controlled = isinstance(plan.model, EvaluatorPlan) and has_control(plan.model.workload)
        manifest = model.manifest.with_control() if is_controlled else model.manifest
        models = ModelFiles(run_dir, manifest, model.rest)
        return await serve(
            replace(plan.settings, manifest=manifest),
            plan.policy,
            manifest.with_no_control(model.theta_0) if is_controlled else model.theta_0,
            None if evaluator is None else partial(_evaluate_and_note, evaluator, models),
            plan.endpoints,
            run_dir,
            report,
            RunOutputs(
                keep=partial(_keep, plan, models, run_dir, manifest.charged.size),
                forget=partial(_forget, models, run_dir),
                best_model=models,
            ),
            oracle=plan.oracle,
            back_to=back_to,
            platform=platform,
        )


async def _evaluate_and_note(
    evaluator: ModelEvaluator, models: ModelFiles, theta: Vector, *, subset: bool, patient: bool
) -> Sequence[Evaluation]:
    """Evaluate a model without its control variate, and keep the estimated statistics in `models`."""
    evaluations, statistics = await evaluator.evaluate(models.of_model(theta), subset=subset, patient=patient)
    if statistics is not None:
        models.note(theta, statistics)
    return evaluations


def _keep(plan: ServerPlan, models: ModelFiles, run_dir: Path, charged_size: int, result: RunResult) -> None:
    """Write the last model and, last of all, summary.json.

    The summary of an earlier end is deleted first, so that the log never claims a summary that is not its own.
    """
    models.save_last(result.theta)
    file = run_dir / "summary.json"
    file.unlink(missing_ok=True)
    sync_folder(run_dir)
    with closing(Store(run_dir / "run.db", verify=False)) as store:
        tally = RunTally(
            store.log(),
            store.log().failed_attempts(),
            store.late_events(),
            groups=plan.summary.groups,
            mode="total" if plan.settings.total_delays else "additive",
            released_before={client_id: released for client_id, (released, _) in store.first_hellos().items()},
            broken_off=store.add_broken_off(result.state.round, result.state.broken_off_s),
        )
        summary = summarise(plan.summary, plan.settings, tally, result, charged_size, partial(starts_of, store))
        store.note_summarised()
    write_durably(file, json.dumps(summary, indent=2) + "\n")


def _forget(models: ModelFiles, run_dir: Path, round: int) -> None:
    """Delete files about the rounds after this one. The summary goes too: a run without it has not ended."""
    models.forget_after(round)
    for name in ("summary.json", REPORT):
        (run_dir / name).unlink(missing_ok=True)
    sync_folder(run_dir)


@asynccontextmanager
async def _initial_model(
    plan: ServerPlan, report: Report, evaluators: Evaluators
) -> AsyncIterator[tuple[InitialModel, ModelEvaluator | None]]:
    """Yields the initial model and its evaluator (None for the synthetic model). Answers health probes meanwhile."""
    model, metrics = plan.model, plan.endpoints.metrics
    if isinstance(model, Manifest):
        yield InitialModel(model, np.zeros(model.size, np.float32)), None
        return

    def say(text: str) -> None:
        report(Notice(text, "evaluator"))

    report(Preparing("the evaluator loads torch, makes the first model and tries it"))
    with ExitStack() as waiting:
        if metrics is not None and metrics.port:
            probes = health_routes(asyncio.get_running_loop(), lambda: "", lambda: "waits for the evaluator")
            waiting.enter_context(closing(WebServer(metrics.host, metrics.port, probes, key="metrics.port")))
        async with evaluators(model, say) as evaluator:
            initial = await evaluator.initial()
            waiting.close()
            if local := initial.rest.local.size:
                own = "the evaluator estimates its own on held-out data"
                say(f"{local:,} running statistics stay with each client; {own}")
            yield initial, evaluator


def _log_and_report(report: Report, event: ProgressEvent) -> None:
    """Log an event (of a wait for clients, the first and the last), as text or JSON, and pass it to `report`."""
    if not (isinstance(event, WaitingForClients) and event.connected not in {0, event.minimum}):
        fields = to_json(event)
        of_round = {"round": fields["round"]} if "round" in fields else {}
        of_client = {"client_id": event.client} if isinstance(event, Notice) and event.client else {}
        message = fields.get("message", event.kind) if is_asked_for("json") else to_line(event)
        level = logging.getLevelName(level_of(event).upper())
        log.log(level, "%s", message, extra={**of_round, **of_client, "event": fields})
    report(event)
