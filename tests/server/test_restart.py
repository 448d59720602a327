"""What a restart finds again: the last models, of which a torn one is none, and the run."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from pausefl_proto.errors import ConfigError, PauseflError
from pausefl_proto.wire import digest
from pausefl_server.selection.base import Policy
from pausefl_server.selection.policies.everyone import All
from pausefl_server.selection.policies.uniform import Random
from pausefl_server.service import RunResult
from pausefl_server.storage.checkpoint import Checkpoint
from pausefl_server.storage.store import Store
from pausefl_server.storage.store_actor import CommitRound, StoreActor
from rigs.federation import SIZE, clients, federation, log_of, private
from rigs.log import record, theta


async def play(
    folder: Path, rounds: int, names: str = "abc", policy: Policy | None = None, **changes: Any
) -> RunResult:
    """Begin or go on with the run in `folder` until it has so many rounds."""
    privacy = {c: private(folder / "ledgers", c) if changes.get("privacy") else None for c in names}
    try:
        async with (
            federation(folder, policy or Random(2), rounds=rounds, minimum_clients=len(names), **changes) as run,
            clients() as some,
        ):
            for c in names:
                some.start(c, await run.port, privacy=privacy[c])
            return await run.finished()
    finally:
        for p in privacy.values():
            if p is not None:
                p.ledger.close()


def choices_and_models(folder: Path) -> list[tuple[int, tuple[str, ...], str]]:
    return [(r.round, r.chosen, r.model_digest) for r in log_of(folder)]


async def test_a_run_in_two_parts_is_the_run_in_one(tmp_path: Path) -> None:
    whole = await play(tmp_path / "whole", 6)
    for rounds in (2, 3, 6):
        parts = await play(tmp_path / "parts", rounds)
    assert choices_and_models(tmp_path / "parts") == choices_and_models(tmp_path / "whole")
    assert parts.theta.tobytes() == whole.theta.tobytes()
    assert parts.state.table.chosen.tolist() == whole.state.table.chosen.tolist()


async def test_who_was_there_before_a_restart_is_not_taken_to_be_there(tmp_path: Path) -> None:
    """Also if it joined after the last round of the log."""
    async with federation(tmp_path, minimum_clients=3) as run, clients() as some:
        some.start_all("ab", await run.port)
        for _ in range(3):
            await run.event("waiting")
        signal.raise_signal(signal.SIGINT)
        await run.finished()
    await play(tmp_path, 2, names="a", policy=All(1))
    assert [r.chosen for r in log_of(tmp_path)] == [("a",)] * 2


async def test_another_experiment_in_the_same_directory_is_refused(tmp_path: Path) -> None:
    async with federation(tmp_path, minimum_clients=3) as run:
        await run.port
        signal.raise_signal(signal.SIGINT)
        await run.finished()
    with pytest.raises(ConfigError, match="was begun with another initial_digest"):
        async with federation(tmp_path, size=SIZE + 1) as run:
            await run.finished()


@contextmanager
def checkpoint_in(folder: Path, slots: int = 2) -> Iterator[Checkpoint]:
    checkpoint = Checkpoint(folder, slots)
    try:
        yield checkpoint
    finally:
        checkpoint.close()


@pytest.mark.parametrize("slots", [2, 4])
def test_as_many_of_the_last_models_are_there_after_a_restart_as_there_are_slots(tmp_path: Path, slots: int) -> None:
    with checkpoint_in(tmp_path, slots) as checkpoint:
        for t in range(7):
            checkpoint.save(t, theta(t))
    with checkpoint_in(tmp_path, slots) as checkpoint:
        for t in range(7 - slots, 7):
            loaded = checkpoint.load(t, digest(theta(t)))
            assert loaded is not None
            assert loaded.tobytes() == theta(t).tobytes()
        assert checkpoint.load(6 - slots, digest(theta(6 - slots))) is None
        assert checkpoint.load(7, digest(theta(7))) is None


@pytest.mark.parametrize("damage", ["empty", "short", "flipped", "missing"])
def test_a_torn_model_is_not_taken_for_a_whole_one(tmp_path: Path, damage: str) -> None:
    with checkpoint_in(tmp_path) as checkpoint:
        checkpoint.save(1, theta(1.0))
        (path,) = [p for p in tmp_path.iterdir() if p.stat().st_size]
        whole = path.read_bytes()
        match damage:
            case "empty":
                path.write_bytes(b"")
            case "short":
                path.write_bytes(whole[:-6])
            case "flipped":
                path.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
            case "missing":
                path.unlink()
    with checkpoint_in(tmp_path) as checkpoint:
        assert checkpoint.load(1, digest(theta(1.0))) is None


async def test_no_round_is_in_the_log_without_the_model_that_is_kept_of_it(tmp_path: Path) -> None:
    """A kill between the two would leave a model out that `--back-to` is promised."""
    with closing(Store(tmp_path / "run.db")) as store, checkpoint_in(tmp_path) as checkpoint:
        keeper = StoreActor(store, checkpoint, keep_every=1)
        (tmp_path / "round-00000002.f32").mkdir()  # where the model of round 2 cannot be written
        async with asyncio.TaskGroup() as group:
            group.create_task(keeper.run())
            await keeper.ask(CommitRound(record(1), theta(1.0)))
            with pytest.raises(PauseflError, match="log cannot be written"):
                await keeper.ask(CommitRound(record(2), theta(2.0)))
            keeper.stop()
        assert [played.round for played in store.rounds()] == [1]
        assert 1 in checkpoint.kept()
