"""Logs and ledgers: shared with other programs, copied, without locks or disk space, after errors, and long ones."""

import asyncio
import errno
import fcntl
import json
import shutil
import sqlite3
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import numpy as np
import pytest

from pausefl.experiment.experiment import parse_experiment
from pausefl.experiment.in_force import in_force
from pausefl.results import reading
from pausefl.results.reading import open_database, read_run
from pausefl.results.report import plots
from pausefl.results.report.comparison.figure import draw_why
from pausefl.results.report.html import run_page
from pausefl.results.tally import RunTally
from pausefl.runtime.client.slots import claimed_clients
from pausefl.runtime.run_dir import CAMPAIGN_PLAN, made_run_dir, stored_experiment
from pausefl_client.privacy.ledger import KEPT_BYTES_MAX, Ledger, ReleaseKey, Spent, verified_spend
from pausefl_process import databases
from pausefl_process.files import prepare_folder
from pausefl_proto.budget import Budget
from pausefl_proto.errors import ConfigError, LedgerError, PauseflError
from pausefl_proto.wire import digest
from pausefl_server.records import LogEvent, Observation, RoundRecord, Timing
from pausefl_server.selection.policies.baselines import All
from pausefl_server.storage.checkpoint import Checkpoint
from pausefl_server.storage.restore import StoredModels, restore
from pausefl_server.storage.store import Store
from pausefl_server.storage.store_actor import StoreActor
from rigs.coordinator import SIZE
from rigs.databases import full_disk, opened_connections
from rigs.log import record, theta
from rigs.refusals import refused
from rigs.reports import summary
from rigs.settings import server_settings

BUDGET = Budget(10.0, 0.04)
HOLDER = {"unit": "vector", "client_id": "a", "data": "digits"}
EXPERIMENT = parse_experiment('clients.count = 2\nselection.m = 2\nworkload.model = "synthetic"')


@pytest.mark.parametrize("name", ["flock", "lockf"])
def test_a_file_system_without_locks_is_named(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as Lustre without flock, or NFS without lockd. Once the error named no cause, or its advice cost the run."""

    def without_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, name, without_locks)
    folder = tmp_path / "no/such"
    said = r"its file system has no locks \((flock|fcntl): No locks available\); put it on a local disk$"
    uses: list[Callable[[], object]] = [
        made_run_dir(in_force(EXPERIMENT), folder).__enter__,
        claimed_clients(["a"], None, 1, folder).__enter__,
        lambda: prepare_folder(folder, "privacy.ledger_dir"),
    ]
    for use in uses:
        with pytest.raises(ConfigError, match=f"{folder}: {said}"):
            use()
    assert not list(tmp_path.iterdir())


def _held(path: Path) -> sqlite3.Connection:
    """Another program's connection, in a transaction that writes."""
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    return other


async def test_another_programs_transaction_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once such a transaction ended the run after 5 s."""
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
        writing = asyncio.ensure_future(store_actor.receive(lambda store: store.commit_round(record(1))))
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
    """Once this was a traceback, or the advice to restore the log from a copy."""
    monkeypatch.setattr(databases, "_LOCKED_MAX_S", 0.1)
    opened = opened_connections(monkeypatch)
    told: list[str] = []
    with closing(Store(tmp_path / "run.db")) as store:
        store.tell = told.append
        opened[-1].execute("PRAGMA busy_timeout = 20")
        said = pytest.raises(ConfigError, match=r"run\.db: another program is writing to it .*; close that program$")
        with closing(_held(tmp_path / "run.db")), said:
            store.set_meta("colour", "red")
    assert len(told) <= 1, "however often it was tried"


OF_ITSELF = ["BUSY", "LOCKED", "PROTOCOL", "CANTOPEN", "READONLY", "NOMEM", "FULL"]
OF_THE_DISK = ["IOERR_LOCK", "IOERR_SHMLOCK", "IOERR_SHMSIZE", "IOERR_FSYNC"]


@pytest.mark.parametrize("name", [*OF_ITSELF, *OF_THE_DISK])
def test_only_a_damaged_log_is_to_be_restored(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> None:
        error = sqlite3.OperationalError("as SQLite has it")
        error.sqlite_errorname = f"SQLITE_{name}"
        raise error

    monkeypatch.setattr(Store, "_open", failing)
    with pytest.raises(ConfigError) as refused:
        Store(tmp_path / "run.db")
    assert "restore" not in str(refused.value)


def test_a_log_in_a_folder_that_cannot_be_written_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Store(tmp_path / "run.db").close()
    monkeypatch.setattr("pausefl_process.databases.os.access", lambda *_: False)
    with closing(databases.open_read_only(tmp_path / "run.db")) as database:
        assert database.execute("SELECT count(*) FROM rounds").fetchone() == (0,)
        assert [file.name for file in tmp_path.iterdir()] == ["run.db"], "SQLite could not have made files beside it"
    with closing(Store(tmp_path / "run.db")) as store:  # its writer is at work, and has not moved rounds into the file
        store.commit_round(record(1))
        with closing(databases.open_read_only(tmp_path / "run.db")) as database:
            assert database.execute("SELECT count(*) FROM rounds").fetchone() == (1,)


def test_a_reader_that_lets_the_log_grow_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(databases, "_LOG_BYTES_MAX", 1 << 20)
    said: list[str] = []
    with closing(Store(tmp_path / "run.db")) as store, closing(sqlite3.connect(tmp_path / "run.db")) as reader:
        store.tell = said.append
        for t in range(1, 60):
            if t == 30:
                assert not said, "nobody reads, so SQLite can take in all of the log"
                reader.execute("BEGIN")
                reader.execute("SELECT count(*) FROM rounds").fetchone()
            store.commit_round(record(t), optimizer_state=theta(t, 100_000))
    assert 1 <= len(said) <= 3, "each time the log has doubled"
    assert all("has been reading" in message and "run.db-wal grows" in message for message in said)


def test_files_of_different_times_never_count_fewer_releases_than_one_of_them_holds(tmp_path: Path) -> None:
    """`tar` or `cp -r` of a live folder may copy a newer .db file and an older -wal. This once passed as complete."""
    path = tmp_path / "live/a.db"
    ledger = Ledger(path, BUDGET, **HOLDER)
    copies = []
    for released in range(1, 10):
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


def _opened(path: Path) -> Spent:
    with closing(Ledger(path, BUDGET, **HOLDER)) as ledger:
        return ledger.spent


CLIENTS = tuple(f"client-{k:03}" for k in range(25))
ROUNDS = 50, 150
BYTES_AN_OBSERVATION = 200
"""Some twenty columns of eight bytes each. As Python objects, an observation takes a kilobyte."""
THETA = np.zeros(SIZE, np.float32)


def records(rounds: int) -> Iterator[RoundRecord]:
    joined = tuple(LogEvent("joined", c, n_examples=40) for c in CLIENTS)
    for t in range(1, rounds + 1):
        seen = tuple(
            Observation(c, Timing(0.5 + k / 100, train_s=0.1), 0.5 + k / 100, 40, t, 0.01, 0.01 * t, drawn_up_s=0.3)
            for k, c in enumerate(CLIENTS)
        )
        chosen, events = CLIENTS, joined if t == 1 else ()
        yield RoundRecord(t, 1, chosen, None, seen, events, 1.0, 0.0, float(t), 1e-4, digest(THETA))


@pytest.fixture(scope="module")
def run_dirs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Run directories of the two lengths, `ROUNDS`."""
    return [written(tmp_path_factory.mktemp(f"{rounds}-rounds"), rounds) for rounds in ROUNDS]


def written(run_dir: Path, rounds: int) -> Path:
    with closing(Store(run_dir / "run.db")) as store:
        for record in records(rounds):
            store.commit_round(record)
    with closing(Checkpoint(run_dir / "checkpoints")) as checkpoint:
        checkpoint.write(rounds, THETA)
    (run_dir / "summary.json").write_text(json.dumps(summary(rounds=rounds)))
    (run_dir / "config.toml").write_text('[workload]\nmodel = "synthetic"\n')
    return run_dir


def summarised(run_dir: Path) -> None:
    with closing(Store(run_dir / "run.db", verify=False)) as store:
        tally = RunTally(store.log(), store.log().failed_attempts(), store.late_events())
        assert tally.timing_error_s["p50"] is not None


def reported(run_dir: Path) -> None:
    run = read_run(run_dir)
    figures = {name: draw() for name, draw in plots.drawings(run).items()}
    assert all(figures[name] for name in ("latency", "breakdown", "waterfall", "releases"))
    assert f">1–{run.summary['rounds']}<" in run_page(run, {})


def compared(run_dir: Path) -> None:
    assert draw_why({"pause": [read_run(run_dir)]}) is not None


def resumed(run_dir: Path) -> None:
    with ExitStack() as opened:
        store = opened.enter_context(closing(Store(run_dir / "run.db")))
        checkpoint = opened.enter_context(closing(Checkpoint(run_dir / "checkpoints")))
        settings = server_settings(SIZE, privacy=None, rounds=1000)
        start = restore(settings, All(50), StoredModels(store, checkpoint, THETA), lambda *_: None, say=print)
        assert start.state.table.chosen.min() == start.state.round > 0


def peak_bytes(work: Callable[[Path], None], run_dir: Path) -> int:
    tracemalloc.start()
    try:
        work(run_dir)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("work", [summarised, reported, compared, resumed])
def test_memory_stays(run_dirs: list[Path], work: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "MOST_DOTS", 1000)  # both runs have more
    monkeypatch.setattr(reading, "_ROWS_AT_ONCE", 1000)
    work(run_dirs[0])  # imports and caches of the first call do not count
    least, most = (peak_bytes(work, run_dir) for run_dir in run_dirs)
    observations = (ROUNDS[1] - ROUNDS[0]) * len(CLIENTS)
    assert (most - least) / observations < BYTES_AN_OBSERVATION


def test_a_run_that_fails_leaves_its_logs_alone_and_all_of_it_where_it_may_have_played(tmp_path: Path) -> None:
    """The folder can be used again once the cause is mended."""
    run_dir = tmp_path / "run"
    with pytest.raises(PauseflError, match="no loss"), made_run_dir(in_force(EXPERIMENT), run_dir):
        Store(run_dir / "run.db").close()
        for name in ("server.log", "step.json", "batched.json"):
            (run_dir / name).write_text("made by the run\n")
        (run_dir / "tensorboard").mkdir()
        raise PauseflError("no loss")
    assert [path.name for path in run_dir.iterdir()] == ["server.log"]
    with pytest.raises(PauseflError, match="nobody answered"), made_run_dir(in_force(EXPERIMENT), run_dir):
        with closing(Store(run_dir / "run.db")) as store:
            store.save_late_events(1, [LogEvent("joined", "client-000")])
        raise PauseflError("nobody answered")
    assert (run_dir / "run.db").exists(), "what client-000 may have spent is known"
    with pytest.raises(PauseflError, match="moved"), made_run_dir(in_force(EXPERIMENT), tmp_path / "taken"):
        (tmp_path / "taken/checkpoints").mkdir()
        (tmp_path / "taken/run.db").rename(tmp_path / "elsewhere.db")
        raise PauseflError("moved")
    # Without the log, a round may have been played: the files stay.
    assert {"checkpoints", "config.toml"} <= {path.name for path in (tmp_path / "taken").iterdir()}


@pytest.mark.parametrize("what", ["is empty", "is missing"])
def test_a_run_that_has_lost_its_log_is_not_begun_anew(what: str, tmp_path: Path) -> None:
    """The clients' ledgers hold spent ε that a new log would not know."""
    run_dir = tmp_path / "run"
    with made_run_dir(in_force(EXPERIMENT), run_dir):
        (run_dir / "checkpoints").mkdir()  # `Checkpoint` makes it before the first job
    log = run_dir / "run.db"
    log.write_bytes(b"") if what == "is empty" else log.unlink()
    refused = pytest.raises(ConfigError, match=r"run\.db: is missing or empty, but a run began there; restore it")
    with refused, made_run_dir(in_force(EXPERIMENT), run_dir, resume=True):
        pass
    shutil.rmtree(run_dir / "checkpoints")
    with made_run_dir(in_force(EXPERIMENT), run_dir, resume=True):
        assert log.stat().st_size > 0


def test_a_run_in_progress_is_read_as_of_one_instant(tmp_path: Path) -> None:
    with closing(Store(tmp_path / "run.db")) as store, open_database(tmp_path) as database:
        store.commit_round(record(1))
        assert database.execute("SELECT count(*) FROM rounds").fetchone() == (0,)


def test_a_whole_log_that_the_disk_does_not_take_is_to_be_restored_from_no_copy(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    Store(path).close()
    with closing(Store(path)) as store, full_disk():
        with pytest.raises(ConfigError, match=r"run\.db: cannot be written \(.*is the disk full\?\)$"):
            store.set_meta("colour", "red" * 100_000)
        assert store.meta("colour") is None
    with full_disk(), pytest.raises(ConfigError, match=r"run\.db: cannot be written \(.*is the disk full\?\)$"):
        Store(path)
    Store(path).close()


OTHERS = [TimeoutError(), *(OSError(number, "failed") for number in (errno.ECONNREFUSED, errno.EMFILE, errno.EACCES))]


@pytest.mark.parametrize("error", [*OTHERS, OSError(errno.EEXIST, "File exists", "/elsewhere/output")])
def test_an_error_that_is_not_the_disks_is_not_laid_to_the_directory(error: OSError, tmp_path: Path) -> None:
    with pytest.raises(type(error)) as raised, made_run_dir(in_force(EXPERIMENT), tmp_path / "run"):
        raise error
    assert raised.value is error


@pytest.mark.parametrize(("number", "file"), [(errno.ENOSPC, None), (errno.EACCES, "run/run.db")])
def test_an_error_of_the_disk_is_laid_to_the_directory(number: int, file: str | None, tmp_path: Path) -> None:
    with refused("run: cannot be written (it failed"), made_run_dir(in_force(EXPERIMENT), tmp_path / "run"):
        raise OSError(number, "it failed", file and str(tmp_path / file))


def test_a_number_is_the_same_with_and_without_a_point_and_a_comparison_is_no_run(tmp_path: Path) -> None:
    """Free-form tables keep a number as it was typed, 1 or 1.0."""
    for value, resume in ((1.0, False), (1, True)):
        tables = in_force(EXPERIMENT.replace({"selection.pause.alpha": value}))
        with made_run_dir(tables, tmp_path / "run", resume=resume):
            pass
    # `make demo` leaves a comparison in a folder with the demo's name, like a run's.
    (tmp_path / CAMPAIGN_PLAN).touch()
    with pytest.raises(ConfigError, match=r"holds a comparison, a sweep or a search; name one of the runs in it$"):
        stored_experiment(tmp_path)
