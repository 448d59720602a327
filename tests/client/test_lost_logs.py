"""A ledger whose -wal is lost stays refused, whoever looked at the file alone meanwhile, however that look ended."""

import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pausefl_client.privacy.ledger import Ledger, ReleaseKey, verified_spend
from pausefl_proto.budget import Budget
from pausefl_proto.errors import LedgerError

BUDGET = Budget(10.0, 0.04)
OPEN = (
    "import sys; from pathlib import Path; from pausefl_client.privacy.ledger import Ledger\n"
    "from pausefl_proto.budget import Budget\n"
    "Ledger(Path(sys.argv[1]), Budget(10.0, 0.04), unit='vector')"
)
# It is killed where SQLite is about to tell whether the file is marked: the files it opened are there by then.
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
    """A database whose disk takes a page more, or none, in its -wal, and nothing in the file."""

    refused: tuple[str, ...] = ()

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        """As on a disk that is full for some statements."""
        if sql in self.refused:
            raise sqlite3.OperationalError("database or disk is full")
        return super().execute(sql, *parameters)


def played(path: Path, releases: int = 5) -> Ledger:
    ledger = Ledger(path, BUDGET, unit="vector")
    for _ in range(releases):
        release(ledger)
    return ledger


def release(ledger: Ledger) -> None:
    key = ReleaseKey("run", ledger.released + 1, 1, "model")
    ledger.record(key, ledger.next_charge(), "update", memoryview(b"noised"))


def audited(path: Path) -> None:
    with pytest.raises(LedgerError, match="which is missing"):
        verified_spend(path)
    assert list(path.parent.iterdir()) == [path]


def read(path: Path) -> None:
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as database:
        assert database.execute("SELECT count(*) FROM releases").fetchone() == (0,)
    assert path.with_name("a.db-wal").stat().st_size == 0


def opened_and_killed(path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, path], check=False)
    assert done.returncode == -signal.SIGKILL
    assert path.with_name("a.db-wal").exists()


def test_an_older_file_beside_a_later_log_is_refused(tmp_path: Path) -> None:
    """The pages that lead to the log's own had been moved to the file before the log was begun anew."""
    path, before = tmp_path / "a.db", tmp_path / "before" / "a.db"
    played(path).close()
    before.parent.mkdir()
    shutil.copy(path, before)
    played(path, 30).close()
    with closing(played(path, 1)):
        shutil.copy(path.with_name("a.db-wal"), before.parent)
    for reads in (verified_spend, lambda file: Ledger(file, BUDGET, unit="vector")):
        with pytest.raises(LedgerError, match=r"a\.db: is damaged \("):
            reads(before)


@pytest.mark.parametrize("more", [(), ("PRAGMA user_version = 0",)], ids=["room for a page", "room for none"])
def test_a_ledger_that_could_not_take_its_log_in_is_whole_once_it_could(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    """The disk was full while the -wal was to be moved, and had room again when the client ended."""
    monkeypatch.setattr("pausefl_client.privacy.ledger._LOG_BYTES_MAX", 0)
    with monkeypatch.context() as patched:
        patched.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=FullDisk))
        ledger = played(tmp_path / "a.db")
    monkeypatch.setattr(FullDisk, "refused", ("PRAGMA wal_checkpoint(PASSIVE)", *more))
    with pytest.raises(LedgerError, match="disk is full"):
        release(ledger)
    monkeypatch.setattr(FullDisk, "refused", ())
    ledger.close()
    assert verified_spend(tmp_path / "a.db") == (5, BUDGET.spent(5))
    Ledger(tmp_path / "a.db", BUDGET, unit="vector").close()


@pytest.mark.parametrize("look", [audited, read, opened_and_killed])
def test_a_look_at_the_file_alone_does_not_make_it_a_ledger(tmp_path: Path, look: Callable[[Path], None]) -> None:
    alone = tmp_path / "alone" / "a.db"
    alone.parent.mkdir()
    with closing(played(tmp_path / "ledgers" / "a.db")):
        shutil.copy(tmp_path / "ledgers" / "a.db", alone)
    look(alone)
    for again in (lambda: Ledger(alone, BUDGET, unit="vector"), lambda: verified_spend(alone)):
        with pytest.raises(LedgerError, match=r"stood in a\.db-wal, which is missing"):
            again()


def test_a_closed_ledger_can_be_audited_where_nothing_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / "ledgers" / "a.db"
    played(path).close()
    path.chmod(0o444)
    path.parent.chmod(0o555)
    try:
        assert verified_spend(path) == (5, BUDGET.spent(5))
        assert list(path.parent.iterdir()) == [path]
    finally:
        path.parent.chmod(0o755)


def test_closing_twice_does_not_take_from_others_what_tells_of_a_lost_log(tmp_path: Path) -> None:
    path = tmp_path / "ledgers" / "a.db"
    with closing(played(path)) as closed:
        closed.settle()
    with closing(Ledger(path, BUDGET, unit="vector")) as ledger:
        release(ledger)
        closed.close()
        assert path.with_name("a.db-head").exists()


@pytest.mark.parametrize("loss", ["deleted", "moved", "replaced"])
def test_a_ledger_that_was_taken_away_takes_no_further_release(tmp_path: Path, loss: str) -> None:
    """SQLite would go on writing to it, and the next process would begin to count anew."""
    path = tmp_path / "ledgers" / "a.db"
    with closing(played(path)) as ledger:
        if loss == "deleted":
            shutil.rmtree(path.parent)
        else:
            path.parent.rename(tmp_path / "elsewhere")
        if loss == "replaced":
            played(path, 1).close()
        with pytest.raises(LedgerError, match=r"a\.db: .*deleted, moved or replaced"):
            release(ledger)
        assert ledger.released == 5
