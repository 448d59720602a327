"""Writes again the reports of finished runs, comparisons and sweeps."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pausefl.results.report import report_runs
from pausefl.results.report.comparison import write_comparison
from pausefl.results.report.comparison.figure import all_runs
from pausefl.results.report.style import KINDS
from pausefl.studies.campaign import plan_of, resume_campaign_command
from pausefl.studies.compare import OF_RUNS, comparison_in
from pausefl.studies.sweep import sweep_in
from pausefl_proto.errors import ConfigError


def opened_campaign(folder: Path) -> Any:
    """The results of a finished campaign: a Comparison, Sweep or Reproduction. ConfigError for any other folder."""
    plan = plan_of(folder)
    if plan is not None and plan.command in ("compare", OF_RUNS):
        return comparison_in(plan, folder)
    if plan is not None and plan.command == "sweep":
        return sweep_in(plan, folder)
    if (folder / "reproduction.json").exists():
        from pausefl_reproduce.library import finished

        return finished(folder)
    said = f"pausefl {plan.command}" if plan else "another command"
    raise ConfigError(f"{folder}: holds no finished comparison, sweep or reproduction; begun by {said}")


def report_folder(folder: Path, *, csv: bool, formats: Sequence[str] = ()) -> list[Path]:
    """Write the reports of a run, or of a comparison or sweep and each of its runs; returns the written paths.

    With `csv`, the tables of every run are exported too. `formats` lists further formats of pictures. ConfigError for
    another or unfinished folder.
    """
    if unknown := [kind for kind in formats if kind not in KINDS]:
        raise ConfigError(f"formats {unknown[0]}: must be {', '.join(KINDS)}")
    plan = plan_of(folder)
    if plan is None:
        return report_runs([folder], csv, formats)
    if plan.command == "sweep":
        pages = report_runs(sweep_in(plan, folder).run_dirs, csv, formats)
        return [*pages, *(path for name in ("sweep.csv", "sweep.png") if (path := folder / name).exists())]
    if plan.command in ("compare", OF_RUNS):
        comparison = comparison_in(plan, folder)
        pages = report_runs([run.path for run in all_runs(comparison.runs)], csv, formats)
        return [*pages, write_comparison(comparison, folder)]  # written last, as it links those pages
    again = resume_campaign_command(plan.command, folder)
    if plan.command == "reproduce":
        again = shlex.join(["pausefl", "reproduce", plan.arguments["name"], "--resume", "--out", str(folder)])
    raise ConfigError(f"{folder}: was begun by pausefl {plan.command}; to write its files again: {again}")
