"""Runs the server of one run: finds its model and evaluator and, at the end, writes its summary and model files."""

import gc
import json
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from pausefl.config.server_records import selected_policy
from pausefl.evaluator.plan import EvaluatorConnection, EvaluatorPlan
from pausefl.evaluator.process import find_evaluator
from pausefl.results.summary import SummaryPlan, summarise
from pausefl.results.tally import RunTally
from pausefl.runtime.provenance import starts_of
from pausefl.runtime.run_dir import REPORT
from pausefl.runtime.server.model_files import ModelFiles
from pausefl.runtime.server.plan import EvaluatedModel, ServerPlan, SyntheticModel
from pausefl_process.events import Done, Failed, Notice, ProgressEvent, Report, RoundCommitted, to_json, to_line
from pausefl_process.files import Lock, sync_folder, write_durably
from pausefl_process.lifetime import die_with_parent
from pausefl_process.log_file import write_output_to
from pausefl_process.logs import is_json, set_up_log
from pausefl_process.outbox import posted
from pausefl_process.plugins import errors_of_own_code
from pausefl_process.resources import allow_many_files, collect_seldom, keep_freed_memory
from pausefl_process.waits import run_telling_waits
from pausefl_proto.errors import ConfigError, PauseflError, first_error
from pausefl_proto.wire import Manifest, Vector
from pausefl_server.records import Evaluation
from pausefl_server.rounds.evaluation import EvaluateModel
from pausefl_server.selection.base import Policy
from pausefl_server.service import REAL, Platform, RunOutputs, RunResult, serve
from pausefl_server.storage.store import Store

# What the updates of a round take, which are freed with its end and come again in the next.
_ROUND_BYTES = 1 << 30

log = logging.getLogger("pausefl.server")


class ModelEvaluator(Protocol):
    """Makes θ_0 and evaluates models, wherever it is."""

    async def initial(self) -> tuple[Manifest, Vector]:
        """What θ's values mean, and θ_0, (d,) float32."""

    async def evaluate(self, theta: Vector, *, subset: bool, patient: bool) -> Sequence[Evaluation]:
        """θ's evaluations, as `pausefl_server.rounds.evaluation.EvaluateModel` says."""


Evaluators = Callable[
    [EvaluatorPlan, EvaluatorConnection, Callable[[str], None]], AbstractAsyncContextManager[ModelEvaluator]
]
"""Finds or makes an evaluator, which is there for the time of a block, and is told where to say what."""


def run_server_process(
    plan: ServerPlan,
    run_dir: Path,
    events: "Connection[Any, Any]",
    lock: Lock | None = None,  # noqa: ARG001  # held as long as this process lives
    back_to: int | None = None,
) -> None:
    """The main function of the server process that `fleet` started; tells its parent everything through `events`."""
    work_for_fleet(run_dir, events, lambda report: serve_run(plan, run_dir, report, back_to))


def work_for_fleet(run_dir: Path, events: "Connection[Any, Any]", work: Callable[[Report], object]) -> None:
    """Do the work of a child process that writes server.log; its parent hears through `events` how it goes and ends."""
    die_with_parent()
    allow_many_files()
    write_output_to(run_dir / "server.log")
    set_up_log()
    with posted(events.send) as report:
        try:
            work(_logged(report))
        except PauseflError as error:
            log.error("%s", error, exc_info=error.__cause__)
            report(Failed(str(error), isinstance(error, ConfigError)))
        else:
            report(Done())


def serve_run(plan: ServerPlan, run_dir: Path, report: Report, back_to: int | None = None) -> RunResult:
    """Serve one run to its end, over gRPC on the real clock; otherwise as `play`."""
    collect_seldom()
    keep_freed_memory(_ROUND_BYTES)
    with errors_of_own_code(), first_error():
        return run_telling_waits(play(plan, run_dir, sparing_clients(report), back_to))


def sparing_clients(report: Report) -> Report:
    """Report each event, and keep the garbage collector from looking through what belongs to connected clients.

    There are about a hundred objects of each, for as long as it takes part. A full collection looked at all of them: it
    stopped the event loop for 0.3 s with 2,000 clients. What loses its last reference is freed all the same.
    """
    most_connected = 0

    def report_and_spare(event: ProgressEvent) -> None:
        nonlocal most_connected
        report(event)
        if isinstance(event, RoundCommitted) and event.connected > most_connected:
            most_connected = event.connected
            gc.freeze()

    return report_and_spare


@dataclass(frozen=True, eq=False)
class _FirstModel:
    """What a run begins with."""

    manifest: Manifest
    theta_0: Vector
    evaluate: EvaluateModel | None
    """None for the synthetic model."""

    def with_control(self) -> "_FirstModel":
        """The same followed by a control variate, 0 at first, of which evaluations are told nothing."""
        evaluate, size = self.evaluate, self.manifest.size
        assert evaluate is not None

        async def evaluate_model(theta: Vector, *, subset: bool, patient: bool) -> Sequence[Evaluation]:
            return await evaluate(theta[:size], subset=subset, patient=patient)

        theta_0 = np.concatenate((self.theta_0, np.zeros_like(self.theta_0)))
        return _FirstModel(self.manifest.with_control(), theta_0, evaluate_model)


async def play(
    plan: ServerPlan,
    run_dir: Path,
    report: Report,
    back_to: int | None,
    platform: Platform = REAL,
    evaluators: Evaluators = find_evaluator,
) -> RunResult:
    """Play one run to its end and write summary.json and the models. `report` gets the run's progress events.

    `back_to` takes back the rounds after that one first. `evaluators` finds or makes an evaluator.
    ConfigError for bad input, PauseflError for a run that failed.
    """
    policy = selected_policy(plan.selection)
    async with _initial_model(plan.model, report, evaluators) as model:
        models = ModelFiles(run_dir, model.manifest)
        has_control = isinstance(plan.model, EvaluatedModel) and plan.model.has_control
        travels = model.with_control() if has_control else model
        return await serve(
            replace(plan.settings, manifest=travels.manifest),
            policy,
            travels.theta_0,
            travels.evaluate,
            plan.endpoints,
            run_dir,
            report,
            RunOutputs(
                keep=partial(_keep, plan.summary, policy, models, run_dir),
                forget=partial(_forget, models, run_dir),
                best_model=models,
            ),
            oracle=plan.oracle,
            back_to=back_to,
            platform=platform,
        )


def _keep(plan: SummaryPlan, policy: Policy, models: ModelFiles, run_dir: Path, result: RunResult) -> None:
    """Write the last model and, last of all, summary.json.

    One of an earlier end goes first: the log then never says that a summary is its own which is not.
    """
    models.save_last(result.theta)
    file = run_dir / "summary.json"
    file.unlink(missing_ok=True)
    sync_folder(run_dir)
    with closing(Store(run_dir / "run.db", verify=False)) as store:
        tally = RunTally(
            store.log(),
            store.failed_attempts(),
            store.late_events(),
            groups=plan.groups,
            mode=plan.latency.mode,
            released_before={client_id: released for client_id, (released, _) in store.first_hellos().items()},
            limits=plan.limits,
        )
        summary = summarise(plan, policy, tally, result)
        summary["starts"] = starts_of(store)
        store.note_summarised()
    write_durably(file, json.dumps(summary, indent=2) + "\n")


def _forget(models: ModelFiles, run_dir: Path, round: int) -> None:
    """Take away what was written of the rounds after this one, the summary too, without which a run has not ended."""
    models.forget_after(round)
    for name in ("summary.json", REPORT):
        (run_dir / name).unlink(missing_ok=True)
    sync_folder(run_dir)


@asynccontextmanager
async def _initial_model(
    model: SyntheticModel | EvaluatedModel, report: Report, evaluators: Evaluators
) -> AsyncIterator[_FirstModel]:
    """θ_0, from the evaluator where there is one."""
    if isinstance(model, SyntheticModel):
        yield _FirstModel(model.manifest, np.zeros(model.manifest.size, np.float32), None)
        return
    async with evaluators(model.evaluator, model.connection, lambda text: report(Notice(text))) as evaluator:
        manifest, theta_0 = await evaluator.initial()
        yield _FirstModel(manifest, theta_0, evaluator.evaluate)


def _logged(report: Report) -> Report:
    """Report each event, and log it: as the only text of a line, or inside of a JSON line."""

    def log_and_report(event: ProgressEvent) -> None:
        fields = to_json(event)
        of_round = {"round": fields["round"]} if "round" in fields else {}
        log.info("%s", event.kind if is_json() else to_line(event), extra={**of_round, "event": fields})
        report(event)

    return log_and_report
