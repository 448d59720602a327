"""The evaluator in a process of its own, so that an evaluation never takes time from a round: as a service that
outlives runs, or started by the server."""

import asyncio
import multiprocessing
import os
import signal
import traceback
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

from pausefl.evaluator.plan import EvaluatorConnection, EvaluatorEndpoint, EvaluatorPlan
from pausefl.evaluator.rehearsal import rehearsed_evaluator
from pausefl.evaluator.transport import EvaluatorServer, RemoteEvaluator
from pausefl_process.ending import DRAIN_S, end_within
from pausefl_process.events import Failed, ProgressEvent, Ready, Report
from pausefl_process.lifetime import die_with_parent, ignore_interrupts, start
from pausefl_process.resources import use_no_gpu
from pausefl_process.waits import run_telling_waits
from pausefl_proto.errors import ConfigError, EvaluatorLost, EvaluatorStuck, PauseflError
from pausefl_proto.wire import Manifest, Vector
from pausefl_server.records import Evaluation

_NICENESS = 15
_ENDS_WITHIN_S = 1.0

Say = Callable[[str], None]


def serve_evaluator(plan: EvaluatorPlan, endpoint: EvaluatorEndpoint, report: Report) -> None:
    """Serve evaluations until SIGTERM or SIGINT. `report` gets one event, `Ready`.

    ConfigError when its data or model cannot be had, or it cannot listen; PauseflError when the model cannot be
    trained or evaluated.
    """
    run_telling_waits(_serve(plan, endpoint, report, ended_by=(signal.SIGINT, signal.SIGTERM)))


@asynccontextmanager
async def find_evaluator(
    plan: EvaluatorPlan, connection: EvaluatorConnection, say: Say
) -> AsyncIterator["RemoteEvaluator | OwnEvaluator"]:
    """The evaluator at the connection's address, or one that is started here and ends with the block.

    `say` is told what a person should read. ConfigError when a file for TLS is wrong.
    """
    evaluator = _connect(connection, plan, say) if connection.address else OwnEvaluator(plan, connection, say)
    try:
        yield evaluator
    finally:
        await evaluator.close()


class OwnEvaluator:
    """An evaluator in a child process of this one; started when it is first needed, and again when it has died."""

    def __init__(self, plan: EvaluatorPlan, connection: EvaluatorConnection, say: Say) -> None:
        """`connection` says how patient to be with the process."""
        self._plan = plan
        self._connection = connection
        self._say = say
        self._process: SpawnProcess | None = None
        self._remote: RemoteEvaluator | None = None

    async def initial(self) -> tuple[Manifest, Vector]:
        """What θ's values mean, and θ_0; PauseflError when the process cannot serve."""
        return await (await self._line()).initial()

    async def evaluate(self, theta: Vector, *, subset: bool, patient: bool) -> tuple[Evaluation, ...]:
        """θ's evaluations, as `pausefl_server.rounds.evaluation.EvaluateModel` says."""
        try:
            return await self._evaluate(theta, subset=subset)
        except EvaluatorLost as error:
            if not patient or isinstance(error, EvaluatorStuck):
                raise
            if self._process is not None:  # its line may have ended an instant before itself
                await asyncio.to_thread(self._process.join, _ENDS_WITHIN_S)
            return await self._evaluate(theta, subset=subset)

    async def _evaluate(self, theta: Vector, *, subset: bool) -> tuple[Evaluation, ...]:
        try:
            line = await self._line()
        except PauseflError as error:
            raise EvaluatorLost(str(error)) from error
        try:
            return await line.evaluate(theta, subset=subset, patient=False)
        except EvaluatorStuck:
            await self.close()
            raise

    async def close(self) -> None:
        """End the process."""
        if self._remote is not None:
            await self._remote.close()
        if self._process is not None:
            self._process.kill()
            self._process.join()
        self._remote = self._process = None

    async def _line(self) -> RemoteEvaluator:
        if self._remote is None or self._process is None or not self._process.is_alive():
            await self.close()
            here = replace(self._connection, address=f"127.0.0.1:{await self._start()}", tls=None)
            self._remote = _connect(here, self._plan, self._say)
        return self._remote

    async def _start(self) -> int:
        """Start the process and wait for it; its port. PauseflError as it says why it cannot serve."""
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe(duplex=False)
        with ours:
            with theirs:
                arguments = (self._plan, theirs)
                process = context.Process(target=_run_own, args=arguments, name="pausefl-evaluator")
                start(process)
                self._process = process  # one that a signal kept from starting could not be ended
            try:
                event: ProgressEvent = await asyncio.to_thread(ours.recv)
            except EOFError:
                raise PauseflError("the evaluator's process ended unexpectedly, see server.log") from None
        match event:
            case Ready(port):
                return port
            case Failed(message, bad_input):
                raise (ConfigError if bad_input else PauseflError)(message)
        raise PauseflError(f"the evaluator's process reported {event.kind} instead of its port")


def _connect(connection: EvaluatorConnection, plan: EvaluatorPlan, say: Say) -> RemoteEvaluator:
    line = connection.address, plan.subject, connection.tls, connection.patience_s, connection.answer_s
    return RemoteEvaluator(*line, say)


def _run_own(plan: EvaluatorPlan, events: "Connection[Any, Any]") -> None:
    """The main function of the process a server has started."""
    die_with_parent()
    ignore_interrupts()
    try:
        run_telling_waits(_serve(plan, EvaluatorEndpoint("127.0.0.1", 0, None), events.send))
    except PauseflError as error:
        traceback.print_exc()  # into server.log
        events.send(Failed(str(error), isinstance(error, ConfigError)))


async def _serve(
    plan: EvaluatorPlan, endpoint: EvaluatorEndpoint, report: Report, ended_by: Sequence[signal.Signals] = ()
) -> None:
    """Make the evaluator, listen, and serve until one of the signals comes."""
    os.nice(_NICENESS)
    if plan.device == "cpu":
        use_no_gpu()
    evaluator = rehearsed_evaluator(plan)
    server, ended = EvaluatorServer(evaluator, plan.subject, endpoint.tls), asyncio.Event()

    def end() -> None:
        end_within(DRAIN_S, status=0)  # an evaluation under way has a thread that nothing breaks off
        ended.set()

    for number in ended_by:
        asyncio.get_running_loop().add_signal_handler(number, end)
    report(Ready(await server.start(endpoint.host, endpoint.port)))
    await ended.wait()
    await server.stop()
