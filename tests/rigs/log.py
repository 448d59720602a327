"""A run's log in a folder of its own, and records to write in it."""

import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from pausefl_proto.wire import Vector
from pausefl_server.records import Observation, RoundRecord, Timing
from pausefl_server.storage.seals import seal_of
from pausefl_server.storage.store import Store


@contextmanager
def changing_log(run_dir: Path) -> Iterator[sqlite3.Connection]:
    """Write into a run's log what its server might have written, under seals as the server's."""
    with closing(sqlite3.connect(run_dir / "run.db")) as database, database:
        yield database
        subjects = {subject for (subject,) in database.execute("SELECT subject FROM seals")}
        for subject, table in (("round", "rounds"), ("round", "failed_attempts"), ("evaluations", "evaluations")):
            subjects |= {f"{subject} {number}" for (number,) in database.execute(f"SELECT DISTINCT round FROM {table}")}
        seals = [(subject, seal_of(database, subject)) for subject in subjects]
        database.executemany("INSERT OR REPLACE INTO seals VALUES (?, ?)", seals)


@contextmanager
def fresh_store() -> Iterator[tuple[Store, Path]]:
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "run.db")
        try:
            yield store, Path(folder) / "run.db"
        finally:
            store.close()


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
        "weights": None,
        "events": (),
        "round_latency_s": 1.0,
        "wall_clock_s": float(round),
        "selection_s": 0.001,
        "model_digest": "",
    }
    return RoundRecord(round=round, observations=observations, **(fields | changes))


def theta(value: float, size: int = 1000) -> Vector:
    """A model of equal values, (size,) float32."""
    return np.full(size, value, np.float32)
