"""A client's session with a fake trainer and a clock that stands still. The test plays the server."""

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from pausefl_client.data.holdings import synthetic_holding
from pausefl_client.jobs import AnsweredJob
from pausefl_client.link import Delays, DrawDelays, Link
from pausefl_client.privacy.ledger import Ledger, ReleaseKey
from pausefl_client.privacy.mechanism import Mechanism, NumpyLaplace
from pausefl_client.privacy.release import ReleasePrivacy, Releaser
from pausefl_client.session import ClientSession
from pausefl_client.session_settings import ClientSettings, HostResources
from pausefl_client.training.trainer import PacedTrainer, TrainingOutcome
from pausefl_client.training.trainer_state import TrainerStates
from pausefl_process.host_monitor import HostWatch
from pausefl_proto.budget import Budget
from pausefl_proto.errors import PauseflError
from pausefl_proto.v1 import federation_pb2 as pb
from pausefl_proto.wire import PROTOCOL_VERSION, Assembler, Manifest, TensorSpec, Vector, digest, pack_job, unpack
from rigs.clock import Clock, FakeStream
from rigs.databases import open_ledger

SCHEDULE = "what both agreed to"
BUDGET = Budget(epsilon_budget=10.0, eta=0.5)


class FakeTrainer:
    """Answers with a random vector. Training takes `train_s` on the clock and waits for `gate`."""

    n_examples = 42
    label_counts: ClassVar[dict[str, float]] = {}
    holding = synthetic_holding("fake")

    def __init__(self, clock: Clock, size: int = 6, train_s: float = 0.0) -> None:
        self.manifest = Manifest((TensorSpec("w", (size,)),))
        self.gate = threading.Event()
        self.gate.set()
        self.begun = threading.Event()
        self.rounds: list[int] = []
        self.fails_in: dict[int, Exception] = {}
        self.first_value: dict[int, float] = {}
        self._clock = clock
        self._train_s = train_s

    def train(self, theta: Vector, *, round: int) -> TrainingOutcome:
        self.rounds.append(round)
        self.begun.set()
        assert self.gate.wait(30)
        if round in self.fails_in:
            raise self.fails_in[round]
        self._clock.advance(self._train_s)
        update = np.random.default_rng(len(self.rounds)).standard_normal(theta.size, np.float32)
        update[0] = self.first_value.get(round, update[0])
        return TrainingOutcome(update, loss=0.25)

    def state(self) -> bytes:
        return bytes(self.rounds)

    def restore(self, state: bytes) -> None:
        self.rounds = list(state)


class ServerEnd(FakeStream):
    """The server's end of a client's stream."""

    def say(self, **kind: Any) -> None:
        self.give(pb.ServerMessage(**kind).SerializeToString())

    def give_job(self, model: Vector, round: int = 1, schedule: str = "", gap_s: float = 0.0) -> None:
        for i, data in enumerate(pack_job(round, 1, model, digest(model), schedule)):
            self.give(data, gap_s if i else 0.0)

    async def ask(
        self, model: Vector, round: int = 1, schedule: str = "", gap_s: float = 0.0
    ) -> tuple[pb.Result, bytes]:
        """Give a job. Return the result and all bytes of its update."""
        self.give_job(model, round, schedule, gap_s)
        return await self.upload()

    async def refusal(self, model: Vector, round: int = 1, schedule: str = "") -> pb.Result:
        """Give a job. Return the result, which must have no update."""
        self.give_job(model, round, schedule)
        result = (await self.heard()).result
        assert not result.HasField("update"), result
        return result

    async def all_read(self) -> None:
        """Wait until the client has read everything that was sent."""
        self.say(ping=pb.Ping(nonce=5))
        assert (await self.heard()).pong.nonce == 5

    async def heard(self) -> pb.ClientMessage:
        """The client's next message, without its payload."""
        return pb.ClientMessage.FromString(unpack(await self.heard_bytes())[0])

    async def upload(self) -> tuple[pb.Result, bytes]:
        """The client's next result and all bytes of its update."""
        header, payload = unpack(await self.heard_bytes())
        message = pb.ClientMessage.FromString(header)
        assert message.WhichOneof("kind") == "result", message
        frames = Assembler(message.result.update, message.result.update.size_bytes // 4)
        frames.add(0, payload)
        while not frames.complete:
            header, payload = unpack(await self.heard_bytes())
            frame = pb.ClientMessage.FromString(header).frame
            frames.add(frame.index, payload)
            assert frame.HasField("host") == frames.complete, "the host's report covers the upload"
        return message.result, frames.finish(check_finite=True).tobytes()


class FakeServer:
    """Gives the test the server's end of every connection that the client opens."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._streams: asyncio.Queue[ServerEnd] = asyncio.Queue()
        self.opened = self.closed = 0
        self.unreachable = False
        self.silence_s = 1.0
        """How long each connection attempt takes on the clock while the server is unreachable."""
        self.failure: Exception = OSError("nobody answers")
        self.says_at_once: Sequence[Mapping[str, Any]] = ()
        """Messages sent at once to every client that connects from now on."""

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[ServerEnd]:
        if self.unreachable:
            self._clock.advance(self.silence_s)
            raise self.failure
        stream = ServerEnd(self._clock)
        for kind in self.says_at_once:
            stream.say(**kind)
        self._streams.put_nowait(stream)
        self.opened += 1
        try:
            yield stream
        finally:
            self.closed += 1

    async def accept(self) -> ServerEnd:
        async with asyncio.timeout(20):
            return await self._streams.get()

    async def welcome(self, run_id: str = "run") -> ServerEnd:
        """Accept the next stream, keep its hello in `hello`, and welcome it."""
        stream = await self.accept()
        self.hello = (await stream.heard()).hello
        stream.say(welcome=pb.Welcome(protocol_version=PROTOCOL_VERSION, run_id=run_id))
        return stream


class SessionRig:
    """A session. Everything around it is fake except the ledger, which lies in `ledger_in`."""

    def __init__(
        self,
        *,
        size: int = 6,
        train_s: float = 0.0,
        privacy: ReleasePrivacy | None = None,
        ledger_in: Path | None = None,
        delays: DrawDelays = lambda _: Delays(),
        executor: Executor | None = None,
        clock: Clock | None = None,
        discloses_loss: bool = False,
        give_up_after_s: float = 60.0,
        run_id: str = "",
    ) -> None:
        self.clock = clock or Clock()
        if ledger_in:
            privacy = private(ledger_in, self.clock)
        self.privacy = privacy
        self.server = FakeServer(self.clock)
        self.trainer = FakeTrainer(self.clock, size, train_s)
        self.model = np.arange(size, dtype=np.float32)
        self.answered: list[AnsweredJob] = []
        settings = ClientSettings(
            "client-007",
            SCHEDULE if privacy else "",
            discloses_loss=discloses_loss,
            run_id=run_id,
            give_up_after_s=give_up_after_s,
            retry_every_s=0.0,
        )
        self.session = ClientSession(
            settings,
            self.trainer,
            Releaser(privacy),
            Link(delays),
            self.server.connect,
            HostResources(executor, HostWatch(self.clock), self.answered.append),
        )

    @property
    def ledger(self) -> Ledger:
        """The ledger of a private session."""
        assert self.privacy is not None
        return self.privacy.ledger

    def state_time(self, duration_s: float) -> None:
        """Pace training to this duration, from now on."""
        self.session._trainer = PacedTrainer(self.trainer, lambda _: duration_s)

    def keep_states(self, path: Path) -> None:
        """Keep the trainer's state in `path`, from now on."""
        self.session._states = TrainerStates(self.trainer, path)

    @asynccontextmanager
    async def running(self) -> AsyncIterator["asyncio.Task[str]"]:
        """Yield the running session's task. It is cancelled at the end of the block if it still runs."""
        task = asyncio.ensure_future(self.session.run())
        try:
            yield task
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError, PauseflError):
                await task

    @asynccontextmanager
    async def welcomed(self) -> AsyncIterator[ServerEnd]:
        """Yield the stream of a running session after its welcome."""
        async with self.running():
            yield await self.server.welcome()


@asynccontextmanager
async def welcomed(**options: Any) -> AsyncIterator[tuple[SessionRig, ServerEnd]]:
    """Yield a running session, and its stream after the welcome."""
    rig = SessionRig(**options)
    async with rig.welcomed() as stream:
        yield rig, stream


@asynccontextmanager
async def held_back(threads: int = 1, **options: Any) -> AsyncIterator[tuple[SessionRig, ServerEnd]]:
    """Yield the same as `welcomed`, but the trainer runs in a thread and waits for its gate."""
    with ThreadPoolExecutor(threads) as executor:
        rig = SessionRig(executor=executor, **options)
        rig.trainer.gate.clear()
        async with rig.welcomed() as stream:
            yield rig, stream


def private(folder: Path, clock: Clock, budget: Budget = BUDGET, privatise_s: float = 0.0) -> ReleasePrivacy:
    def noise_for(_: ReleaseKey) -> NumpyLaplace:
        clock.advance(privatise_s)
        # Fresh randomness at every call: two answers have the same bytes only if the first was kept.
        return NumpyLaplace(np.random.default_rng())

    return ReleasePrivacy(Mechanism("coordinate", 0.01), open_ledger(folder, "client-007", budget), noise_for)
