"""Writes again what finished runs leave to read, also those of a comparison or a sweep."""

import shlex
from pathlib import Path

from pausefl.campaigns.campaign import plan_of, resume_campaign_command
from pausefl.campaigns.compare import OF_RUNS, redraw_comparison
from pausefl.campaigns.sweep import redraw_sweep
from pausefl.report import report_runs
from pausefl_proto.errors import ConfigError


def report_folder(folder: Path, *, csv: bool) -> list[Path]:
    """Report on a run, or on a comparison or a sweep and each of its runs; returns what was written.

    `csv` exports the tables of every run, too. ConfigError for a folder that is none of these, or not finished.
    """
    plan = plan_of(folder)
    if plan is None:
        return report_runs([folder], csv=csv)
    if plan.command == "sweep":
        pages = report_runs(redraw_sweep(plan, folder), csv=csv)
        return [*pages, *(path for name in ("sweep.csv", "sweep.png") if (path := folder / name).exists())]
    if plan.command in ("compare", OF_RUNS):
        return [*report_runs(redraw_comparison(plan, folder), csv=csv), folder / "comparison.html"]
    again = resume_campaign_command(plan.command, folder)
    if plan.command == "reproduce":
        again = shlex.join(["pausefl", "reproduce", plan.arguments["name"], "--resume", "--out", str(folder)])
    raise ConfigError(f"{folder}: was begun by pausefl {plan.command}; to write its files again: {again}")
