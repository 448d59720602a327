"""A run's log in a temporary folder, and records to write into it."""

import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from pausefl_proto.wire import Vector
from pausefl_server.clients import ClientTable
from pausefl_server.records import Evaluation, LogEvent, Observation, RoundRecord, Timing
from pausefl_server.storage.seals import seal_of
from pausefl_server.storage.store import Store

ROUNDS = 10


@contextmanager
def changing_log(run_dir: Path) -> Iterator[sqlite3.Connection]:
    """Yield a connection that may change a run's log. Afterwards the log is sealed again as the server seals it."""
    with closing(sqlite3.connect(run_dir / "run.db")) as database, database:
        yield database
        subjects = {subject for (subject,) in database.execute("SELECT subject FROM seals")}
        for subject, table in (("round", "rounds"), ("round", "failed_attempts"), ("evaluations", "evaluations")):
            subjects |= {f"{subject} {number}" for (number,) in database.execute(f"SELECT DISTINCT round FROM {table}")}
        seals = [(subject, seal_of(database, subject)) for subject in subjects]
        database.executemany("INSERT OR REPLACE INTO seals VALUES (?, ?)", seals)


@contextmanager
def fresh_store() -> Iterator[tuple[Store, Path]]:
    with tempfile.TemporaryDirectory() as folder, closing(Store(Path(folder) / "run.db")) as store:
        yield store, Path(folder) / "run.db"


def query(path: Path, sql: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        return database.execute(sql).fetchall()


def observation(client_id: str, **changes: Any) -> Observation:
    fields: dict[str, Any] = {
        "timing": Timing(1.0),
        "latency_s": 1.0,
        "n_examples": 10,
        "participation": 0,
        "epsilon": 0.0,
        "epsilon_spent": 0.0,
    }
    return Observation(client_id=client_id, **(fields | changes))


def record(round: int, *observations: Observation, **changes: Any) -> RoundRecord:
    fields: dict[str, Any] = {
        "attempt": 1,
        "chosen": tuple(o.client_id for o in observations),
        "round_latency_s": 1.0,
        "wall_clock_s": float(round),
        "selection_s": 0.001,
    }
    return RoundRecord(round=round, observations=observations, **(fields | changes))


def table_of(*ids: str, n_examples: int = 10, tau_min_s: float | None = None, seed: int = 1) -> ClientTable:
    """A table of clients that joined before round 1."""
    table = ClientTable(seed, tau_min_s)
    table.apply_events([LogEvent("joined", i, n_examples=n_examples) for i in ids], round=1)
    return table


def theta(value: float, size: int = 1000) -> Vector:
    """A model of equal values, (size,) float32."""
    return np.full(size, value, np.float32)


def a_round(t: int) -> RoundRecord:
    """A round of three clients. Its numbers differ from those of every other round."""
    observations = tuple(
        Observation(c, Timing(0.5 + t, train_s=0.25), 0.5 + t, 100, t, 1 / t, float(t), statistics={"drift": t / 7})
        for c in "abc"
    )
    events = LogEvent("joined", "d", n_examples=4), LogEvent("reconciled", "d", "late", released=t, epsilon_spent=t / 3)
    return RoundRecord(t, 1, ("a", "b", "c"), None, observations, events, 0.5, 0.0, float(t), 1e-4, f"digest {t}")


def commit_rounds(store: Store) -> None:
    for t in range(1, ROUNDS + 1):
        store.commit_round(a_round(t), optimizer_state=np.full(50, t, np.float32))
        store.save_evaluations(t, [Evaluation("test", True, 100, t / 100, 1.0)])
    store.save_late_events(ROUNDS + 1, [LogEvent("left", "a", "gone")])
