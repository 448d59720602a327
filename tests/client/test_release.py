"""What leaves a client, and what must be on its disk before: the real session, trainer and ledger, on a stream in
memory."""

import asyncio
import resource
import shutil
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import numpy as np
import pytest

from pausefl_client.link import Link
from pausefl_client.privacy.ledger import KEPT_BYTES_MAX, Ledger, ReleaseKey
from pausefl_client.privacy.mechanism import ExactLaplace, Mechanism, NumpyLaplace, entropy_rng
from pausefl_client.privacy.release import ReleasePrivacy, Releaser, schedule_key
from pausefl_client.session import ClientSession
from pausefl_client.session_settings import ClientSettings, HostResources
from pausefl_client.training.synthetic import SyntheticTrainer
from pausefl_proto.budget import Budget
from pausefl_proto.errors import ConfigError, LedgerError, PauseflError
from pausefl_proto.v1 import federation_pb2 as pb
from pausefl_proto.wire import Vector, digest, pack_job, unpack

D = 100
BUDGET = Budget(10.0, 0.04)
MECHANISM = Mechanism("coordinate", 0.002)
SCHEDULE = schedule_key(BUDGET, MECHANISM, "laplace")
THETA = np.zeros(D, np.float32)
KEY = ReleaseKey("run", 1, 1, "model")


def open_ledger(folder: Path, budget: Budget = BUDGET) -> Ledger:
    return Ledger(folder / "a.db", budget, unit="coordinate", client_id="a", data="synthetic")


@contextmanager
def releasing(folder: Path, budget: Budget = BUDGET) -> Iterator[Releaser]:
    ledger = open_ledger(folder, budget)
    yield Releaser(ReleasePrivacy(MECHANISM, ledger, lambda _: NumpyLaplace(entropy_rng())))
    ledger.close()


def is_clipped_and_noised(released: Vector) -> bool:
    return released.shape == (D,) and np.unique(released).size == D and bool(np.abs(released).max() > MECHANISM.clip)


class Wire:
    """A stream whose server end is a test: it reads what the client sent and says what the server would."""

    def __init__(self) -> None:
        self.to_client: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.from_client: asyncio.Queue[bytes] = asyncio.Queue()
        self.before_write: Callable[[pb.ClientMessage], None] = lambda _: None

    async def read(self) -> bytes | None:
        return await self.to_client.get()

    async def write(self, message: bytes) -> None:
        self.before_write(pb.ClientMessage.FromString(unpack(message)[0]))
        self.from_client.put_nowait(message)

    async def sent(self) -> bytes:
        """The next message of the client; TimeoutError, rather than a test that hangs, when it has died."""
        return await asyncio.wait_for(self.from_client.get(), 20)

    async def welcome(self) -> pb.Hello:
        hello = pb.ClientMessage.FromString(await self.sent()).hello
        welcome = pb.Welcome(protocol_version=1, run_id="run")
        self.to_client.put_nowait(pb.ServerMessage(welcome=welcome).SerializeToString())
        return hello

    async def ask(self, round: int, schedule: str = SCHEDULE) -> tuple[pb.Result, Vector]:
        for message in pack_job(round, 1, THETA, digest(THETA), schedule):
            self.to_client.put_nowait(message)
        header, payload = unpack(await self.sent())
        return pb.ClientMessage.FromString(header).result, np.frombuffer(bytes(payload), "<f4")

    def acknowledge(self, round: int) -> None:
        self.to_client.put_nowait(pb.ServerMessage(ack=pb.Ack(round=round, attempt=1)).SerializeToString())

    def dismiss(self) -> None:
        self.to_client.put_nowait(pb.ServerMessage(goodbye=pb.Goodbye(reason="done", final=True)).SerializeToString())


@asynccontextmanager
async def session(folder: Path, wires: list[Wire], budget: Budget = BUDGET) -> AsyncIterator[None]:
    """A client that takes these wires one after the other, each when the one before has ended."""
    left = iter(wires)

    @asynccontextmanager
    async def connect() -> AsyncIterator[Wire]:
        yield next(left)

    with ExitStack() as stack, ThreadPoolExecutor(1) as executor:
        releaser = stack.enter_context(releasing(folder, budget))
        settings = ClientSettings("a", SCHEDULE, retry_every_s=0.0)
        trainer = SyntheticTrainer(D, seed=1, client_id="a")
        host = HostResources(executor)
        client = asyncio.create_task(ClientSession(settings, trainer, releaser, Link(), connect, host).run())
        yield
        wires[-1].dismiss()
        assert await client == "done"


def test_a_release_is_clipped_noised_charged_and_kept(tmp_path: Path) -> None:
    with releasing(tmp_path) as releaser:
        released = releaser.release(np.full(D, 7.0, np.float32), KEY)
        assert is_clipped_and_noised(released.vector)
        assert released.digest == digest(released.vector)
        kept = releaser.ledger.open_release()  # type: ignore[union-attr]
    assert kept is not None
    assert kept.noised == released.vector.tobytes()
    assert kept.charge == released.charge


def test_after_a_crash_without_bytes_the_release_is_written_off_and_charged(tmp_path: Path) -> None:
    many = np.ones(KEPT_BYTES_MAX // 4 + 1, np.float32)
    with releasing(tmp_path) as releaser:
        releaser.release(many, KEY)
    with releasing(tmp_path) as releaser:
        with pytest.raises(PauseflError, match="its bytes are gone: written off"):
            releaser.recall(KEY)
        assert releaser.ledger.epsilon_spent == BUDGET.spent(1)  # type: ignore[union-attr]


def test_bytes_that_were_swapped_on_disk_are_not_sent(tmp_path: Path) -> None:
    with releasing(tmp_path) as releaser:
        releaser.release(np.ones(D, np.float32), KEY)
    db = sqlite3.connect(tmp_path / "a.db")
    db.execute("UPDATE kept SET noised = ?", (np.ones(D, np.float32).tobytes(),))
    db.commit()
    db.close()
    with releasing(tmp_path) as releaser, pytest.raises(LedgerError, match="are not those it charged"):
        releaser.recall(KEY)


def test_a_ledger_that_outlives_a_run_goes_on_counting(tmp_path: Path) -> None:
    """Two experiments on the same data, whose rounds and models may even be called the same."""
    for run_id, i in (("one", 1), ("two", 2)):
        with releasing(tmp_path) as releaser:
            key = ReleaseKey(run_id, 1, 1, "model")
            assert releaser.recall(key) is None
            charge = releaser.release(np.ones(D, np.float32), key).charge
            assert charge is not None
            assert (charge.participation, charge.epsilon) == (i, BUDGET.epsilon(i))


async def test_nothing_is_written_to_the_stream_before_the_ledger_has_it(tmp_path: Path) -> None:
    """At the first byte of every update, the ledger's files as a crash would leave them already tell of it."""
    seen = []

    def look_at_the_disk(message: pb.ClientMessage) -> None:
        if message.WhichOneof("kind") != "result":
            return
        for file in (tmp_path / "ledger").iterdir():
            shutil.copy(file, tmp_path / file.name)
        db = sqlite3.connect(tmp_path / "a.db")
        seen.extend(db.execute("SELECT participation, update_digest FROM releases ORDER BY 1 DESC LIMIT 1").fetchall())
        db.close()
        assert seen[-1] == (message.result.release.participation, message.result.update.digest)

    wire = Wire()
    wire.before_write = look_at_the_disk
    async with session(tmp_path / "ledger", [wire]):
        await wire.welcome()
        for round_ in (1, 2, 3):
            result, update = await wire.ask(round_)
            assert result.update.digest == digest(update)
            wire.acknowledge(round_)
    assert [i for i, _ in seen] == [1, 2, 3]


async def test_a_restarted_client_sends_the_bytes_it_kept(tmp_path: Path) -> None:
    answers = []
    for _ in range(2):
        wire = Wire()
        async with session(tmp_path, [wire]):
            await wire.welcome()
            answers.append(await wire.ask(1))
    (first, update), (second, again) = answers
    assert np.array_equal(update, again)
    assert first.release == second.release


async def test_an_acknowledged_round_asked_for_once_more_is_refused(tmp_path: Path) -> None:
    wire = Wire()
    async with session(tmp_path, [wire]):
        await wire.welcome()
        await wire.ask(1)
        wire.acknowledge(1)
        result, update = await wire.ask(1)
        assert result.status == pb.STATUS_FAILED
        assert "written off" in result.reason
        assert update.size == 0


async def test_a_job_under_another_schedule_is_a_mismatch_and_costs_nothing(tmp_path: Path) -> None:
    wire = Wire()
    async with session(tmp_path, [wire]):
        await wire.welcome()
        for schedule in ("", schedule_key(Budget(1e9, 0.04), MECHANISM, "laplace")):
            result, update = await wire.ask(1, schedule)
            assert result.status == pb.STATUS_BUDGET_MISMATCH
            assert "this client agreed to" in result.reason
            assert update.size == 0
        result, _ = await wire.ask(1)
        assert (result.status, result.release.participation) == (pb.STATUS_OK, 1)


async def test_whatever_the_server_asks_the_budget_is_not_passed(tmp_path: Path) -> None:
    wire = Wire()
    async with session(tmp_path, [wire], Budget(10.0, 0.04, BUDGET.epsilon(3))):
        await wire.welcome()
        statuses = [(await wire.ask(round_))[0].status for round_ in range(1, 7)]
    assert statuses == [pb.STATUS_OK] * 3 + [pb.STATUS_BUDGET_EXHAUSTED] * 3
    ledger = open_ledger(tmp_path)
    assert ledger.released == 3
    ledger.close()


async def test_what_the_disk_does_not_take_is_not_sent(tmp_path: Path) -> None:
    wire = Wire()
    async with session(tmp_path, [wire]):
        await wire.welcome()
        await wire.ask(1)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 12, hard))  # the disk is full: no third page in a -wal
        try:
            result, update = await wire.ask(2)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert (result.status, update.size) == (pb.STATUS_FAILED, 0)
        assert result.reason == "its ledger takes no release; its own log says why"
        result, update = await wire.ask(3)
        assert (result.release.participation, update.size) == (2, D)


def test_a_missing_exact_sampler_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opendp.prelude", None)
    with pytest.raises(ConfigError, match=r'privacy\.sampler = "opendp": needs the extra'):
        ExactLaplace()
