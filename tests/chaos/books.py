"""Invariants of every run: rounds go on, nothing committed is lost, and log, ledgers and summary agree."""

import asyncio
import json
import math
import sqlite3
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

from pausefl_client.privacy.ledger import verified_spend
from pausefl_server.storage.store import Store
from rigs.command import query

# Logs add up ε in another order than ledgers.
_RELATIVE_TOLERANCE = 1e-8
_TROUBLE = ("Traceback", "never retrieved", "never awaited", "Segmentation", "leaked")
_GRPC_DECODES = "grpc_string.pyx"


class Violation(Exception):
    """An invariant does not hold."""


def require(holds: object, what: str) -> None:
    """Raise Violation unless it holds."""
    if not holds:
        raise Violation(what)


def committed(run_dir: Path) -> dict[int, str]:
    """The digest of every committed round's rows, by round."""
    try:
        return dict(query(run_dir, "SELECT round, digest FROM rounds JOIN seals ON subject = 'round ' || round"))
    except sqlite3.OperationalError as error:
        if (run_dir / "run.db").exists() and "no such table" not in str(error):
            raise
        return {}


def check_nothing_lost(before: Mapping[int, str], run_dir: Path) -> None:
    """Check that every round committed before is still there, row by row the same."""
    now = committed(run_dir)
    lost = [number for number, digest in before.items() if now.get(number) != digest]
    require(not lost, f"committed rounds were lost or changed: {lost}")


def check_books(run_dir: Path) -> int:
    """Check the log's seals, and that ledgers, log and summary have the same releases and ε; returns the rounds."""
    with closing(Store(run_dir / "run.db")):  # verifies the whole log against its seals
        pass
    summary: dict[str, Any] = json.loads((run_dir / "summary.json").read_text("utf-8"))
    rounds = [row[0] for row in query(run_dir, "SELECT round FROM rounds ORDER BY round")]
    require(rounds == list(range(1, summary["rounds"] + 1)), f"rounds {rounds}, the summary has {summary['rounds']}")
    twice = "SELECT client_id, participation FROM observations GROUP BY 1, 2 HAVING count(*) > 1"
    require(not (used := query(run_dir, twice)), f"releases were used twice: {used}")
    greatest = _check_ledgers(run_dir)
    told = float(summary["max_epsilon_spent"])
    require(
        math.isclose(told, greatest, rel_tol=_RELATIVE_TOLERANCE),
        f"the summary says epsilon {told}, the ledgers {greatest}",
    )
    return len(rounds)


def check_logs(folder: Path) -> None:
    """Check that no process has left a traceback, or a task whose failure was never retrieved."""
    for path in sorted({*folder.rglob("*.err"), *folder.rglob("*.log")}):
        lines = [*path.read_text("utf-8", "replace").splitlines(), ""]
        for line, after in pairwise(lines):
            # gRPC logs a damaged error text like this, and goes on.
            is_trouble = any(word in line for word in _TROUBLE) and _GRPC_DECODES not in after
            require(not is_trouble, f"{path.name}: {line}")


def _check_ledgers(run_dir: Path) -> float:
    """Check every ledger against the log of its client; returns the greatest ε spent."""
    logged, unheard, greatest = _logged(run_dir), _unheard(run_dir), 0.0
    for path in sorted((run_dir / "ledgers").glob("*.db")):
        released, spent = verified_spend(path)
        greatest = max(greatest, spent)
        known, known_spent = logged.get(path.stem, (0, 0.0))
        says = f"{path.stem}: its ledger counts {released} releases (epsilon {spent}), the log {known} ({known_spent})"
        require(known <= released <= known + unheard.get(path.stem, 0), says)
        is_same = math.isclose(known_spent, spent, rel_tol=_RELATIVE_TOLERANCE)
        require(known < released or is_same, says)
    return greatest


def _logged(run_dir: Path) -> dict[str, tuple[int, float]]:
    """By client, the releases and the ε in the log."""
    known = (
        "SELECT client_id, max(i), max(spent) FROM"
        " (SELECT client_id, participation AS i, epsilon_spent AS spent FROM observations"
        " UNION ALL SELECT client_id, released, epsilon_spent FROM events) GROUP BY client_id"
    )
    return {client_id: (released, spent) for client_id, released, spent in query(run_dir, known)}


def _unheard(run_dir: Path) -> dict[str, int]:
    """By client, the unanswered jobs since its last report of its releases to the log: each may be a release."""
    missed = (
        "SELECT client_id, count(*) FROM misses WHERE round >= (SELECT coalesce(max(round), 0) FROM"
        " (SELECT round, client_id FROM observations"
        " UNION ALL SELECT round, client_id FROM events WHERE kind IN ('joined', 'reconciled')) AS heard"
        " WHERE heard.client_id = misses.client_id) GROUP BY client_id"
    )
    # A client that came back within a round and was lost again said hello before its miss, but is logged after it.
    unsettled = (
        "SELECT client_id, count(*) FROM events AS owed WHERE kind = 'unsettled'"
        " AND NOT EXISTS (SELECT 1 FROM observations WHERE client_id = owed.client_id AND round >= owed.round)"
        " AND NOT EXISTS (SELECT 1 FROM events AS heard WHERE kind IN ('joined', 'reconciled')"
        " AND client_id = owed.client_id AND sequence > owed.sequence) GROUP BY client_id"
    )
    jobs = dict(query(run_dir, missed))
    for client_id, count in query(run_dir, unsettled):
        jobs[client_id] = max(count, jobs.get(client_id, 0))
    return jobs


_LOOK_EVERY_S = 0.2


class Progress:
    """Watches that the number of committed rounds grows."""

    def __init__(self, run_dir: Path, patience_s: float) -> None:
        """If no further round is committed for `patience_s`, `rounds` and `until` raise Violation."""
        self._run_dir = run_dir
        self._patience_s = patience_s
        self._rounds = 0
        self._grown_s = self._looked_s = time.monotonic()

    def rounds(self) -> int:
        """The number of committed rounds. Raises Violation if it has not grown for too long."""
        now_s = time.monotonic()
        if now_s - self._looked_s > _LOOK_EVERY_S:
            self._looked_s = now_s
            found = len(committed(self._run_dir))
            if found > self._rounds:
                self._rounds, self._grown_s = found, now_s
            stuck_s = now_s - self._grown_s
            require(stuck_s < self._patience_s, f"no round was committed for {stuck_s:.0f} s after round {found}")
        return self._rounds

    async def until(self, holds: Callable[[], object]) -> None:
        """Wait until `holds` returns true. Raises Violation if no round is committed for too long meanwhile."""
        while not holds():
            self.rounds()
            await asyncio.sleep(_LOOK_EVERY_S)
