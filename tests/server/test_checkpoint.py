"""The checkpoint: the last models survive a restart, and a torn one is not taken for a whole one."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pausefl_proto.errors import PauseflError
from pausefl_proto.wire import digest
from pausefl_server.storage.checkpoint import Checkpoint
from pausefl_server.storage.store import Store
from pausefl_server.storage.store_actor import CommitRound, StoreActor
from rigs.log import record, theta


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
    store = Store(tmp_path / "run.db")
    with checkpoint_in(tmp_path) as checkpoint:
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
    store.close()
