"""The client's own ledger: what a data holder has released, written durably before the first byte leaves.

A ledger is one SQLite file per data holder (WAL, synchronous = FULL, held exclusively). Each row is chained by a hash
to the row before, and the first row to the data about the ledger's owner. A ledger outside a run's directory outlives
the run. Its index i, and so ε_i, then goes on from experiment to experiment, and all of them spend one budget. A ledger
with a `Life` counts differently: each run has its own budget, and the life's budget bounds the ε of all runs together.
"""

import hashlib
import math
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pausefl_process.databases import CommitCount, is_locked, refuse_lost
from pausefl_process.files import make_durable, sqlite_synchronous
from pausefl_proto.budget import Budget, Release, is_same_epsilon
from pausefl_proto.errors import BudgetError, LedgerError

KEPT_BYTES_MAX = 1_000_000
"""Noised updates up to this size are kept on disk until settled, so that they survive a crash of the client."""

# About how large the -wal grows before it is moved into the file itself: a thousand pages, SQLite's own default.
_LOG_BYTES_MAX = 4_000_000
# How much a release adds to the -wal besides its noised bytes: about four pages.
_ROW_BYTES = 16_000

_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS releases (
    participation INTEGER PRIMARY KEY,  -- i, from 1; in a life's ledger it counts the releases of all runs
    run_id TEXT NOT NULL,
    round INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    model_digest TEXT NOT NULL,
    epsilon REAL NOT NULL,              -- epsilon_i
    epsilon_spent REAL NOT NULL,        -- after this release
    unit TEXT NOT NULL,                 -- what an epsilon protects: 'vector' or 'coordinate'
    update_digest TEXT NOT NULL,        -- of the noised bytes
    released_at TEXT NOT NULL,          -- UTC
    chain TEXT NOT NULL,                -- sha256 over the columns above and the chain of the row before
    -- 'open': its bytes may still be asked for; 'settled': the server needs them no more;
    -- 'written off': they were lost or came too late. All three are charged alike.
    fate TEXT NOT NULL DEFAULT 'open',
    UNIQUE (run_id, round, attempt, model_digest)
) STRICT;
CREATE TABLE IF NOT EXISTS kept (participation INTEGER PRIMARY KEY, noised BLOB NOT NULL) STRICT;
"""
_CHAINED = (
    "participation, run_id, round, attempt, model_digest, epsilon, epsilon_spent, unit, update_digest, released_at"
)
_OR_ELSE = "or use a new client id and count this one's whole budget as spent"
# Only the last release can be open, since each release closes the one before it.
_OPEN = "participation = ? AND fate = 'open'"


class ReleaseKey(NamedTuple):
    """The job that a release answers. If the server asks for the same key again, the client re-sends the same bytes."""

    run_id: str
    round: int
    attempt: int
    model_digest: str


class Spent(NamedTuple):
    """The number of charged releases and their ε in sum. One object, since another thread may charge between reads."""

    released: int
    epsilon: float


@dataclass(frozen=True, slots=True)
class Life:
    """The budget of a client that outlives its runs, over all of them, and its present run."""

    run_id: str
    epsilon_max: float = math.inf
    """The greatest sum of all ε_i over all runs (sequential composition), in the ledger's unit."""


@dataclass(frozen=True, slots=True)
class OpenRelease:
    """A release whose bytes the server may still ask for."""

    key: ReleaseKey
    charge: Release
    update_digest: str
    noised: bytes | None
    """The noised update's bytes. None if they were too many to keep on disk (`KEPT_BYTES_MAX`)."""


class Ledger:
    """One data holder's releases. Only one process may use it. All methods but `settle` may block on the disk."""

    def __init__(self, path: Path, budget: Budget, life: Life | None = None, /, *, unit: str, **holder: str) -> None:
        """Open or create a data holder's ledger. `holder` names its owner and the meaning of its ε (client id, data).

        With `life`, `budget` is that of its run alone. LedgerError if the ledger is open elsewhere, cannot be written,
        is inconsistent, or belongs to another data holder, schedule or unit.
        """
        self._budget = budget
        self.life = life
        self._unit = unit
        self._path = path
        self._chain = ""
        self._is_settled = self._is_closed = self._is_marked = False
        self.spent = self.in_all = Spent(0, 0.0)
        self._counted = 0  # releases that the file itself, without its -wal, says it holds
        self._commit_count = CommitCount(path)
        with _errors(self._path):
            make_durable(path.parent)
            has_log, counted = _has_log(path), _counted(path) if path.exists() else 0
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=0.0)
        try:
            of_budget = {"schedule": budget.key} if life is None else {"budget": "one a run"}
            self._open({**of_budget, "unit": unit, **holder}, has_log, counted)
            with _errors(self._path):
                self._opened = path.stat()
        except BaseException:
            self._db.close()
            raise

    def next_charge(self) -> Release:
        """The cost of the next release. BudgetError if the budget or its floor does not allow another release."""
        i = self.spent.released + 1
        if not self._budget.affords(i):
            raise BudgetError(
                f"release {i} would have epsilon {self._budget.epsilon(i):.3g}, the floor is"
                f" {self._budget.epsilon_floor:g}: {self.spent.epsilon:g} of the privacy budget of"
                f" {self._budget.epsilon_budget:g} is spent"
            )
        charge = Release(i, self._budget.epsilon(i), self._budget.spent(i))
        if self.life is not None and (in_all := self._in_all_after(charge)) > self.life.epsilon_max:
            raise BudgetError(
                f"release {i} of this run would bring the epsilon of all runs to {in_all:g}, --epsilon-lifetime is"
                f" {self.life.epsilon_max:g}: {self.in_all.epsilon:g} is spent"
            )
        return charge

    def _in_all_after(self, charge: Release) -> float:
        """The sum of ε over all releases in the file, including one more with this charge."""
        return charge.epsilon_spent if self.life is None else self.in_all.epsilon + charge.epsilon

    def record(self, key: ReleaseKey, charge: Release, update_digest: str, noised: memoryview) -> None:
        """Record a release, and keep its bytes. When this returns, the release survives a crash.

        LedgerError, and nothing may leave, if it cannot be written, its file is gone, or `key` was answered before.
        """
        if self._log_bytes > _LOG_BYTES_MAX:
            self._fold()
        with self._transaction():
            refuse_lost(self._path, self._opened)
            self._close_open_release()
            (now,) = self._db.execute("SELECT strftime('%Y-%m-%dT%H:%M:%SZ', 'now')").fetchone()
            in_all = Spent(self.in_all.released + 1, self._in_all_after(charge))
            row = (in_all.released, *key, charge.epsilon, in_all.epsilon, self._unit, update_digest, now)
            chain = _link(self._chain, row)
            marks = ", ".join("?" * len(row))
            self._db.execute(f"INSERT INTO releases ({_CHAINED}, chain) VALUES ({marks}, ?)", (*row, chain))
            keeps = len(noised) <= KEPT_BYTES_MAX
            if keeps:
                self._db.execute("INSERT INTO kept VALUES (?, ?)", (in_all.released, noised))
        self.spent, self.in_all, self._chain = Spent(charge.participation, charge.epsilon_spent), in_all, chain
        self._commit_count.write(in_all.released)
        self._log_bytes += _ROW_BYTES + (len(noised) if keeps else 0)
        self._is_settled = False

    def open_release(self) -> OpenRelease | None:
        """The release whose bytes the server may still ask for. None if the last one is settled or written off."""
        query = f"SELECT {_CHAINED}, noised FROM releases LEFT JOIN kept USING (participation) WHERE {_OPEN}"
        with _errors(self._path):
            row = None if self._is_settled else self._db.execute(query, (self.in_all.released,)).fetchone()
        if row is None or not (self.life is None or row[1] == self.life.run_id):
            return None
        _, run_id, round_, attempt, model_digest, epsilon, _, _, update_digest, _, noised = row
        charge = Release(self.spent.released, epsilon, self.spent.epsilon)
        return OpenRelease(ReleaseKey(run_id, round_, attempt, model_digest), charge, update_digest, noised)

    def has_answered(self, key: ReleaseKey) -> bool:
        """Whether a release for this key was charged, whether it is open, settled or written off."""
        query = "SELECT 1 FROM releases WHERE (run_id, round, attempt, model_digest) = (?, ?, ?, ?)"
        with _errors(self._path):
            return self._db.execute(query, key).fetchone() is not None

    def settle(self) -> None:
        """Note that the server no longer needs the open release's bytes. Saved with the next release, or at the end.

        A crash before that leaves the release open. It is charged all the same.
        """
        self._is_settled = True

    def close(self) -> None:
        """Close the file, also after a LedgerError, so that it can be opened again. A second call does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        with _errors(self._path), closing(self._commit_count), closing(self._db):
            if self._is_settled:
                with self._transaction():
                    self._close_open_release()
            if self._is_marked or self._counted != self.in_all.released:
                self._note(mark=0)

    def _open(self, belongs_to: dict[str, str], has_log: bool, counted: int) -> None:
        with _errors(self._path):
            self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._db.execute(f"PRAGMA synchronous = {sqlite_synchronous()}")  # first, since the next one writes
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA wal_autocheckpoint = 0")  # `_fold` does it
            _refuse_alone(self._path, self._db, has_log)  # before this process writes anything to a new -wal
            # A file or file system that cannot be written fails here, not at the first release.
            self._db.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")
        self._agree_on(belongs_to, counted)
        self._fold()

    def _agree_on(self, belongs_to: dict[str, str], counted: int) -> None:
        """Read the ledger, or create its contents. LedgerError unless it is consistent and belongs to `belongs_to`."""
        with self._transaction():
            if self._db.execute("SELECT 1 FROM meta").fetchone() is None:
                self._db.executemany("INSERT INTO meta VALUES (?, ?)", belongs_to.items())
            self.in_all, self._chain = _walk(self._path, self._db, self._commit_count.read(), counted)
            self.spent = self.in_all
            if self.life is not None:
                own = "SELECT count(*), total(epsilon) FROM releases WHERE run_id = ?"
                self.spent = Spent(*self._db.execute(own, (self.life.run_id,)).fetchone())
            known = dict(self._db.execute("SELECT key, value FROM meta"))
        for key, value in belongs_to.items():
            if known.get(key) != value:
                raise LedgerError(
                    f"ledger {self._path}: is another experiment's, its {key.replace('_', ' ')} is"
                    f" {known.get(key, 'unknown')!r}, not {value!r}: change that back, or keep this experiment's"
                    " ledgers in another folder (privacy.ledger_dir, --ledger-dir), whose budgets add to these"
                )
        released, epsilon = self.spent
        if not is_same_epsilon(epsilon, self._budget.spent(released)):
            raise LedgerError(
                f"ledger {self._path}: release {released} brings epsilon to {epsilon:g}, its schedule says"
                f" {self._budget.spent(released):g}; it was altered"
            )

    def _fold(self) -> None:
        """Move the contents of the -wal into the file itself, and mark the file as incomplete without a -wal.

        The -wal then removes the mark, so a process that reads both files finds none. `close` moves the removal too. So
        a mark is found only in a file that was copied, or left, without the -wal of its later releases.
        """
        with _errors(self._path):
            self._is_marked = True
            self._note(mark=1)
            try:
                self._db.execute("PRAGMA wal_checkpoint(PASSIVE)")  # no other connection reads: it moves everything
            finally:  # a full disk may still accept this write although the move failed
                self._note(mark=0)
        self._log_bytes = 0

    def _note(self, *, mark: int) -> None:
        """Set or remove the mark, and store the number of releases in the file, to detect an older -wal beside it."""
        with self._transaction():
            self._db.execute(f"PRAGMA user_version = {mark}")
            self._db.execute(f"PRAGMA application_id = {self.in_all.released}")
        self._is_marked, self._counted = bool(mark), self.in_all.released

    def _close_open_release(self) -> None:
        fate = "settled" if self._is_settled else "written off"
        self._db.execute(f"UPDATE releases SET fate = ? WHERE {_OPEN}", (fate, self.in_all.released))
        self._db.execute("DELETE FROM kept")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with _errors(self._path), self._db:  # which commits or, after an error, rolls back
            self._db.execute("BEGIN IMMEDIATE")
            yield


@contextmanager
def _errors(path: Path) -> Iterator[None]:
    """Turn errors of the disk or database within the block into a LedgerError that names the file."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise LedgerError(f"ledger {path}: {'is open in another process' if is_locked(error) else error}") from None


def verified_spend(path: Path) -> Spent:
    """What a ledger says is spent. The file is only read. LedgerError if it is inconsistent."""
    has_log, charged = _has_log(path), CommitCount(path).read()
    # SQLite creates an empty -wal if there is none, unless `immutable` says that no process writes to the file.
    access = "mode=ro" if has_log else "mode=ro&immutable=1"
    with _errors(path), closing(sqlite3.connect(f"{path.resolve().as_uri()}?{access}", uri=True)) as db:
        _refuse_alone(path, db, has_log)
        return _walk(path, db, charged, _counted(path))[0]


def _has_log(path: Path) -> bool:
    """Whether there is a -wal that is not empty. Opening the file alone may leave an empty one."""
    log = path.with_name(f"{path.name}-wal")
    return log.exists() and log.stat().st_size > 0


def _refuse_alone(path: Path, db: sqlite3.Connection, has_log: bool) -> None:
    """Raise LedgerError if the file's -wal is lost. `has_log`: the -wal existed before `db` was opened.

    The mark alone does not prove the loss: a crash within `_fold` may also leave it.
    """
    if not has_log and db.execute("PRAGMA user_version").fetchone() != (0,):
        raise LedgerError(
            f"ledger {path}: its last releases stood in {path.name}-wal, which is missing: restore both, {_OR_ELSE}"
        )


def _counted(path: Path) -> int:
    """How many releases the file itself says it holds, without its -wal. 0 if it says nothing.

    SQLite must read it: if this process opened and closed the file otherwise, it would lose its lock on it.
    """
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)) as db:
        db.execute("PRAGMA writable_schema = ON")  # also reads a file that grows while the -wal is moved into it
        (counted,) = db.execute("PRAGMA application_id").fetchone()
    return int(counted)


def _walk(path: Path, db: sqlite3.Connection, charged: int, counted: int) -> tuple[Spent, str]:
    """Read all releases: the ε spent, and the last hash of the chain. LedgerError if

    - the database is damaged, as it may be if the file is older than its -wal, or
    - a row does not fit the chain, or is missing, or
    - there are fewer rows than were `charged`: SQLite drops the end of a damaged -wal silently, or
    - there are fewer rows than the `counted` ones of the file itself: an older -wal hides the file's newer pages.
    """
    log, restore = f"{path.name}-wal", f"restore {path.name} and {path.name}-wal of one moment, {_OR_ELSE}"
    (found,) = db.execute("PRAGMA integrity_check(1)").fetchone()
    if found != "ok":
        raise LedgerError(f"ledger {path}: is damaged ({' '.join(found.split())}): {restore}")
    released, spent, chain = 0, 0.0, _link("", tuple(db.execute("SELECT key, value FROM meta ORDER BY key")))
    for *row, recorded in db.execute(f"SELECT {_CHAINED}, chain FROM releases ORDER BY participation"):
        chain = _link(chain, tuple(row))
        released += 1
        if recorded != chain or row[0] != released:
            raise LedgerError(f"ledger {path}: release {row[0]} does not fit the hash chain; it was altered")
        spent = float(row[6])
    has = f"ledger {path}: counts {released} releases"
    if released < charged:
        raise LedgerError(f"{has}, {charged} were charged: the others stood in {log}, which is damaged: {restore}")
    if released < counted:
        raise LedgerError(f"{has}, {path.name} itself {counted}: its {log} is older: {restore}")
    return Spent(released, spent), chain


def _link(chain: str, row: tuple[object, ...]) -> str:
    return hashlib.sha256(repr((chain, *row)).encode()).hexdigest()
