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
from pausefl_server.storage.store import Store


@contextmanager
def changing_log(run_dir: Path) -> Iterator[sqlite3.Connection]:
    """Write into a run's log what its server might have written: no seal tells that it did not."""
    with closing(sqlite3.connect(run_dir / "run.db")) as database, database:
        yield database
        database.execute("DELETE FROM seals")
        database.execute("PRAGMA user_version = 0")


@contextmanager
def fresh_store() -> Iterator[tuple[Store, Path]]:
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "run.db")
        try:
            yield store, Path(folder) / "run.db"
        finally:
            store.close()


def query(path: Path, sql: str) -> list[tuple[Any, ...]]:
    db = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        return db.execute(sql).fetchall()
    finally:
        db.close()


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
