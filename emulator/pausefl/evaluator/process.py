"""The evaluator in a process of its own, so that an evaluation never takes time from a round: as a service that
outlives runs, or started by the server."""

import asyncio
import multiprocessing
import os
import signal
import traceback
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

from pausefl.config.client_records import method_of, tls_of, training_of
from pausefl.config.experiment import Experiment
from pausefl.evaluator.transport import EvaluatorServer, RemoteEvaluator
from pausefl_process.events import Failed, ProgressEvent, Ready, Report
from pausefl_process.http_server import is_loopback
from pausefl_process.lifetime import die_with_parent, ignore_interrupts
from pausefl_proto.errors import ConfigError, EvaluatorLost, PauseflError
from pausefl_proto.tls import Tls
from pausefl_proto.wire import Manifest, Vector
from pausefl_server.records import Evaluation

_NICENESS = 15

Say = Callable[[str], None]


def serve_evaluator(experiment: Experiment, report: Report) -> None:
    """Serve evaluations until SIGTERM or SIGINT. `report` gets one event, `Ready`.

    ConfigError when its data or model cannot be had, or it cannot listen; PauseflError when the model cannot be
    trained or evaluated.
    """
    where, tls = experiment.evaluation, tls_of(experiment.tls)
    if not (is_loopback(where.host) or where.insecure or (tls and tls.ca)):
        raise ConfigError(
            f'evaluation.host = "{where.host}": other machines can reach it; set [tls] with a ca (pausefl certs makes'
            " its files), or say --insecure"
        )
    ended_by = (signal.SIGINT, signal.SIGTERM)
    asyncio.run(_serve(experiment, where.host, where.port, tls, report, ended_by))


@asynccontextmanager
async def find_evaluator(experiment: Experiment, say: Say) -> AsyncIterator["RemoteEvaluator | OwnEvaluator"]:
    """The evaluator the experiment names, or one that is started here and ends with the block.

    `say` is told what a person should read. ConfigError when a file for TLS is wrong.
    """
    address = experiment.evaluation.address
    remote = _line_to(address, experiment, tls_of(experiment.tls), say) if address else None
    evaluator = remote or OwnEvaluator(experiment, say)
    try:
        yield evaluator
    finally:
        await evaluator.close()


class OwnEvaluator:
    """An evaluator in a child process of this one; started when it is first needed, and again when it has died."""

    def __init__(self, experiment: Experiment, say: Say) -> None:
        self._experiment = experiment
        self._say = say
        self._process: SpawnProcess | None = None
        self._remote: RemoteEvaluator | None = None

    async def initial(self) -> tuple[Manifest, Vector]:
        """What θ's values mean, and θ_0; PauseflError when the process cannot serve."""
        return await (await self._line()).initial()

    async def evaluate(self, theta: Vector, *, subset: bool, patient: bool) -> tuple[Evaluation, ...]:
        """θ's evaluations, as `pausefl_server.rounds.evaluation.EvaluateModel` says."""
        try:
            line = await self._line()
        except PauseflError as error:
            raise EvaluatorLost(str(error)) from error
        return await line.evaluate(theta, subset=subset, patient=patient)

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
            self._remote = _line_to(f"127.0.0.1:{await self._start()}", self._experiment, None, self._say)
        return self._remote

    async def _start(self) -> int:
        """Start the process and wait for it; its port. PauseflError as it says why it cannot serve."""
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe(duplex=False)
        with ours:
            with theirs:
                arguments = (self._experiment, theirs)
                self._process = context.Process(target=_run_own, args=arguments, name="pausefl-evaluator")
                self._process.start()
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


def _line_to(address: str, experiment: Experiment, tls: Tls | None, say: Say) -> RemoteEvaluator:
    patience_s = experiment.evaluation.connect_timeout_s
    return RemoteEvaluator(address, experiment.evaluated_workload, tls, patience_s, say)


def _run_own(experiment: Experiment, events: "Connection[Any, Any]") -> None:
    """The main function of the process a server has started."""
    die_with_parent()
    ignore_interrupts()
    try:
        asyncio.run(_serve(experiment, "127.0.0.1", 0, None, events.send))
    except PauseflError as error:
        traceback.print_exc()  # into server.log
        events.send(Failed(str(error), isinstance(error, ConfigError)))


async def _serve(
    experiment: Experiment,
    host: str,
    port: int,
    tls: Tls | None,
    report: Report,
    ended_by: Sequence[signal.Signals] = (),
) -> None:
    """Make the evaluator, listen, and serve until one of the signals comes."""
    if experiment.workload.model == "synthetic":
        raise ConfigError('workload.model = "synthetic": learns nothing that an evaluator could evaluate')
    try:  # here and not above: a server that imports this module needs no torch
        import torch

        from pausefl.evaluator.model import Evaluator
        from pausefl.evaluator.rehearsal import told_in_one_line
    except ImportError as error:
        needs = 'an evaluator needs pip install "pausefl[client]"; a server may use one elsewhere, evaluation.address'
        raise ConfigError(f"{needs} ({error})") from error

    os.nice(_NICENESS)
    torch.set_num_threads(1)
    w = experiment.workload
    with told_in_one_line(w, "making the model and its data"):
        evaluator = Evaluator(
            w.dataset,
            w.model,
            seed=experiment.experiment.seed,
            device=w.device,
            subset_examples=experiment.evaluation.subset,
        )
    with told_in_one_line(w, "one training step and one evaluation before round 1"):
        evaluator.rehearse(training_of(w), method_of(w))
    server, ended = EvaluatorServer(evaluator, experiment.evaluated_workload, tls), asyncio.Event()
    for number in ended_by:
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    report(Ready(await server.start(host, port)))
    await ended.wait()
    await server.stop()
