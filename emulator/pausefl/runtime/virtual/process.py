"""The one process of a run on the virtual clock: its server, its clients and its evaluator on one event loop."""

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

from pausefl.runtime.client.failures import telling_failures
from pausefl.runtime.client.process import ClientPlatform, run_clients, spare_exchanges, takes_no_time
from pausefl.runtime.evaluator.plan import Evaluated, EvaluatorPlan, InitialModel
from pausefl.runtime.evaluator.rehearsal import rehearsed_evaluator, told_in_one_line
from pausefl.runtime.plan import RunPlan
from pausefl.runtime.processes.resources import collect_seldom, keep_freed_memory
from pausefl.runtime.server.process import play
from pausefl.runtime.virtual.batching import with_batching
from pausefl.runtime.virtual.event_loop import VirtualTimeLoop
from pausefl.runtime.virtual.steps import with_step_time
from pausefl.runtime.virtual.transport import InProcessTransport
from pausefl.runtime.virtual.workers import Workers
from pausefl_process.events import ProgressEvent, Ready, Report, RollCall
from pausefl_process.files import skip_fsync
from pausefl_process.host_monitor import HostWatch
from pausefl_process.plugins import errors_of_own_code
from pausefl_proto.errors import PauseflError, first_error
from pausefl_proto.wire import Vector
from pausefl_server.records import SPLITS
from pausefl_server.service import Platform, RunResult


def play_in_own_process(plan: RunPlan, run_dir: Path, report: Report, back_to: int | None = None) -> None:
    """Play one run as `play_virtually` does, in a process that does nothing else."""
    privacy = plan.clients.privacy
    if privacy is None or privacy.ledger_dir is None:  # otherwise ledgers outlive the run, and must be durable
        skip_fsync()
    collect_seldom()
    keep_freed_memory()
    spare_exchanges()
    with telling_failures(plan.clients, report):
        play_virtually(plan, run_dir, report, back_to)


def play_virtually(plan: RunPlan, run_dir: Path, report: Report, back_to: int | None = None) -> RunResult:
    """Play one run to its end on the virtual clock, in this process. Raises errors as `play` does."""
    workers = Workers()
    with errors_of_own_code(), first_error(), asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(workers)) as runner:
        return runner.run(_play(plan, run_dir, report, back_to, workers))


async def _play(plan: RunPlan, run_dir: Path, report: Report, back_to: int | None, workers: Workers) -> RunResult:
    clients = plan.clients.on_own_device(plan.clients.training.client_ids)
    transport, clock = InProcessTransport(), asyncio.get_running_loop().time
    listening, rounds = asyncio.Event(), asyncio.Queue[int | None]()

    def hear(event: ProgressEvent) -> None:
        """Report an event. Let clients connect once the server listens, and tell them the rounds that it calls."""
        match event:
            case Ready():
                listening.set()
            case RollCall(round):
                rounds.put_nowait(round)
        report(event)

    async def play_clients() -> None:
        await listening.wait()  # until then the evaluator has tried the model, and told what is wrong with it
        training = with_step_time(clients.training, run_dir)
        timed = replace(clients, training=with_batching(training, plan.server.policy.m, run_dir, report))
        executor = None if takes_no_time(timed) else workers
        platform = ClientPlatform(
            lambda client_id: partial(transport.connect, client_id), executor, clock, HostWatch, spin_s=0.0
        )
        called = None if clients.presence is None else rounds
        try:
            await run_clients(timed, clients.training.client_ids, run_dir / "ledgers", platform, called)
        except PauseflError:
            if transport.is_open:  # otherwise they were away at the end, as resting clients are; the log says so
                raise

    platform = Platform(clock, HostWatch, transport.carrying, True, workers.begin_at)
    async with asyncio.TaskGroup() as group:
        playing = group.create_task(play_clients())
        try:
            return await play(
                plan.server, run_dir, hear, back_to, platform, lambda of, say: nullcontext(_LocalEvaluator(of, say))
            )
        finally:
            rounds.put_nowait(None)
            if not listening.is_set():
                playing.cancel()


class _LocalEvaluator:
    """`ModelEvaluator` in this process, made at once; an evaluation takes no virtual time."""

    def __init__(self, plan: EvaluatorPlan, say: Callable[[str], None]) -> None:
        self._evaluator, self._workload = rehearsed_evaluator(plan.on_own_device(), say), plan.workload

    async def initial(self) -> InitialModel:
        return self._evaluator.initial

    async def evaluate(self, theta: Vector, *, subset: bool, patient: bool) -> Evaluated:
        with told_in_one_line(self._workload, "an evaluation"):
            return self._evaluator.evaluate(theta, SPLITS, subset=subset)
