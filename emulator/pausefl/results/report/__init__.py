"""Writes the report of a finished run: figures, an HTML page, and the tables as CSV.

May live here: figures, pages and tables of one run or of several. Not here: numbers that need no figure (`results`).
"""

import math
from collections.abc import Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from pausefl.results.figures import Figures
from pausefl.results.reading import RunData, open_database, read_run
from pausefl.results.report.html import run_page
from pausefl.results.report.learning import Learning, learning
from pausefl.results.report.plots import drawings
from pausefl.results.report.style import write_picture
from pausefl.results.tables import write_csv
from pausefl_process.files import write_durably


def write_report(run: RunData, formats: Sequence[str] = ()) -> Path:
    """Draw the run's figures into plots/, as SVG and in `formats`, and write report.html; return its path."""
    figures, plots = Figures(), run.path / "plots"
    plots.mkdir(exist_ok=True)
    kinds = list(dict.fromkeys(("svg", *formats)))
    pictures = {name: write_picture(plots / name, draw, figures, kinds) for name, draw in drawings(run).items()}
    page = run.path / "report.html"
    write_durably(page, run_page(run, pictures, figures))
    return page


def report_runs(run_dirs: Sequence[Path], csv: bool, formats: Sequence[str] = ()) -> list[Path]:
    """Write a report of each run and, with `csv`, its tables as CSV; return the paths of pages, then of CSV folders."""
    pages, folders = [], []
    for run_dir in run_dirs:
        run = read_run(run_dir)
        pages.append(write_report(run, formats))
        if csv:
            folders.append(export_csv(run))
    return [*pages, *folders]


def export_csv(run: RunData) -> Path:
    """Write each view of run.db to csv/VIEW.csv in the run's directory, with SQLite's numbers; return the folder.

    For a policy with Fed-TS's posteriors, posteriors.csv and drifts.csv are written too. If one table fails, it is left
    out and the others are written.
    """
    folder, figures, learnt = run.path / "csv", Figures(), cache(lambda: learning(run))
    folder.mkdir(exist_ok=True)

    def write_view(view: str) -> None:
        rows = database.execute(f"SELECT * FROM {view}")
        write_csv(folder / f"{view}.csv", [column[0] for column in rows.description], rows)

    def write_posteriors() -> None:
        if known := learnt():
            write_csv(folder / "posteriors.csv", ("round", "client_id", "s", "f"), _posteriors(known))

    def write_drifts() -> None:
        if known := learnt():
            write_csv(folder / "drifts.csv", (*known.drifts, "threshold"), _drifts(known))

    with open_database(run.path) as database:
        views = [view for (view,) in database.execute("SELECT name FROM sqlite_schema WHERE type = 'view'").fetchall()]
        figures.compute_all({f"{view}.csv": partial(write_view, view) for view in views})
    figures.compute_all({"posteriors.csv": write_posteriors, "drifts.csv": write_drifts})
    for name in figures.missing:
        (folder / name).unlink(missing_ok=True)  # an earlier export may have written it
    return folder


def _posteriors(learnt: Learning) -> Iterator[tuple[Any, ...]]:
    """Rows (round, client id, s, f): each newcomer's counts after each round since it joined."""
    for t, (s, f) in enumerate(zip(learnt.s.tolist(), learnt.f.tolist(), strict=True), start=1):
        rows = zip(learnt.newcomers, learnt.join_round, s, f, strict=True)
        yield from ((t, client_id, s_k, f_k) for client_id, join_round, s_k, f_k in rows if t >= join_round)


def _drifts(learnt: Learning) -> Iterator[tuple[Any, ...]]:
    """Rows with each drift and the threshold of its round, None if the round had none. Flags are 0 or 1."""
    for t, client_id, drift, original, small in zip(*(c.tolist() for c in learnt.drifts.values()), strict=True):
        threshold = float(learnt.threshold[t - 1])
        yield t, client_id, drift, int(original), int(small), None if math.isnan(threshold) else threshold
