"""Databases that other programs use too, that were copied, or whose file system has no locks."""

import asyncio
import errno
import fcntl
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from pausefl.experiment.loading import parse_experiment
from pausefl.runtime.client.slots import claimed_clients
from pausefl.runtime.run_dir import made_run_dir
from pausefl_client.privacy.ledger import KEPT_BYTES_MAX, Ledger, ReleaseKey, verified_spend
from pausefl_process import databases
from pausefl_process.files import prepare_folder
from pausefl_proto.budget import Budget
from pausefl_proto.errors import ConfigError, LedgerError
from pausefl_server.storage.checkpoint import Checkpoint
from pausefl_server.storage.store import Store
from pausefl_server.storage.store_actor import CommitRound, StoreActor
from rigs.connections import opened_connections
from rigs.log import record, theta

BUDGET = Budget(10.0, 0.04)
HOLDER = {"unit": "vector", "client_id": "a", "data": "digits"}
EXPERIMENT = parse_experiment('clients.count = 2\nselection.m = 2\nworkload.model = "synthetic"')


@pytest.mark.parametrize("name", ["flock", "lockf"])
def test_a_file_system_without_locks_is_named(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As NFS with nolock, or Lustre without flock: it was an unnamed error, or advice that cost the run."""

    def without_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, name, without_locks)
    folder = tmp_path / "no/such"
    said = r"its file system has no locks \((flock|fcntl): No locks available\); put it on a local disk$"
    for use in (made_run_dir(EXPERIMENT, folder), claimed_clients(["a"], None, 1, folder), ledgers_in(folder)):
        with pytest.raises(ConfigError, match=f"{folder}: {said}"), use:
            pass
    assert not list(tmp_path.iterdir())


@contextmanager
def ledgers_in(folder: Path) -> Iterator[None]:
    prepare_folder(folder, "privacy.ledger_dir")
    yield


def _held(path: Path) -> sqlite3.Connection:
    """Another program's connection, with a transaction that writes."""
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    return other


async def test_another_programs_transaction_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended the run after 5 s."""
    opened = opened_connections(monkeypatch)
    store, checkpoint = Store(tmp_path / "run.db"), Checkpoint(tmp_path / "checkpoints")
    opened[-1].execute("PRAGMA busy_timeout = 20")
    store_actor = StoreActor(store, checkpoint)
    loop, told = asyncio.get_running_loop(), asyncio.Event()
    said: list[str] = []

    def tell(message: str) -> None:
        said.append(message)
        loop.call_soon_threadsafe(told.set)

    store.tell = tell
    with closing(_held(tmp_path / "run.db")) as other:
        writing = asyncio.ensure_future(store_actor.receive(CommitRound(record(1), theta(1.0))))
        await told.wait()
        assert not writing.done()
        other.execute("ROLLBACK")
        await writing
    (message,) = said
    assert "another program is writing to" in message
    assert [r.round for r in store.rounds()] == [1]
    store.close()
    checkpoint.close()


def test_a_lock_that_lasts_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was a traceback, or the advice to restore the log from a copy."""
    monkeypatch.setattr(databases, "_LOCKED_MAX_S", 0.0)
    opened = opened_connections(monkeypatch)
    with closing(Store(tmp_path / "run.db")) as store:
        opened[-1].execute("PRAGMA busy_timeout = 20")
        said = pytest.raises(ConfigError, match=r"run\.db: another program is writing to it .*; close that program$")
        with closing(_held(tmp_path / "run.db")), said:
            store.set_meta("colour", "red")


@pytest.mark.parametrize(
    "code",
    [
        *(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_NOMEM),
        *(sqlite3.SQLITE_IOERR_LOCK, sqlite3.SQLITE_IOERR_SHMLOCK, sqlite3.SQLITE_FULL),
    ],
)
def test_only_a_damaged_log_is_to_be_restored(code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> None:
        error = sqlite3.OperationalError("as SQLite has it")
        error.sqlite_errorcode = code
        raise error

    monkeypatch.setattr(Store, "_open", failing)
    with pytest.raises(ConfigError) as refused:
        Store(tmp_path / "run.db")
    assert "restore" not in str(refused.value)


def test_a_reader_that_lets_the_log_grow_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(databases, "_LOG_BYTES_MAX", 6 << 20)
    said: list[str] = []
    with closing(Store(tmp_path / "run.db")) as store, closing(sqlite3.connect(tmp_path / "run.db")) as reader:
        store.tell = said.append
        for t in range(1, 60):
            if t == 30:
                assert not said, "nobody reads"
                reader.execute("BEGIN")
                reader.execute("SELECT count(*) FROM rounds").fetchone()
            store.commit_round(record(t), optimizer_state=theta(t, 100_000))
    assert said
    assert all("has been reading" in message and "run.db-wal grows" in message for message in said)


def test_files_of_different_times_never_count_fewer_releases_than_one_of_them_holds(tmp_path: Path) -> None:
    """As `tar` or `cp -r` of a live folder may leave them: a newer file beside an older -wal was taken for whole."""
    path = tmp_path / "live/a.db"
    ledger = Ledger(path, BUDGET, **HOLDER)
    copies = []
    for released in range(1, 13):
        key = ReleaseKey("run", released, 1, f"model {released}")
        ledger.record(key, ledger.next_charge(), f"update {released}", memoryview(bytes(KEPT_BYTES_MAX)))
        copies.append(shutil.copytree(path.parent, tmp_path / str(released)) / "a.db")
    ledger.close()
    copies.append(shutil.copytree(path.parent, tmp_path / "closed") / "a.db")
    in_the_file = [_held_alone(each) for each in copies]
    assert len(set(in_the_file)) > 2, "releases were moved from the -wal to the file in between"
    logs = copies[:-1]
    for i, file in enumerate(copies):
        for j, of_log in enumerate(logs):
            for head in (None, of_log, file):
                mixed = tmp_path / "mixed"
                shutil.rmtree(mixed, ignore_errors=True)
                mixed.mkdir()
                shutil.copy(file, mixed)
                shutil.copy(of_log.with_name("a.db-wal"), mixed)
                if head is not None and head.with_name("a.db-head").exists():
                    shutil.copy(head.with_name("a.db-head"), mixed)
                for look in (verified_spend, _opened):
                    with suppress(LedgerError):
                        assert look(mixed / "a.db").released >= max(in_the_file[i], j + 1), (i, j, head)


def _held_alone(path: Path) -> int:
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as db:
        (released,) = db.execute("SELECT count(*) FROM releases").fetchone()
    return int(released)


def _opened(path: Path) -> Ledger:
    with closing(Ledger(path, BUDGET, **HOLDER)) as ledger:
        return ledger
