"""Builds the server's actors, runs them, and stops them in order."""

import asyncio
import secrets
import sqlite3
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from pausefl_process.ending import Interruption, interruptible
from pausefl_process.events import Finished, MetricsServed, Outcome, Preparing, Ready, Report
from pausefl_process.exposition import exposition
from pausefl_process.health import health_routes
from pausefl_process.host_monitor import Clock, HostMonitor, HostWatch
from pausefl_process.http_server import Route, WebServer
from pausefl_proto.errors import PauseflError
from pausefl_proto.foreign_text import shown
from pausefl_proto.wire import Vector
from pausefl_server.actor import ActorStopped
from pausefl_server.connections.endpoints import Endpoints
from pausefl_server.connections.stream_handler import ClientStreamHandler
from pausefl_server.connections.transport import FederationServer
from pausefl_server.monitoring.metrics import make_registry
from pausefl_server.monitoring.observer import Observers
from pausefl_server.monitoring.page import LivePage
from pausefl_server.monitoring.progress import ProgressReporter
from pausefl_server.monitoring.telemetry import Telemetry
from pausefl_server.records import Evaluation
from pausefl_server.rounds.admission import follow
from pausefl_server.rounds.budget_exhaustion import budgets_end
from pausefl_server.rounds.coordinator import Coordinator
from pausefl_server.rounds.evaluation import (
    Best,
    BestModelFile,
    Evaluate,
    EvaluateModel,
    EvaluatorActor,
    picked_up,
    waiting_models_max,
)
from pausefl_server.rounds.messages import Shutdown
from pausefl_server.selection.base import Oracle, Policy
from pausefl_server.settings import MetricsSettings, ServerSettings
from pausefl_server.state import RunState
from pausefl_server.storage.checkpoint import Checkpoint
from pausefl_server.storage.restore import StoredModels, restore
from pausefl_server.storage.store import Store
from pausefl_server.storage.store_actor import StoreActor

# A commit usually takes milliseconds. A run cannot go on with a disk that is slower than this.
_WRITES_WITHIN_S = 10.0
_LOOK_EVERY_S = 0.02
_GOODBYE_GRACE_S = 5.0
# If the run was asked to end: the same grace, and how long the last evaluations may take.
_HASTY_GOODBYE_GRACE_S = 2.0
_LAST_EVALUATIONS_S = 5.0
# How many clients' connections are allowed if the run does not limit its clients.
_MANY_CLIENTS = 1000


class Transport(Protocol):
    """Carries clients' streams to their handler."""

    async def start(self, host: str, port: int) -> int:
        """Accept clients from now on; returns the port, if the transport has one."""

    async def stop(self, grace_s: float) -> None:
        """Let clients close their streams within `grace_s` of the goodbye, then break the others."""


@dataclass(frozen=True)
class Platform:
    """The clock of a server, a monitor of its host, and the transport of its clients' messages."""

    clock: Clock = time.monotonic
    watch: Callable[[Clock], HostWatch] = HostMonitor
    transport: Callable[[ClientStreamHandler, Endpoints, int], Transport] = FederationServer
    """Makes the transport from the handler of its streams, the endpoints, and the greatest number of clients."""
    finishes_rounds: bool = False
    """See `Coordinator.__init__`."""
    goes_on: Callable[[float], None] = lambda _: None
    """Called before clients come, with the run's `wall_clock_s` at its last commit."""
    closes_within_s: float = 5.0
    """How long gRPC may take to close broken connections. Its thread for that may have to wait on a busy machine."""


REAL = Platform()
"""gRPC on the real clock."""


@dataclass(frozen=True)
class RunResult:
    """The results of a run, other than its log."""

    state: RunState
    theta: Vector
    best: Best | None
    """The model that did best on held-out training data; None without an evaluator."""
    final_evaluations: tuple[Evaluation, ...]
    """The evaluations of θ on the full sets; empty without an evaluator."""
    best_evaluations: tuple[Evaluation, ...]
    """The evaluations of the best model on the full sets; empty if none was rated."""
    stopped_because: str
    outcome: Outcome


@dataclass(frozen=True)
class RunOutputs:
    """Writes and removes a run's results, other than its log."""

    keep: Callable[[RunResult], None]
    """Writes the results; called in a thread, before metrics and page are closed."""
    forget: Callable[[int], None] = lambda _: None
    """forget(t) removes the results of an earlier end of the run; called before the rounds after t are taken back."""
    best_model: BestModelFile | None = None
    """The file that keeps the best model so far; None: it is not kept in a file."""


async def serve(
    settings: ServerSettings,
    policy: Policy,
    theta_0: Vector,
    evaluate: EvaluateModel | None,
    endpoints: Endpoints,
    folder: Path,
    report: Report,
    outputs: RunOutputs,
    *,
    oracle: Oracle | None = None,
    back_to: int | None = None,
    platform: Platform = REAL,
) -> RunResult:
    """Run one federation to its end. `folder` holds run.db and the checkpoint; a run that has rounds there is resumed.

    `back_to` takes back the rounds after that one. `report` receives the progress events.
    SIGINT and SIGTERM end the run: the open round is given up, and everything is saved.
    """
    with ExitStack() as ending:
        interruption = ending.enter_context(interruptible())
        with _disk_errors(folder):
            store = ending.enter_context(closing(Store(folder / "run.db")))
            checkpoint = ending.enter_context(closing(Checkpoint(folder / "checkpoints", settings.models_kept)))
            settings = replace(settings, run_id=_run_id(store, settings.run_id))
            telemetry = Telemetry(settings)
            watching = [telemetry] if endpoints.metrics is not None else []  # without readers, it only costs time
            observer = Observers(*watching, ProgressReporter(settings, report))
            models = StoredModels(store, checkpoint, theta_0)
            start = restore(
                settings,
                policy,
                models,
                after_each=telemetry.replayed if watching else lambda *_: None,
                back_to=back_to,
                say=observer.noticed,
                forget=outputs.forget,
            )
            loop = asyncio.get_running_loop()
            store.tell = lambda message: loop.call_soon_threadsafe(observer.noticed, message, "waiting")
            every = settings.evaluation_every if evaluate is not None else 0
            due = range(every, min(start.state.round + 1, settings.rounds), every) if every else ()
            told, file = store.evaluations(), outputs.best_model
            best_so_far, missing = picked_up(told, due, file, models.theta, store.model_digest, observer.noticed)
        platform.goes_on(start.state.wall_clock_s)
        telemetry.resumed(start.state, start.late_events, told, budgets_end(start.state, settings))
        for had_s in store.add_broken_off(0, {}):
            telemetry.broken_off(had_s)
        store_actor = StoreActor(store, checkpoint, settings.checkpoint_every)
        if endpoints.metrics is not None:
            probes = server_probes(telemetry, lambda: store_actor.busy_s, interruption.asked.is_set)
            registry = make_registry(telemetry, endpoints.metrics, folder)
            metrics = exposition(lambda: registry, lambda: settings.info.run, [endpoints.tls])
            page = LivePage(telemetry, folder)
            ending.enter_context(_shown(page, endpoints.metrics, report, {"/metrics": metrics, **probes}))
        waiting = waiting_models_max(theta_0.nbytes)
        evaluator = EvaluatorActor(evaluate, store_actor, observer, best_so_far, outputs.best_model, waiting)
        if evaluate is not None:
            observer.evaluator(is_there=True)
        monitor = platform.watch(platform.clock)
        ending.callback(monitor.close)
        coordinator = Coordinator(
            settings,
            start,
            store_actor,
            evaluator,
            observer,
            oracle=oracle,
            watch=monitor,
            finishes_rounds=platform.finishes_rounds,
        )
        handler = ClientStreamHandler(coordinator, settings, endpoints, monitor, observer.rejected)
        transport = platform.transport(handler, endpoints, settings.clients or _MANY_CLIENTS)
        before = count_held()
        following = partial(follow, endpoints.admission, handler.readmit, observer.rejected)
        actors = store_actor, evaluator, transport, coordinator
        final, best = await _run_actors(*actors, following, endpoints, report, interruption, missing)
        left = await left_over(before, platform.closes_within_s)
        report(Finished(coordinator.stopped_because, left, coordinator.outcome))
        result = RunResult(
            coordinator.state,
            coordinator.model.theta,
            evaluator.best,
            final,
            best,
            stopped_because=coordinator.stopped_because,
            outcome=coordinator.outcome,
        )
        with _disk_errors(folder):
            await asyncio.to_thread(outputs.keep, result)
        telemetry.kept()
        if endpoints.metrics is not None:  # so that scrapers and readers see the end, unless the run was asked to end
            with suppress(TimeoutError):
                await asyncio.wait_for(interruption.asked.wait(), endpoints.metrics.linger_s)
        return result


@contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    """Turn errors of the disk and of run.db into a PauseflError that names the run directory."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise PauseflError(f"run directory {folder}: cannot be read and written ({error})") from error


@contextmanager
def _shown(page: LivePage, settings: MetricsSettings, report: Report, routes: Mapping[str, Route]) -> Iterator[None]:
    """Serve metrics, the probes, and the live page if it is wanted."""
    routes = {**routes, **(page.routes if settings.has_page else {})}
    with closing(WebServer(settings.host, settings.port, routes, key="metrics.port")) as web, closing(page):
        url = f"http://{web.address}"
        report(MetricsServed(f"{url}/metrics", f"{url}/" if settings.has_page else None))
        yield


async def _run_actors(
    store: StoreActor,
    evaluator: EvaluatorActor,
    transport: Transport,
    coordinator: Coordinator,
    follow_files: Callable[[], Coroutine[Any, Any, None]],
    endpoints: Endpoints,
    report: Report,
    interruption: Interruption,
    missing: Sequence[Evaluate],
) -> tuple[tuple[Evaluation, ...], tuple[Evaluation, ...]]:
    """Start: store, evaluator, transport, coordinator. Stop: coordinator, transport, evaluator, store.

    `missing` evaluations come first. Returns the evaluations of the last and of the best model on the full sets.
    """
    async with asyncio.TaskGroup() as group:
        group.create_task(store.run())
        evaluating = group.create_task(evaluator.run())
        for message in missing:
            await evaluator.tell(message)
        port = await transport.start(endpoints.host, endpoints.port)
        ending = group.create_task(_end(coordinator, interruption))
        following = group.create_task(follow_files())
        try:
            report(Ready(port))
            await coordinator.run()
        finally:
            await transport.stop(_HASTY_GOODBYE_GRACE_S if interruption.asked.is_set() else _GOODBYE_GRACE_S)
        report(Preparing("the last models are evaluated on all examples"))
        try:
            async with asyncio.timeout(None) as limit:
                hurrying = group.create_task(_hurry(limit, interruption))
                final, best = await _evaluate_last(evaluator, coordinator, patient=not interruption.asked.is_set())
        except TimeoutError:
            final = best = ()
            evaluating.cancel()
        for task in (ending, hurrying, following):
            task.cancel()
        evaluator.stop()
        store.stop()
    return final, best


async def _hurry(limit: asyncio.Timeout, interruption: Interruption) -> None:
    """Once the run is asked to end, limit the last evaluations: the user wants its end more than its last accuracy."""
    await interruption.asked.wait()
    limit.reschedule(asyncio.get_running_loop().time() + _LAST_EVALUATIONS_S)


async def _evaluate_last(
    evaluator: EvaluatorActor, coordinator: Coordinator, *, patient: bool
) -> tuple[tuple[Evaluation, ...], tuple[Evaluation, ...]]:
    """The evaluations of the last model and of the best one, if one was rated, on the full sets.

    An interrupted run does not evaluate its last model on the subsets. So, once resumed, it finds the same best model
    and has the same series of accuracies as without an interruption.
    """
    last, theta = coordinator.state.round, coordinator.model.theta
    if coordinator.outcome != "interrupted":
        await evaluator.ask(Evaluate(last, theta, subset=True, patient=patient))
    final = await evaluator.ask(Evaluate(last, theta, subset=False))
    if (best := evaluator.best) is None:
        return final, ()
    return final, final if best.round == last else await evaluator.ask(Evaluate(best.round, best.theta, subset=False))


async def _end(coordinator: Coordinator, interruption: Interruption) -> None:
    await interruption.asked.wait()
    with suppress(ActorStopped):  # it has ended by itself meanwhile
        await coordinator.tell(Shutdown(interruption.reason))


def _run_id(store: Store, name: str) -> str:
    """The run's id. It is unique, whatever directories are called, because one client ledger may hold many runs."""
    run_id = store.meta("run_id") or f"{shown(name)}-{secrets.token_hex(8)}"
    store.set_meta("run_id", run_id)
    return run_id


def server_probes(
    telemetry: Telemetry, write_s: Callable[[], float], is_draining: Callable[[], bool]
) -> dict[str, Route]:
    """The routes `/healthz` and `/readyz`. `write_s` returns how long the current write has taken so far.

    A server is healthy while its event loop runs and the store writes. It is ready from its first round to its last,
    while a client is connected and the run has not been asked to end.
    """

    def trouble() -> str:
        taken_s = write_s()
        return f"a write takes {taken_s:.0f} s so far" if taken_s > _WRITES_WITHIN_S else ""

    def not_ready() -> str:
        now = telemetry.now
        if is_draining():
            return "the run was asked to end"
        if now.status != "running":
            return f"{now.status} ({now.connected} connected)"
        return "" if now.connected else "no client is connected"

    return health_routes(asyncio.get_running_loop(), trouble, not_ready)


def count_held() -> dict[str, int]:
    """The number of this event loop's tasks, and of the process's open descriptors (0 without /proc)."""
    listed = Path("/proc/self/fd")
    descriptors = sum(1 for _ in listed.iterdir()) if listed.exists() else 0
    return {"tasks": len(asyncio.all_tasks()), "descriptors": descriptors}


async def left_over(before: Mapping[str, int], patience_s: float) -> dict[str, int]:
    """The number of tasks and descriptors beyond `before`. Waits up to `patience_s` for them to close."""
    clock = asyncio.get_running_loop().time
    deadline_s = clock() + patience_s
    while True:
        left = {what: max(0, count - before[what]) for what, count in count_held().items()}
        if not any(left.values()) or clock() > deadline_s:
            return left
        await asyncio.sleep(_LOOK_EVERY_S)
