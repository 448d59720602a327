"""What a restart finds: the run and its last models. Damage is detected, reported in one line, and left as it is."""

import asyncio
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pausefl_process.databases import open_read_only
from pausefl_proto.errors import ConfigError, PauseflError
from pausefl_proto.wire import digest
from pausefl_server.records import Evaluation, LogEvent
from pausefl_server.selection.base import Policy
from pausefl_server.selection.policies.baselines import All, Random
from pausefl_server.service import RunResult
from pausefl_server.storage.checkpoint import Checkpoint
from pausefl_server.storage.store import Store
from pausefl_server.storage.store_actor import StoreActor
from rigs.federation import SIZE, clients, federation, log_of
from rigs.log import ROUNDS, a_round, commit_rounds, theta
from rigs.places import TESTS

COMMITTER = """
import sys
from pathlib import Path
from pausefl_server.records import RoundRecord
from pausefl_server.storage.store import Store
store = Store(Path(sys.argv[1]))
for t in range(1, 10**6):
    store.commit_round(RoundRecord(t, 1, ("a", "b")))
    print(t, flush=True)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A log that was closed."""
    with closing(Store(tmp_path / "run.db")) as store:
        commit_rounds(store)
    return tmp_path / "run.db"


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A log whose writer was killed after at least ten rounds, most of them in the -wal."""
    with subprocess.Popen([sys.executable, "-c", COMMITTER, tmp_path / "run.db"], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        for _ in range(10):
            assert writer.stdout.readline()
        writer.send_signal(signal.SIGKILL)
    return tmp_path / "run.db"


def refusal(path: Path) -> str:
    """The one line with which a log is refused. Its files stay unchanged."""
    before = files(path)
    with pytest.raises(ConfigError) as refused:
        Store(path).close()
    assert files(path) == before
    (line,) = str(refused.value).splitlines()
    assert str(path) in line
    return line


def files(path: Path) -> dict[str, bytes]:
    """The log's files with their contents, without those that any reader leaves: an empty -wal, and shared memory."""
    found = {file.name: file.read_bytes() for file in path.parent.glob("run.db*") if not file.name.endswith("-shm")}
    return {name: data for name, data in found.items() if data}


def contents(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """All rows by table, except the idle pings, which a replay does not use."""
    with closing(sqlite3.connect(path)) as database:
        names = [name for (name,) in database.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        return {name: database.execute(f"SELECT * FROM {name}").fetchall() for name in names if name != "pings"}


@pytest.mark.parametrize("seed", range(20))
def test_flipped_bits_are_found_or_change_nothing(path: Path, seed: int) -> None:
    before, rng = contents(path), random.Random(seed)
    data = bytearray(path.read_bytes())
    for _ in range(rng.choice((1, 1, 1, 40))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    try:
        Store(path).close()
    except ConfigError:
        return
    assert contents(path) == before


@pytest.mark.parametrize("follows", ["a round", "a failed attempt"])
def test_what_the_next_attempt_will_have_to_know_is_sealed_as_well(tmp_path: Path, follows: str) -> None:
    path, later = tmp_path / "run.db", [LogEvent("reconciled", "a", released=7)]
    with closing(Store(path)) as store:
        if follows == "a round":
            store.commit_round(a_round(1), later_events=later)
        else:
            store.commit_round(a_round(1))
            store.save_failed_attempt(replace(a_round(2), observations=()), later_events=later)
        assert store.late_events() == later
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE events SET released = 0 WHERE attempt = 0")
    assert "round 2 is not what was written" in refusal(path)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ("UPDATE observations SET epsilon_spent = 0.5 WHERE round = 7 AND client_id = 'b'", "round 7"),
        ("UPDATE events SET released = 0 WHERE round = 9", "round 9"),
        ("DELETE FROM events WHERE round = 11", "round 11"),
        ("UPDATE rounds SET model_digest = 'other' WHERE round = 10", "round 10"),
        ("DELETE FROM rounds WHERE round = 10", "round 10"),
        ("UPDATE evaluations SET accuracy = 1.0 WHERE round = 2", "evaluations 2"),
        ("DELETE FROM evaluations WHERE round = 3", "evaluations 3"),
        ("INSERT INTO evaluations VALUES (99, 'test', 1, 100, 1.0, 0.0)", "evaluations 99"),
        ("UPDATE optimizer_states SET state = zeroblob(200) WHERE round = 10", "optimizer_states"),
        ("UPDATE meta SET value = '0' WHERE key = 'attempts'", "meta"),
        ("DELETE FROM seals WHERE subject = 'round 5'", "round 5"),
    ],
)
def test_a_changed_row_is_named(path: Path, change: str, found: str) -> None:
    with closing(Store(path)) as store:
        store.set_meta("attempts", '{"99": 2}')
    with closing(sqlite3.connect(path)) as database, database:
        assert database.execute(change).rowcount > 0
    assert f"({found} is not what was written); restore it from a copy" in refusal(path)


def test_a_new_evaluation_neither_reads_nor_seals_those_of_other_rounds(path: Path) -> None:
    with closing(Store(path)) as store:
        with closing(sqlite3.connect(path)) as database, database:
            database.execute("UPDATE evaluations SET accuracy = 1.0 WHERE round = 2")
        store.save_evaluations(11, [Evaluation("test", True, 100, 0.5, 1.0)])
    assert "evaluations 2 is not what was written" in refusal(path)


@pytest.mark.parametrize("content", [b"", b"no database at all", b"\0" * 5000])
def test_half_a_log_or_another_file_is_refused(path: Path, content: bytes) -> None:
    file = path.with_name("other.db") if content else path
    file.write_bytes(content or path.read_bytes()[: path.stat().st_size // 2])
    assert "cannot be used as a run's log" in refusal(file)


def test_a_log_whose_writer_was_killed_is_whole(killed: Path) -> None:
    with closing(Store(killed)) as store:
        assert [r.round for r in store.rounds()] == list(range(1, len(store.rounds()) + 1))
        assert len(store.rounds()) >= 10


@pytest.mark.parametrize("where", [0.1, 0.5, 0.9])
def test_a_flipped_bit_in_the_write_ahead_log_is_missed_commits(killed: Path, where: float) -> None:
    """For SQLite, the log ends at the flipped bit. It would continue as if later commits had never happened."""
    wal = killed.with_name("run.db-wal")
    data = bytearray(wal.read_bytes())
    data[int(where * len(data))] ^= 1
    wal.write_bytes(data)
    assert "commits, which stood in run.db-wal, are lost" in refusal(killed)


def test_a_copy_of_an_earlier_round_takes_the_place_of_all_files(path: Path) -> None:
    shutil.copy(path, path.with_name("copy"))
    store = Store(path)
    with closing(open_read_only(path)) as reader:  # so that the -wal stays
        reader.execute("SELECT * FROM meta").fetchone()
        for t in range(ROUNDS + 1, 4 * ROUNDS):
            store.commit_round(a_round(t))
        store.close()
    shutil.copy(path.with_name("copy"), path)
    path.with_name("run.db-wal").unlink()
    said = refusal(path)
    assert said.endswith("restore it from a copy, and delete run.db-wal and run.db-head unless they are the copy's")
    path.with_name("run.db-head").unlink()
    with closing(Store(path)) as store:
        assert len(store.rounds()) == ROUNDS


def test_what_sqlite_finds_amiss_is_said_in_one_line(path: Path) -> None:
    """Such damage comes from a copy of an earlier round beside a later write-ahead log."""
    with closing(sqlite3.connect(path)) as database:
        (page,) = database.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'pings'").fetchone()
        (size,) = database.execute("PRAGMA page_size").fetchone()
    data = bytearray(path.read_bytes())
    data[(page - 1) * size] = 0
    path.write_bytes(data)
    assert "in database main" in refusal(path)


def test_a_log_that_was_read_while_it_was_closed_misses_its_write_ahead_log(path: Path) -> None:
    """SQLite keeps the log for the reader. Only the commit count tells what is missing when the log is deleted."""
    store = Store(path)
    with closing(open_read_only(path)) as reader:
        reader.execute("SELECT * FROM meta").fetchone()
        store.commit_round(a_round(ROUNDS + 1))
        store.close()
    shutil.copytree(path.parent, path.parent / "whole")
    path.with_name("run.db-wal").unlink()
    assert "its last 1 commits, which stood in run.db-wal, are lost" in refusal(path)
    with closing(Store(path.parent / "whole" / "run.db")) as store:
        assert len(store.rounds()) == ROUNDS + 1
    assert [file.name for file in (path.parent / "whole").iterdir()] == ["run.db"]


def play_killed(program: str, path: Path) -> None:
    """Run a program that kills itself."""
    assert subprocess.run([sys.executable, "-c", program, path], cwd=TESTS, check=False).returncode == -signal.SIGKILL


UNSEALED = """
import os, sys
from pathlib import Path
from pausefl_server.storage.store import Store
Store._seal = lambda *_: os.kill(os.getpid(), 9)
Store(Path(sys.argv[1]))
"""
UNFINISHED = """
import os, sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("PRAGMA cache_size = 1")
db.execute("BEGIN IMMEDIATE")
db.execute("CREATE TABLE begun (text)")
db.executemany("INSERT INTO begun VALUES (?)", [("x" * 200,)] * 2000)
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("begun", [UNSEALED, UNFINISHED])
def test_a_log_that_was_killed_before_its_first_commit_is_begun_anew(tmp_path: Path, begun: str) -> None:
    """SQLite writes a rollback journal only while the database is created, before there is a write-ahead log."""
    play_killed(begun, tmp_path / "run.db")
    assert begun is UNSEALED or (tmp_path / "run.db-journal").stat().st_size > 0
    with closing(Store(tmp_path / "run.db")) as store:
        commit_rounds(store)
    Store(tmp_path / "run.db").close()


@pytest.mark.parametrize("loss", ["deleted", "moved", "replaced"])
async def test_a_log_that_was_taken_away_takes_no_further_round(tmp_path: Path, loss: str) -> None:
    """SQLite would keep writing to the lost file, and the whole run would be lost at its end."""
    folder = tmp_path / "run"
    folder.mkdir()
    store, checkpoint = Store(folder / "run.db"), Checkpoint(folder / "checkpoints")
    store.commit_round(a_round(1))
    if loss == "deleted":
        shutil.rmtree(folder)
    else:
        folder.rename(tmp_path / "elsewhere")
    if loss == "replaced":
        folder.mkdir()
        Store(folder / "run.db").close()
    with pytest.raises(PauseflError, match=r"run's log: cannot be written .*deleted, moved or replaced.*run\.db"):
        await StoreActor(store, checkpoint).receive(lambda store: store.commit_round(a_round(2)))
    store.close()
    checkpoint.close()


async def play(folder: Path, rounds: int, ids: str = "abc", policy: Policy | None = None) -> RunResult:
    """Start or continue the run in `folder` until it has `rounds` rounds."""
    running = federation(folder, policy or Random(2), rounds=rounds, minimum_clients=len(ids))
    async with running as run, clients() as some:
        some.start_all(ids, await run.port)
        return await run.finished()


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
    """This also holds for a client that joined after the log's last round."""
    async with federation(tmp_path, minimum_clients=3) as run, clients() as some:
        some.start_all("ab", await run.port)
        for _ in range(3):
            await run.event("waiting")
        signal.raise_signal(signal.SIGINT)
        await run.finished()
    await play(tmp_path, 2, ids="a", policy=All(1))
    assert [r.chosen for r in log_of(tmp_path)] == [("a",)] * 2


async def test_another_experiment_in_the_same_directory_is_refused(tmp_path: Path) -> None:
    async with federation(tmp_path, minimum_clients=3) as run:
        await run.port
        signal.raise_signal(signal.SIGINT)
        await run.finished()
    with pytest.raises(ConfigError, match="was begun with another initial_digest"):
        async with federation(tmp_path, size=SIZE + 1) as run:
            await run.finished()


@pytest.mark.parametrize("slots", [2, 4])
def test_as_many_of_the_last_models_are_there_after_a_restart_as_there_are_slots(tmp_path: Path, slots: int) -> None:
    """There may be more slots than files may be open, so they are made when they are needed."""
    Checkpoint(tmp_path, 1_000_000).close()
    with closing(Checkpoint(tmp_path, slots)) as checkpoint:
        for t in range(7):
            checkpoint.write(t, theta(t))
    with closing(Checkpoint(tmp_path, slots)) as checkpoint:
        for t in range(7 - slots, 7):
            np.testing.assert_array_equal(checkpoint.load(t, digest(theta(t))), theta(t), strict=True)
        assert checkpoint.load(6 - slots, digest(theta(6 - slots))) is None
        assert checkpoint.load(7, digest(theta(7))) is None


@pytest.mark.parametrize("damage", ["empty", "short", "flipped", "missing"])
def test_a_torn_model_is_not_taken_for_a_whole_one(tmp_path: Path, damage: str) -> None:
    with closing(Checkpoint(tmp_path)) as checkpoint:
        checkpoint.write(1, theta(1.0))
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
    with closing(Checkpoint(tmp_path)) as checkpoint:
        assert checkpoint.load(1, digest(theta(1.0))) is None


async def test_no_round_is_in_the_log_without_the_model_that_is_kept_of_it(tmp_path: Path) -> None:
    """After a kill between the two, a model that `--back-to` promises would be missing."""
    with closing(Store(tmp_path / "run.db")) as store, closing(Checkpoint(tmp_path)) as checkpoint:
        keeper = StoreActor(store, checkpoint, keep_every=1)
        (tmp_path / "round-00000002.f32").mkdir()  # so that the model of round 2 cannot be written
        async with asyncio.TaskGroup() as group:
            group.create_task(keeper.run())
            await keeper.commit_round(a_round(1), theta(1.0))
            with pytest.raises(PauseflError, match="log: cannot be written"):
                await keeper.commit_round(a_round(2), theta(2.0))
            keeper.stop()
        assert [played.round for played in store.rounds()] == [1]
        assert 1 in checkpoint.kept()
