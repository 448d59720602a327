"""The documented views of run.db as CSV files, and what a Fed-TS run learnt."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pausefl.report.learning import Learning, learning
from pausefl.results.csv_table import write_csv
from pausefl.results.reading import RunData, open_database

_VIEWS = "SELECT name FROM sqlite_schema WHERE type = 'view'"


def export_csv(run: RunData) -> Path:
    """Write each view to csv/VIEW.csv in the run's directory, numbers as SQLite holds them; return the folder.

    A run under a policy with Fed-TS's posteriors has two tables more: posteriors.csv and drifts.csv.
    """
    learnt = learning(run)
    folder = run.path / "csv"
    folder.mkdir(exist_ok=True)
    with open_database(run.path) as database:
        for (view,) in database.execute(_VIEWS).fetchall():
            rows = database.execute(f"SELECT * FROM {view}")
            write_csv(folder / f"{view}.csv", [column[0] for column in rows.description], rows)
    if learnt:
        write_csv(folder / "posteriors.csv", ("round", "client_id", "s", "f"), _posteriors(learnt))
        write_csv(folder / "drifts.csv", (*learnt.drifts, "threshold"), _drifts(learnt))
    return folder


def _posteriors(learnt: Learning) -> Iterator[tuple[Any, ...]]:
    """Each newcomer's s and f after each round from the one it joined at."""
    for t, (s, f) in enumerate(zip(learnt.s.tolist(), learnt.f.tolist(), strict=True), start=1):
        rows = zip(learnt.newcomers, learnt.join_round, s, f, strict=True)
        yield from ((t, client_id, s_k, f_k) for client_id, join_round, s_k, f_k in rows if t >= join_round)


def _drifts(learnt: Learning) -> Iterator[tuple[Any, ...]]:
    """Each drift beside the threshold of its round, empty where there was none; flags are 0 or 1."""
    for t, client_id, drift, original, small in zip(*(c.tolist() for c in learnt.drifts.values()), strict=True):
        threshold = float(learnt.threshold[t - 1])
        yield t, client_id, drift, int(original), int(small), None if math.isnan(threshold) else threshold
