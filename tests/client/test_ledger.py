"""The client's own ledger on a real disk, its audit, and damage such as a lost -wal file."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pausefl_client.privacy.ledger import KEPT_BYTES_MAX, Ledger, ReleaseKey, verified_spend
from pausefl_proto.budget import Budget
from pausefl_proto.errors import BudgetError, LedgerError
from rigs.databases import full_disk, layout, opened_connections

BUDGET, RICHER = Budget(10.0, 0.04), Budget(1000.0, 0.04)
BYTES = memoryview(b"noised bytes")
HOLDER = {"unit": "vector", "client_id": "a", "data": "digits"}
OPEN = (
    "import sys; from pathlib import Path; from pausefl_proto.budget import Budget\n"
    "from pausefl_client.privacy.ledger import Ledger\n"
    f"Ledger(Path(sys.argv[1]), Budget(10.0, 0.04), **{HOLDER!r})"
)


def key(round: int, run_id: str = "run") -> ReleaseKey:
    return ReleaseKey(run_id, round, 1, f"model {round}")


def release(ledger: Ledger, round: int | None = None, noised: memoryview = BYTES) -> None:
    """Record a release of this round, or of the next one."""
    round_ = round or ledger.spent.released + 1
    ledger.record(key(round_), ledger.next_charge(), f"update {round_}", noised)


def played(path: Path, releases: int = 5) -> Ledger:
    """An open ledger with this many new releases after those it already held."""
    ledger = Ledger(path, BUDGET, **HOLDER)
    for _ in range(releases):
        release(ledger)
    return ledger


def count(path: Path) -> int:
    """How many releases the ledger counts when it is opened again."""
    with closing(Ledger(path, BUDGET, **HOLDER)) as ledger:
        return ledger.spent.released


def assert_refused(path: Path, why: str) -> None:
    """Assert that both an audit and a client refuse the ledger."""
    for look in (lambda: verified_spend(path), lambda: Ledger(path, BUDGET, **HOLDER)):
        with pytest.raises(LedgerError, match=rf"a\.db: {why}"):
            look()


def copied(path: Path, folder: Path, *, alone: bool = False) -> Path:
    """Copy a ledger's files, as a crash leaves them; `alone`: only the main file. Return the copied main file."""
    folder.mkdir()
    for file in [path] if alone else path.parent.iterdir():
        shutil.copy(file, folder)
    return folder / "a.db"


def rows(path: Path, sql: str) -> list[tuple[object, ...]]:
    """Query or change a closed ledger."""
    with closing(sqlite3.connect(path)) as database, database:
        return database.execute(sql).fetchall()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledgers" / "a.db"


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    with closing(Ledger(path, BUDGET, **HOLDER)) as ledger:
        yield ledger


def test_the_disk_is_asked_to_keep_every_commit(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """2 is FULL. With a checkpoint by SQLite itself, a file that lost its -wal would not be marked."""
    opened = opened_connections(monkeypatch)
    with closing(Ledger(path, BUDGET, **HOLDER)):
        expected = {"synchronous": 2, "journal_mode": "wal", "locking_mode": "exclusive", "wal_autocheckpoint": 0}
        assert {name: opened[-1].execute(f"PRAGMA {name}").fetchone()[0] for name in expected} == expected


def test_a_release_is_on_disk_when_record_returns(ledger: Ledger, path: Path, tmp_path: Path) -> None:
    for round_ in (1, 2):
        release(ledger, round_)
        crashed = copied(path, tmp_path / str(round_))
        query = "SELECT participation, round, attempt, epsilon, unit, update_digest FROM releases ORDER BY 1 DESC"
        assert rows(crashed, query)[0] == (round_, round_, 1, BUDGET.epsilon(round_), "vector", f"update {round_}")


def test_the_bytes_are_kept_until_settled(path: Path) -> None:
    with closing(Ledger(path, BUDGET, **HOLDER)) as ledger:
        assert ledger.open_release() is None
        release(ledger, 1)
    with closing(Ledger(path, BUDGET, **HOLDER)) as ledger:
        kept = ledger.open_release()
        assert kept is not None
        assert (kept.key, kept.noised, kept.update_digest) == (key(1), bytes(BYTES), "update 1")
        assert kept.charge.epsilon_spent == BUDGET.spent(1)
        ledger.settle()
        assert ledger.open_release() is None
    assert rows(path, "SELECT fate FROM releases") == [("settled",)]
    assert rows(path, "SELECT * FROM kept") == []


def test_bytes_beyond_the_limit_are_not_kept_but_charged(ledger: Ledger) -> None:
    release(ledger, 1, memoryview(bytes(KEPT_BYTES_MAX)))
    assert ledger.open_release().noised is not None  # type: ignore[union-attr]  # None would fail
    release(ledger, 2, memoryview(bytes(KEPT_BYTES_MAX + 1)))
    assert ledger.open_release().noised is None  # type: ignore[union-attr]  # None would fail
    assert ledger.spent.released == 2


def test_a_release_nobody_settled_is_written_off_by_the_next(path: Path) -> None:
    with closing(played(path, 2)) as ledger:
        ledger.settle()
        release(ledger, 3)
    assert rows(path, "SELECT fate FROM releases ORDER BY participation") == [("written off",), ("settled",), ("open",)]
    assert rows(path, "SELECT participation FROM kept") == [(3,)]


def test_a_key_is_charged_once(ledger: Ledger) -> None:
    release(ledger, 1)
    release(ledger, 2)
    assert ledger.has_answered(key(1))
    assert not ledger.has_answered(key(1, run_id="another"))
    with pytest.raises(LedgerError, match="UNIQUE"):
        release(ledger, 1)
    assert ledger.spent.released == 2
    assert ledger.open_release().key == key(2)  # type: ignore[union-attr]  # None would fail


def test_the_floor_and_the_end_of_the_budget_refuse(path: Path) -> None:
    with closing(Ledger(path, Budget(10.0, 0.04, BUDGET.epsilon(2)), **HOLDER)) as ledger:
        release(ledger, 1)
        release(ledger, 2)
        with pytest.raises(BudgetError, match=r"release 3 would have epsilon 0\.362, the floor is 0\.37"):
            ledger.next_charge()


@pytest.mark.parametrize(
    "tampering",
    [
        "UPDATE releases SET epsilon = 0.0 WHERE participation = 2",
        "UPDATE releases SET epsilon_spent = 0.0 WHERE participation = 3",
        "UPDATE releases SET update_digest = 'another' WHERE participation = 1",
        "DELETE FROM releases WHERE participation = 1",
        "DELETE FROM releases WHERE participation = 2",
    ],
)
def test_an_altered_ledger_is_refused(path: Path, tampering: str) -> None:
    played(path, 3).close()
    rows(path, tampering)
    assert_refused(path, r"release \d does not fit the hash chain; it was altered")


@pytest.mark.parametrize(
    ("altered", "budget", "holder"),
    [
        (f"UPDATE meta SET value = '{RICHER.key}' WHERE key = 'schedule'", RICHER, {}),
        ("UPDATE meta SET value = 'coordinate' WHERE key = 'unit'", BUDGET, {"unit": "coordinate"}),
        ("UPDATE meta SET value = 'mnist' WHERE key = 'data'", BUDGET, {"data": "mnist"}),
        ("DELETE FROM meta", RICHER, {}),
    ],
)
def test_what_a_ledger_belongs_to_cannot_be_altered_either(
    path: Path, altered: str, budget: Budget, holder: dict[str, str]
) -> None:
    played(path, 30).close()
    rows(path, altered)
    with pytest.raises(LedgerError, match=r"a\.db: release 1 does not fit the hash chain; it was altered"):
        Ledger(path, budget, **(HOLDER | holder))


def test_a_ledger_of_an_earlier_version_is_read_and_written(tmp_path: Path) -> None:
    """Ledgers outlive versions: with other tables the next release fails, with another hash the holder is a forger."""
    played(tmp_path / "a.db", 1).close()
    assert layout(tmp_path / "a.db") == "b54d01a568797c19"
    with closing(sqlite3.connect(tmp_path / "a.db")) as db, db:
        chain = "af85c9769825e77e8aa2eea9248011041d6b0ea72418102255673b2903d6243c"
        db.execute("UPDATE releases SET released_at = '2026-01-01T00:00:00Z', chain = ?", (chain,))
    assert count(tmp_path / "a.db") == 1


def test_a_spend_that_is_not_the_schedules_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A forger who also rewrites the hash chain still has to follow the schedule."""
    with monkeypatch.context() as lie:
        lie.setattr(Budget, "spent", lambda _, participations: 0.01 * participations)
        played(path, 3).close()
    with pytest.raises(LedgerError, match=r"release 3 brings epsilon to 0\.03, its schedule says 1\.13"):
        Ledger(path, BUDGET, **HOLDER)


# -- an open ledger is two files: the main file and its -wal


def test_the_file_alone_is_refused_however_much_of_the_log_it_has_taken_in(path: Path, tmp_path: Path) -> None:
    """Of ten releases of 1 MB, most but not all are in the main file when it is copied."""
    with closing(Ledger(path, BUDGET, **HOLDER)) as ledger:
        for round_ in range(1, 11):
            release(ledger, round_, memoryview(bytes(KEPT_BYTES_MAX)))
            alone = copied(path, tmp_path / str(round_), alone=True)
            with pytest.raises(LedgerError, match=r"a\.db-wal, which is missing"):
                Ledger(alone, BUDGET, **HOLDER)
        assert sum(file.stat().st_size for file in path.parent.iterdir()) < 10 * KEPT_BYTES_MAX


@pytest.mark.parametrize("where", [0.2, 0.5, 0.99])
def test_a_flipped_bit_in_the_log_is_a_missed_release(path: Path, tmp_path: Path, where: float) -> None:
    """For SQLite the log ends at the flipped bit, so the later releases could be spent again."""
    with closing(played(path, 5)):
        crashed = copied(path, tmp_path / "crashed")
    wal = crashed.with_name("a.db-wal")
    data = bytearray(wal.read_bytes())
    data[int(where * len(data))] ^= 1
    wal.write_bytes(data)
    assert_refused(crashed, "counts [0-4] releases, 5 were charged: the others stood in")


def test_whoever_looks_at_a_ledger_after_a_crash_does_no_harm(path: Path, tmp_path: Path) -> None:
    """A program that opens the files moves the log's content into the main file and deletes the log."""
    with closing(played(path, 1)):
        crashed = copied(path, tmp_path / "crashed")
    assert verified_spend(crashed) == (1, BUDGET.spent(1))
    assert rows(crashed, "SELECT participation FROM releases") == [(1,)]
    assert sorted(file.name for file in crashed.parent.iterdir()) == ["a.db", "a.db-head"]
    assert count(crashed) == 1


@pytest.mark.parametrize("step", ["wal_checkpoint(PASSIVE)", "user_version = 0"])
def test_a_crash_while_the_log_is_moved_loses_nothing(
    path: Path, tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = opened_connections(monkeypatch)
    with closing(Ledger(path, BUDGET, **HOLDER)) as ledger:
        own = opened[-1]
        release(ledger, 1)
        own.execute("PRAGMA user_version = 1")
        if step == "user_version = 0":
            own.execute("PRAGMA wal_checkpoint(PASSIVE)")
        crashed = copied(path, tmp_path / "crashed")
    assert [count(crashed) for _ in range(2)] == [1, 1]  # also after it was closed without another release


@pytest.mark.parametrize(
    ("budget", "change", "message"),
    [
        (BUDGET, {"client_id": "b"}, "its client id is 'a', not 'b'"),
        (BUDGET, {"data": "mnist"}, "its data is 'digits', not 'mnist'"),
        (BUDGET, {"unit": "coordinate"}, "its unit is 'vector', not 'coordinate'"),
        (Budget(20.0, 0.04), {}, r"its schedule is 'geometric\(epsilon_budget=10\.0"),
    ],
)
def test_a_ledger_of_another_experiment_is_refused(
    ledger: Ledger, path: Path, budget: Budget, change: dict[str, str], message: str
) -> None:
    ledger.close()
    with pytest.raises(LedgerError, match=f"is another experiment's, {message}"):
        Ledger(path, budget, **(HOLDER | change))


def test_two_processes_cannot_open_one_ledger(ledger: Ledger, path: Path) -> None:
    other = subprocess.run([sys.executable, "-c", OPEN, path], capture_output=True, text=True, check=False)
    assert other.returncode == 1
    assert other.stderr.splitlines()[-1].endswith("a.db: is open in another process")
    release(ledger, 1)


def test_a_full_disk_releases_nothing(ledger: Ledger, path: Path) -> None:
    release(ledger, 1)
    noise = memoryview(np.random.default_rng(1).bytes(200_000))
    with full_disk(100_000), pytest.raises(LedgerError, match=r"a\.db: ") as told:
        release(ledger, 2, noise)
    assert told.value.__cause__ is None, "it is one line in the client's log, without a traceback"
    assert (ledger.spent.released, ledger.spent.epsilon) == (1, BUDGET.spent(1))
    release(ledger, 2, noise)
    ledger.settle()
    with full_disk(), pytest.raises(LedgerError, match=r"a\.db: "):
        ledger.close()
    with closing(Ledger(path, BUDGET, **HOLDER)) as again:  # as clients that stay do for their next run
        assert again.spent.released == 2


def test_a_read_only_ledger_stops_the_client_at_once(ledger: Ledger, path: Path) -> None:
    ledger.close()
    # Root may write anywhere. Nobody can create files in /proc, so the test uses a folder there.
    with pytest.raises(LedgerError, match="/proc/ledgers"):
        Ledger(Path("/proc/ledgers/a.db"), BUDGET, **HOLDER)
    if os.geteuid() != 0:
        path.chmod(0o444)
        path.parent.chmod(0o555)
        with pytest.raises(LedgerError, match="readonly"):
            Ledger(path, BUDGET, **HOLDER)
        path.parent.chmod(0o755)


def test_what_is_no_ledger_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "a.db"
    file.write_bytes(b"not a database, but long enough to be looked at" * 50)
    before = file.read_bytes()
    with pytest.raises(LedgerError, match="file is not a database"):
        Ledger(file, BUDGET, **HOLDER)
    assert file.read_bytes() == before


def test_a_release_that_is_durable_is_not_said_to_have_failed(tmp_path: Path) -> None:
    """The commit count is kept beside the ledger as a safeguard. On a full disk it may not be written."""
    path = tmp_path / "a.db"
    path.with_name("a.db-head").mkdir()
    with closing(played(path, 1)) as ledger:
        assert (ledger.spent.released, ledger.has_answered(key(1))) == (1, True)
    assert verified_spend(path) == (1, BUDGET.spent(1))


# The process is killed when SQLite is about to report whether the file is marked. The opened files exist by then.
KILLED = f"""
import os, signal, sqlite3
def killed(db, connect=sqlite3.connect):
    class Connection(sqlite3.Connection):
        def execute(self, sql, *more):
            found = super().execute(sql, *more)
            if sql == "PRAGMA user_version":
                os.kill(os.getpid(), signal.SIGKILL)
            return found
    return connect(db, isolation_level=None, factory=Connection)
sqlite3.connect = lambda db, **_: killed(db)
{OPEN}
"""


class FullDisk(sqlite3.Connection):
    """A database whose full disk allows one more page, or none, in the -wal, and none in the main file."""

    refused: tuple[str, ...] = ()

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        """Fail for the refused statements, as on a full disk."""
        if sql in self.refused:
            raise sqlite3.OperationalError("database or disk is full")
        return super().execute(sql, *parameters)


def audited(path: Path) -> None:
    with pytest.raises(LedgerError, match="which is missing"):
        verified_spend(path)
    assert list(path.parent.iterdir()) == [path]


def read(path: Path) -> None:
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as database:
        assert database.execute("SELECT count(*) FROM releases").fetchone() == (0,)
    assert path.with_name("a.db-wal").stat().st_size == 0


def opened_and_killed(path: Path) -> None:
    assert subprocess.run([sys.executable, "-c", KILLED, path], check=False).returncode == -signal.SIGKILL
    assert path.with_name("a.db-wal").exists()


def test_an_older_file_beside_a_later_log_is_refused(path: Path, tmp_path: Path) -> None:
    """Pages that lead to the log's pages had been moved to the main file before the log was restarted."""
    played(path).close()
    before = copied(path, tmp_path / "before")
    played(path, 30).close()
    with closing(played(path, 1)):
        shutil.copy(path.with_name("a.db-wal"), before.parent)
    assert_refused(before, r"is damaged \(")


def test_an_older_log_beside_a_later_file_is_refused(path: Path, tmp_path: Path) -> None:
    """The log's older pages hide those of the file."""
    with closing(played(path)):
        before = copied(path, tmp_path / "before")
    played(path).close()
    shutil.copy(before.with_name("a.db-wal"), path.parent)
    assert_refused(path, r"counts 5 releases, a\.db itself 10: its a\.db-wal is older")


@pytest.mark.parametrize("more", [(), ("PRAGMA user_version = 0",)], ids=["room for a page", "room for none"])
def test_a_ledger_that_could_not_take_its_log_in_is_whole_once_it_could(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    """The disk was full when the -wal was to be moved, and had room again when the client ended."""
    monkeypatch.setattr("pausefl_client.privacy.ledger._LOG_BYTES_MAX", 0)
    with monkeypatch.context() as patched:
        patched.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=FullDisk))
        ledger = played(path)
    monkeypatch.setattr(FullDisk, "refused", ("PRAGMA wal_checkpoint(PASSIVE)", *more))
    with pytest.raises(LedgerError, match="disk is full"):
        release(ledger)
    crashed = copied(path, tmp_path / "crashed")
    assert rows(crashed, "PRAGMA user_version") == [(len(more),)], "marked only if there was room for no page"
    monkeypatch.setattr(FullDisk, "refused", ())
    ledger.close()
    assert (*verified_spend(path), count(path)) == (5, BUDGET.spent(5), 5)


@pytest.mark.parametrize("look", [audited, read, opened_and_killed])
def test_a_look_at_the_file_alone_makes_it_no_ledger(path: Path, tmp_path: Path, look: Callable[[Path], None]) -> None:
    with closing(played(path)):
        alone = copied(path, tmp_path / "alone", alone=True)
    look(alone)
    assert_refused(alone, r"its last releases stood in a\.db-wal, which is missing")


def test_a_closed_ledger_can_be_audited_where_nothing_can_be_written(path: Path) -> None:
    played(path).close()
    path.chmod(0o444)
    path.parent.chmod(0o555)
    try:
        assert verified_spend(path) == (5, BUDGET.spent(5))
        assert list(path.parent.iterdir()) == [path]
    finally:
        path.parent.chmod(0o755)


def test_closing_twice_does_not_take_from_others_what_tells_of_a_lost_log(path: Path) -> None:
    with closing(played(path)) as closed:
        closed.settle()
    with closing(Ledger(path, BUDGET, **HOLDER)) as ledger:
        release(ledger)
        closed.close()
        assert path.with_name("a.db-head").exists()


@pytest.mark.parametrize("loss", ["deleted", "moved", "replaced"])
def test_a_ledger_that_was_taken_away_takes_no_further_release(path: Path, tmp_path: Path, loss: str) -> None:
    """SQLite would keep writing to the lost file, and the next process would start to count from zero."""
    with closing(played(path)) as ledger:
        if loss == "deleted":
            shutil.rmtree(path.parent)
        else:
            path.parent.rename(tmp_path / "elsewhere")
        if loss == "replaced":
            played(path, 1).close()
        with pytest.raises(LedgerError, match=r"a\.db: .*deleted, moved or replaced"):
            release(ledger)
        assert ledger.spent.released == 5
