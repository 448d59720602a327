"""Writes what a finished run leaves to read: figures, one page, and the tables as CSV.

May live here: figures, pages and tables of one run or of several. Not here: numbers that need no figure (`results`).
"""

from collections.abc import Sequence
from pathlib import Path

from pausefl.report.csv_export import export_csv
from pausefl.report.html import run_page
from pausefl.report.plots import draw_all
from pausefl.report.style import save_pdf, save_png
from pausefl.results.reading import RunData, read_run
from pausefl_process.files import write_durably

__all__ = ["report_runs", "write_report"]


def write_report(run_dir: Path) -> Path:
    """Draw the run's figures into plots/ and write report.html; return the latter's path."""
    return _write_report(read_run(run_dir))


def _write_report(run: RunData) -> Path:
    figures, plots = draw_all(run), run.path / "plots"
    plots.mkdir(exist_ok=True)
    for name, figure in figures.items():
        save_png(figure, plots / f"{name}.png")
        save_pdf(figure, plots / f"{name}.pdf")
    page = run.path / "report.html"
    write_durably(page, run_page(run, figures))
    return page


def report_runs(run_dirs: Sequence[Path], csv: bool) -> list[Path]:
    """Report on each run, with its tables as CSV if asked; return what was written: pages and CSV folders."""
    pages, folders = [], []
    for run_dir in run_dirs:
        run = read_run(run_dir)
        pages.append(_write_report(run))
        if csv:
            folders.append(export_csv(run))
    return [*pages, *folders]
