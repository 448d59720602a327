"""A client's session: says hello, receives jobs, trains, releases, answers, and reconnects when the stream breaks."""

import asyncio
import contextlib
import logging
from dataclasses import replace

import numpy as np

from pausefl_client.jobs import AnsweredJob, Download, Withdrawals, Work, computed
from pausefl_client.link import Delays, Link
from pausefl_client.privacy.ledger import ReleaseKey
from pausefl_client.privacy.release import Releaser, error_in_general
from pausefl_client.reconnection import Reconnection
from pausefl_client.session_settings import ClientSettings, Connect, HostResources
from pausefl_client.training.trainer import Trainer, TrainingOutcome
from pausefl_client.training.trainer_state import TrainerStates
from pausefl_client.training.withdrawal import Withdrawn, stop_if_withdrawn, withdrawable
from pausefl_process.plugins import OWN_CODE_ERRORS, with_place
from pausefl_proto.errors import BudgetError, ConfigError, DamageError, PauseflError
from pausefl_proto.foreign_text import shown
from pausefl_proto.v1 import federation_pb2 as pb
from pausefl_proto.wire import (
    MOST_ROUNDS,
    NOT_FINITE,
    PROTOCOL_VERSION,
    Assembler,
    MessageStream,
    Vector,
    cut,
    decode,
    encode,
)

log = logging.getLogger("pausefl.client")

FAILED_JOB = "%s: round %d failed: %s"
"""The line logged when a job failed for a reason that the server is not told in full: client, round, reason."""
# An honest server sends one job at a time. Earlier jobs may be withdrawn and not yet answered.
_MOST_WAITING = 4
_LONGEST_RUN_ID = 300  # characters: a folder's name and a unique suffix. Each row of a ledger holds the id
# After a write has failed, the session still waits this long for a goodbye that the server may have sent.
_LAST_WORDS_S = 1.0


class NotFiniteError(PauseflError):
    """A training's update has values that are not finite. Its job is refused before anything is charged."""


class Dismissed(PauseflError):
    """The server sent a final goodbye, or plays another run. The message is the reason."""


class ClientSession:
    """One client's session: its stream, trainer and releases. `run` returns when the client stops taking part."""

    def __init__(
        self,
        settings: ClientSettings,
        trainer: Trainer,
        releaser: Releaser,
        link: Link,
        connect: Connect,
        host: HostResources,
        states: TrainerStates | None = None,
    ) -> None:
        """`states` saves the trainer's state to disk. With None, a restart of the client loses that state."""
        self._settings = settings
        self._trainer = trainer
        self._states = states
        self._releaser = releaser
        self._link = link
        self._connect = connect
        self._host = host
        self._clock = host.monitor.clock
        self._run_id = ""
        # The work for one key: under way, or released but not yet acknowledged. It outlives the stream of its job. If
        # the server asks for the same key again, the client sends the same bytes.
        self._kept: tuple[ReleaseKey, asyncio.Future[Work]] | None = None
        self._working: tuple[ReleaseKey, asyncio.Future[Work]] | None = None  # what began last; it may be under way
        self._withdrawals = Withdrawals()
        self._writing = asyncio.Lock()
        self._last_job_s = self._clock()  # when the job that was answered last had arrived
        self._held_from_s = self._held_until_s = 0.0  # when the link held the last update back
        self.is_connected = False
        """Whether the client has a stream on which the server has welcomed it."""

    @property
    def run_name(self) -> str:
        """The run's name at the server: its id without the unique suffix. Empty before the first welcome."""
        return self._run_id.rpartition("-")[0]

    async def run(self) -> str:
        """Take part until the server dismisses this client, and return the server's reason.

        PauseflError if the server cannot be reached for `give_up_after_s`, or refuses this client. At the end, training
        under way is stopped; a release under way is finished.
        """
        try:
            return await self._run()
        finally:
            self._withdrawals.withdraw_all()

    async def _run(self) -> str:
        settings = self._settings
        reconnection = Reconnection(settings.client_id, settings.give_up_after_s, settings.retry_every_s, self._clock)
        while True:
            try:
                async with contextlib.AsyncExitStack() as opened:
                    # If an answer's first bytes were damaged, gRPC can wait forever, even after the connection is gone.
                    async with self._host.hello_turns, asyncio.timeout(self._settings.welcome_within_s):
                        stream = await opened.enter_async_context(self._connect())
                        await self._say_hello(stream)
                    reconnection.connected()
                    self.is_connected = True
                    try:
                        await self._take_part(stream)
                    finally:
                        self.is_connected = False
                        reconnection.disconnected()
            except Dismissed as goodbye:
                return str(goodbye)
            except DamageError as damage:
                reconnection.damaged(damage)
            except (OSError, ConfigError) as error:
                reconnection.failed(error)
            await reconnection.wait()

    async def _say_hello(self, stream: MessageStream) -> None:
        ledger = self._releaser.ledger
        hello = pb.Hello(
            protocol_version=PROTOCOL_VERSION,
            client_id=self._settings.client_id,
            n_examples=self._trainer.n_examples,
            manifest=self._trainer.manifest.to_message(),
            agreement=self._settings.agreement,
            run_id=self._settings.run_id,
            own_code=self._settings.own_code,
        )
        if ledger is not None:
            hello.ledger.MergeFrom(pb.Ledger(schedule=self._settings.schedule, at_work=pb.Work()))
            if self._working is not None and not self._working[1].done():
                job = self._working[0]
                hello.ledger.at_work.MergeFrom(pb.Work(round=job.round, attempt=job.attempt))
            # Not earlier: a job that is charged in between counts twice, not never.
            hello.ledger.released, hello.ledger.epsilon_spent = ledger.spent
        await stream.write(encode(pb.ClientMessage(hello=hello)))
        data = await stream.read()
        if data is None:
            raise OSError("the server closed the stream instead of a welcome")
        message, _ = decode(pb.ServerMessage, data)
        match message.WhichOneof("kind"):
            case "welcome" if (version := message.welcome.protocol_version) != PROTOCOL_VERSION:
                raise OSError(f"it speaks protocol version {version}, this client {PROTOCOL_VERSION}")
            case "welcome" if len(run_id := message.welcome.run_id) > _LONGEST_RUN_ID or not run_id.isprintable():
                raise OSError(f"its name of the run has {len(run_id)} characters, or some that are not printable")
            case "welcome" if self._settings.run_id not in ("", message.welcome.run_id):
                raise Dismissed("the server plays another run")
            case "welcome":
                self._run_id = message.welcome.run_id
            case "goodbye" if message.goodbye.final:
                raise PauseflError(f"the server refuses {self._settings.client_id}: {shown(message.goodbye.reason)}")
            case "goodbye":
                raise OSError(shown(message.goodbye.reason))
            case _:
                raise OSError("the server is not ready")

    async def _take_part(self, stream: MessageStream) -> None:
        """Answer jobs in order, and pings at once, until the stream ends. DamageError if a message arrived damaged."""
        # While the queue is full, the session reads no further messages. This bounds the number of models in memory.
        jobs: asyncio.Queue[Download] = asyncio.Queue(_MOST_WAITING)
        worker = asyncio.ensure_future(self._answer_jobs(stream, jobs))
        reader = asyncio.ensure_future(self._read(stream, jobs))
        try:
            await asyncio.wait({worker, reader}, return_when=asyncio.FIRST_COMPLETED)
            error = worker.exception() if worker.done() else None
            if isinstance(error, OSError):
                await asyncio.wait({reader}, timeout=_LAST_WORDS_S)
            elif error is not None:
                raise error
            await (reader if reader.done() else worker)
        finally:
            for task in (worker, reader):
                task.cancel()
            await asyncio.gather(worker, reader, return_exceptions=True)

    async def _read(self, stream: MessageStream, jobs: asyncio.Queue[Download]) -> None:
        """Read and handle messages. Queue each job once its model is complete, or once the job is withdrawn."""
        download: Download | None = None
        while (data := await stream.read()) is not None:
            arrived_s = self._clock()
            message, payload = decode(pb.ServerMessage, data)
            match message.WhichOneof("kind"):
                case "job":
                    frames = Assembler(message.job.model, self._trainer.manifest.size)
                    frames.add(0, payload)
                    download = Download(message.job, frames, arrived_s, arrived_s, self._withdrawals.begin(message.job))
                case "frame" if download is not None:
                    download.frames.add(message.frame.index, payload)
                    download.last_s = arrived_s
                case "ack":
                    kept = self._kept and self._kept[0]
                    if kept is not None and (kept.round, kept.attempt) == (message.ack.round, message.ack.attempt):
                        self._settle()
                case "withdraw":
                    self._withdrawals.withdraw(message.withdraw)
                case "ping":
                    await self._write(stream, pb.ClientMessage(pong=pb.Pong(nonce=message.ping.nonce)))
                case "goodbye" if message.goodbye.final:
                    raise Dismissed(shown(message.goodbye.reason))
                case "goodbye":
                    raise OSError("asked to come back")
            if download is not None and (download.frames.complete or download.withdrawn.is_set()):
                await jobs.put(download)
                download = None

    async def _answer_jobs(self, stream: MessageStream, jobs: asyncio.Queue[Download]) -> None:
        while True:
            download = await jobs.get()
            me, job, kept = self._settings.client_id, download.job, self._kept and self._kept[0]
            # The server has committed all earlier rounds. Not before its turn: a withdrawn job may still be answered.
            if kept is not None and kept.round < job.round and kept.run_id == self._run_id:
                self._settle()
            if (asked := job.schedule) != (agreed := self._settings.schedule):
                reason = f"the job is under {asked!r}, this client agreed to {agreed!r}"
                await self._refuse(stream, job, pb.STATUS_BUDGET_MISMATCH, reason)
                continue
            try:
                with self._host.monitor.watching(), self._host.expecting(me, job.round, job.model.digest):
                    await self._answer(stream, download)
            except Withdrawn:
                await self._refuse(stream, job, pb.STATUS_WITHDRAWN, "")
            except (DamageError, OSError):
                raise  # the stream is of no use any more
            except OWN_CODE_ERRORS as error:
                status = pb.STATUS_BUDGET_EXHAUSTED if isinstance(error, BudgetError) else pb.STATUS_FAILED
                own_status = "not_finite" if isinstance(error, NotFiniteError) else ""
                await self._refuse(stream, job, status, self._in_public(error, job.round), own_status)

    async def _answer(self, stream: MessageStream, download: Download) -> None:
        """Answer one job: hold the model back, do the work, hold the update back, and send it."""
        job, link, first_s = download.job, self._link, download.first_s
        if not 1 <= job.round <= MOST_ROUNDS:
            raise PauseflError(f"round {job.round}: must be from 1 to {MOST_ROUNDS}")
        delays = link.draw(job.round)
        drawn_down_s = await self._hold_model(download, delays)
        if link.mode == "additive":  # an earlier update leaves the link first
            drawn_down_s = max(drawn_down_s, self._held_until_s - max(self._held_from_s, download.last_s))
        started_s = self._clock()
        try:
            work = await self._work(download, started_s)
        except PauseflError:
            raise
        except OWN_CODE_ERRORS as error:  # raised by a trainer
            raise PauseflError(with_place(error)) from error
        done_s = self._clock()
        drawn_up_s = await link.hold_update(delays, first_s, done_s, work.released.vector.nbytes, self._clock)
        self._held_from_s, self._held_until_s = done_s, done_s + drawn_up_s
        timing = pb.Timing(
            download_s=download.last_s - download.first_s,
            injected_down_s=started_s - download.last_s,
            # The wait less the thread's own parts is the time to hand the work to the thread and the result back.
            queue_s=max(done_s - started_s - work.train_s - work.privatise_s, work.queue_s),
            train_s=work.train_s,
            privatise_s=work.privatise_s,
            injected_up_s=self._clock() - done_s,
            drawn_down_s=drawn_down_s,
            drawn_up_s=drawn_up_s,
        )
        header, frames = cut(work.released.vector, work.released.digest)
        charge = work.released.charge
        result = pb.Result(
            round=job.round,
            attempt=job.attempt,
            status=pb.STATUS_OK,
            timing=timing,
            release=None if charge is None else pb.Release(**vars(charge)),
            loss=work.loss,
            statistics=self._settings.statistics,
            update=header,
            resent=work.is_resent,
            host=self._host_since(download.first_s, done_s - started_s),
        )
        await self._write(stream, pb.ClientMessage(result=result), frames[0])
        for index, frame in enumerate(frames[1:], 1):
            message = pb.Frame(index=index)
            if index == len(frames) - 1:
                message.host.CopyFrom(self._host_since(download.first_s, done_s - started_s))
            await self._write(stream, pb.ClientMessage(frame=message), frame)
        self._last_job_s = download.first_s
        self._host.on_answered(AnsweredJob(self._settings.client_id, "resent" if work.is_resent else "ok", result))

    def _host_since(self, first_s: float, compute_s: float) -> pb.Host:
        """How well this host has kept time since the job's first frame, and how long it stood still before that."""
        report = self._host.monitor.report(first_s, compute_s)
        return pb.Host(**vars(report), still_before_s=self._host.monitor.stood_still_s(self._last_job_s, first_s))

    async def _hold_model(self, download: Download, delays: Delays) -> float:
        """Hold the model back, and return the seconds drawn. Raises Withdrawn unless the update is already released."""
        job = download.job
        try:
            if download.withdrawn.is_set():
                raise Withdrawn("the job was withdrawn")
            if self._link.lets_pass(delays):
                return 0.0
            times = download.first_s, download.last_s, job.model.size_bytes, self._clock
            return await download.withdrawn.guard(self._link.hold_model(delays, *times))
        except Withdrawn:
            if not await self._is_released(self._key_of(job)):
                raise
            return delays.down_s

    async def _is_released(self, key: ReleaseKey) -> bool:
        """Whether work on a broken stream, or before a crash, ended with a release. It is charged, so it is sent."""
        if (kept := self._kept) is None or kept[0] != key:  # an earlier process may have released it
            ledger = self._releaser.ledger if self._working is None or self._working[1].done() else None
            return ledger is not None and ledger.has_answered(key)
        await asyncio.wait([kept[1]])
        return self._kept is kept and not kept[1].cancelled() and kept[1].exception() is None

    def _key_of(self, job: pb.Job) -> ReleaseKey:
        return ReleaseKey(self._run_id, job.round, job.attempt, job.model.digest)

    async def _work(self, download: Download, submitted_s: float) -> Work:
        """Train and release in the trainer's thread. For a key already released, return the same bytes again."""
        key = self._key_of(download.job)
        if self._kept is not None and self._kept[0] == key:
            # The work's times belong to the earlier exchange. In this exchange, the rest of the work is a wait.
            with contextlib.suppress(Withdrawn):  # the job was withdrawn then, and has been sent again since
                work = await asyncio.shield(self._kept[1])
                return Work(work.released, work.loss, is_resent=True)
        if self._working is not None and not self._working[1].done():
            # Work of a job whose stream broke. Only one thread at a time may use the trainer, its state and the ledger.
            await download.withdrawn.guard(asyncio.wait([self._working[1]]))
        future = computed(self._host.executor, self._compute, download, key, submitted_s)
        self._kept = self._working = key, future
        if future.done():  # return at once: an await would cost turns of the event loop
            self._forget_damaged(future)
            return future.result()
        future.add_done_callback(self._forget_damaged)
        return await asyncio.shield(future)

    def _compute(self, download: Download, key: ReleaseKey, submitted_s: float) -> Work:
        started_s = self._clock()
        if (kept := self._releaser.recall(key)) is not None:
            return Work(kept, None, started_s - submitted_s, privatise_s=self._clock() - started_s, is_resent=True)
        theta: Vector = download.frames.finish(check_finite=False)
        if self._states is not None:
            self._states.recall(key)
        outcome = self._train(theta, download, key)
        trained_s = self._clock()
        released = self._releaser.release(outcome.update, key)
        loss = outcome.loss if self._settings.discloses_loss else None
        return Work(released, loss, started_s - submitted_s, trained_s - started_s, self._clock() - trained_s)

    def _train(self, theta: Vector, download: Download, key: ReleaseKey) -> TrainingOutcome:
        """Train, and return the outcome. If training is withdrawn or fails, restore the trainer's earlier state.

        After this function, a withdrawal no longer stops the job: its update is charged and sent.
        """
        try:
            with withdrawable(download.withdrawn):
                stop_if_withdrawn()
                outcome = self._trainer.train(theta, round=key.round)
                stop_if_withdrawn()
            update = np.ascontiguousarray(outcome.update, np.float32)
            if update.shape != (size := self._trainer.manifest.size,):
                raise PauseflError(f"its trainer's update has shape {update.shape}, must be ({size},)")
            outcome = replace(outcome, update=update)
            if not np.isfinite(update).all():
                raise NotFiniteError(f"its update {NOT_FINITE}; its examples, or the learning rate, may be why")
            if self._states is not None:
                self._states.keep(key)  # before the release: after a crash, a release is sent again, not trained again
        except BaseException:  # the state of a failed training is dropped, as a restart would drop it
            if self._states is not None:
                self._states.undo()
            raise
        return outcome

    def _forget_damaged(self, work: "asyncio.Future[Work]") -> None:
        """Forget work that failed on a damaged model, so that the same job is computed anew when it is sent again."""
        is_damaged = not work.cancelled() and isinstance(work.exception(), DamageError)
        if is_damaged and self._kept is not None and self._kept[1] is work:
            self._kept = None

    def _settle(self) -> None:
        """Drop the kept bytes, here and on the disk: the server no longer needs them."""
        if self._kept is not None and self._kept[1].done():
            self._releaser.settle()
        self._kept = None

    async def _refuse(
        self, stream: MessageStream, job: pb.Job, status: pb.Status.ValueType, reason: str, own_status: str = ""
    ) -> None:
        """Answer a job without an update. This client's own metrics count `own_status` if given, else `status`."""
        result = pb.Result(round=job.round, attempt=job.attempt, status=status, reason=shown(reason))
        await self._write(stream, pb.ClientMessage(result=result))
        name = own_status or pb.Status.Name(status).removeprefix("STATUS_").lower()
        self._host.on_answered(AnsweredJob(self._settings.client_id, name, result))

    def _in_public(self, error: BaseException, round: int) -> str:
        """The text of an error for the server. A private run leaves out the error's own words, which may hold data."""
        is_ours, is_private = isinstance(error, PauseflError), self._releaser.ledger is not None
        said, cause = (str(error), error.__cause__) if is_ours else (with_place(error), error)
        who = {"client_id": self._settings.client_id, "round": round}
        if isinstance(error, BudgetError):  # no failure: every client's budget ends at some time
            log.info("%s: round %d: %s", *who.values(), said, extra=who)
        elif is_private or cause is not None or isinstance(error, NotFiniteError):
            log.warning(FAILED_JOB, *who.values(), said, exc_info=cause, extra=who)
        return error_in_general(error) if is_private else said

    async def _write(self, stream: MessageStream, message: pb.ClientMessage, payload: memoryview | None = None) -> None:
        async with self._writing:  # a pong may be sent between two frames
            await stream.write(encode(message, payload))
