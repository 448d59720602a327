"""The evaluator in a process of its own, so that an evaluation never takes time from a round. It is either a service
that outlives runs, or a child process of the server."""

import asyncio
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, aclosing, closing
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

from pausefl.extras import require
from pausefl.runtime.evaluator.plan import Evaluated, EvaluatorPlan, InitialModel
from pausefl.runtime.evaluator.rehearsal import rehearsed_evaluator
from pausefl.runtime.evaluator.transport import EvaluatorServer, RemoteEvaluator
from pausefl.runtime.forks import spawned
from pausefl.runtime.processes.environment import one_order_of_sets
from pausefl.runtime.processes.lifetime import die_with_parent, ignore_interrupts, start
from pausefl.runtime.processes.waits import run_telling_waits
from pausefl_process.ending import DRAIN_S, asking_to_end, end_within
from pausefl_process.events import Failed, MetricsServed, Notice, Ready, Report
from pausefl_process.health import health_routes
from pausefl_process.http_server import WebServer
from pausefl_proto.addresses import is_loopback
from pausefl_proto.errors import ConfigError, EvaluatorLost, EvaluatorStuck, PauseflError
from pausefl_proto.wire import Vector

_NICENESS = 15
_ENDS_WITHIN_S = 1.0

Say = Callable[[str], None]


def serve_evaluator(plan: EvaluatorPlan, report: Report) -> None:
    """Serve evaluations until SIGTERM, SIGHUP or SIGINT. `report` gets `Ready` and, with metrics, `MetricsServed`.

    ConfigError if the data or model is not available, if it cannot listen, or if other machines could reach it without
    mutual TLS. PauseflError if the model cannot be trained or evaluated.
    """
    where, is_mutual = plan.evaluation, plan.tls is not None and plan.tls.ca
    if not (is_loopback(where.host) or where.insecure or is_mutual):
        raise ConfigError(
            f'evaluation.host = "{where.host}": other machines can reach it; set [tls] with a ca (pausefl certs makes'
            " its files), or say --insecure"
        )
    run_telling_waits(_serve(plan, report, ended_by=(signal.SIGINT, *asking_to_end())))


def find_evaluator(plan: EvaluatorPlan, say: Say) -> AbstractAsyncContextManager["RemoteEvaluator | OwnEvaluator"]:
    """The evaluator at `evaluation.address` for a block, or else one in a child process, which ends with the block.

    `say` receives messages for the user.
    """
    return aclosing(RemoteEvaluator(plan, say) if plan.evaluation.address else OwnEvaluator(plan, say))


class OwnEvaluator:
    """An evaluator in a child process, which is started when it is first needed and restarted when it has died."""

    def __init__(self, plan: EvaluatorPlan, say: Say) -> None:
        here = plan.evaluation.model_copy(update={"host": "127.0.0.1", "port": 0, "metrics_port": -1})
        self._plan = replace(plan, evaluation=here, tls=None)
        self._say = say
        self._process: SpawnProcess | None = None
        self._remote = RemoteEvaluator(self._plan, say)  # of each process in turn, which must evaluate as the first

    async def initial(self) -> InitialModel:
        """The model that a run begins with. PauseflError if the process cannot serve."""
        return await (await self._line()).initial()

    async def evaluate(self, theta: Vector, *, subset: bool, patient: bool) -> Evaluated:
        """θ's evaluations. Raises errors as `pausefl_server.rounds.evaluation.EvaluateModel` says."""
        try:
            return await self._evaluate(theta, subset=subset)
        except EvaluatorLost as error:
            if not patient or isinstance(error, EvaluatorStuck):
                raise
            if self._process is not None:  # its connection may have ended an instant before the process does
                await asyncio.to_thread(self._process.join, _ENDS_WITHIN_S)
            return await self._evaluate(theta, subset=subset)

    async def _evaluate(self, theta: Vector, *, subset: bool) -> Evaluated:
        try:
            return await (await self._line()).evaluate(theta, subset=subset, patient=False)
        except EvaluatorStuck:
            await self.aclose()
            raise
        except PauseflError as error:  # the process cannot be started, or is lost
            raise EvaluatorLost(str(error)) from error

    async def aclose(self) -> None:
        await self._remote.aclose()
        if self._process is not None:
            self._process.kill()
            self._process.join()
        self._process, self._remote.address = None, ""

    async def _line(self) -> RemoteEvaluator:
        if not self._remote.address or self._process is None or not self._process.is_alive():
            await self.aclose()
            self._remote.address = f"127.0.0.1:{await self._start()}"
        return self._remote

    async def _start(self) -> int:
        """Start the process, wait until it listens, and return its port. PauseflError if it reports that it cannot."""
        ours, theirs = multiprocessing.Pipe(duplex=False)
        with ours:
            with theirs:
                process = spawned("pausefl-evaluator", _run_own, self._plan, theirs)
                start(process, **one_order_of_sets())
                self._process = process  # only now: a process that a signal kept from starting cannot be ended
            try:
                while isinstance(event := await asyncio.to_thread(ours.recv), Notice):
                    self._say(event.message)
            except EOFError:
                raise PauseflError("the evaluator's process ended unexpectedly, see server.log") from None
        if isinstance(event, Failed):
            raise (ConfigError if event.bad_input else PauseflError)(event.message)
        assert isinstance(event, Ready)
        return event.port


def _run_own(plan: EvaluatorPlan, events: "Connection[Any, Any]") -> None:
    die_with_parent()
    ignore_interrupts()
    try:
        run_telling_waits(_serve(plan, events.send))
    except PauseflError as error:
        traceback.print_exc()  # into server.log
        events.send(Failed(str(error), isinstance(error, ConfigError)))


async def _serve(plan: EvaluatorPlan, report: Report, ended_by: Sequence[signal.Signals] = ()) -> None:
    """Make the evaluator, and serve it and its metrics until one of the signals comes."""
    evaluator = rehearsed_evaluator(plan.on_own_device(), lambda doubt: report(Notice(doubt)))
    os.nice(_NICENESS)  # only now: round 1 waits for the first model
    server, ended = EvaluatorServer(evaluator, plan), asyncio.Event()

    def end() -> None:
        end_within(DRAIN_S, status=0)  # the thread of an evaluation in progress cannot be interrupted
        ended.set()

    for number in ended_by:
        asyncio.get_running_loop().add_signal_handler(number, end)
    where = plan.evaluation
    with ExitStack() as pages:
        if where.metrics_port >= 0:
            require("client")
            from pausefl_process.exposition import exposition

            probes = health_routes(asyncio.get_running_loop(), str, str)
            routes = {"/metrics": exposition(certificates=[plan.tls]), **probes}
            web = WebServer(where.host, where.metrics_port, routes, key="evaluation.metrics_port")
            pages.enter_context(closing(web))
            report(MetricsServed(f"http://{web.address}/metrics"))
        report(Ready(await server.start(where.host, where.port)))
        await ended.wait()
        await server.stop()
