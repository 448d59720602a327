"""The client's own ledger: what it has released, written durably before the first byte leaves.

One SQLite file per client (WAL, synchronous = FULL, held exclusively), each row chained to the one before by a hash.
"""

import hashlib
import sqlite3
from dataclasses import astuple, dataclass
from pathlib import Path

from pausefl.budget import Budget
from pausefl.errors import BudgetError, LedgerError

_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS releases (
    participation INTEGER PRIMARY KEY,  -- i, from 1
    run_id TEXT NOT NULL,
    round INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    model_digest TEXT NOT NULL,
    epsilon REAL NOT NULL,
    epsilon_spent REAL NOT NULL,        -- after this release
    update_digest TEXT NOT NULL,        -- of the noised bytes
    chain TEXT NOT NULL                 -- sha256 over this row and the chain of the row before
) STRICT;
"""


@dataclass(frozen=True, slots=True)
class ReleaseKey:
    """What a release answers: asked again for the same key, a client re-sends the same bytes."""

    run_id: str
    round: int
    attempt: int
    model_digest: str


@dataclass(frozen=True, slots=True)
class Charge:
    """The i-th release: ε_i, and everything spent with it."""

    participation: int
    epsilon: float
    epsilon_spent: float


class Ledger:
    """One client's releases. Not for two processes at once; every method may block on the disk."""

    def __init__(self, path: Path, client_id: str, budget: Budget, schedule: str) -> None:
        """Open or begin a ledger; LedgerError when it is locked, damaged, or another client's or schedule's."""
        self._budget = budget
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=0.0)
            self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.executescript(_SCHEMA)
            self._agree_on("client_id", client_id)
            self._agree_on("schedule", schedule)
            self.released, self.epsilon_spent, self._chain = self._verify()
        except (sqlite3.Error, OSError) as error:
            raise LedgerError(f"ledger {path}: {error}") from error

    def next_charge(self) -> Charge:
        """What the next release will cost; BudgetError when the budget does not hold it."""
        i = self.released + 1
        charge = Charge(i, self._budget.epsilon(i), self._budget.spent(i))
        if charge.epsilon <= 0 or charge.epsilon_spent > self._budget.epsilon_budget:
            raise BudgetError(f"the privacy budget of {self._budget.epsilon_budget:g} is spent")
        return charge

    def record(self, key: ReleaseKey, charge: Charge, update_digest: str) -> None:
        """Write a release down; when this returns it survives a crash. LedgerError when it cannot be written."""
        row = (charge.participation, *astuple(key), charge.epsilon, charge.epsilon_spent, update_digest)
        chain = _link(self._chain, row)
        try:
            self._db.execute("INSERT INTO releases VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", (*row, chain))
        except sqlite3.Error as error:
            raise LedgerError(f"ledger {self._path}: {error}") from error
        self.released, self.epsilon_spent, self._chain = charge.participation, charge.epsilon_spent, chain

    def close(self) -> None:
        """Close the file and let others open it."""
        self._db.close()

    def _agree_on(self, key: str, value: str) -> None:
        self._db.execute("INSERT OR IGNORE INTO meta VALUES (?, ?)", (key, value))
        (known,) = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        if known != value:
            raise LedgerError(f"ledger {self._path}: belongs to {key} {known!r}, not {value!r}")

    def _verify(self) -> tuple[int, float, str]:
        released, spent, chain = 0, 0.0, ""
        for *row, recorded in self._db.execute("SELECT * FROM releases ORDER BY participation"):
            chain = _link(chain, tuple(row))
            released += 1
            spent = float(row[6])
            if recorded != chain or row[0] != released:
                raise LedgerError(f"ledger {self._path}: release {row[0]} does not fit the hash chain; it was altered")
        return released, spent, chain


def _link(chain: str, row: tuple[object, ...]) -> str:
    return hashlib.sha256(repr((chain, *row)).encode()).hexdigest()
