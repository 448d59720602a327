"""Runs an experiment on a grid of settings, with several seeds each, and gathers the results."""

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pausefl.experiment.experiment import parse_experiment, with_values
from pausefl.experiment.objects import as_toml
from pausefl.experiment.server_records import check_policies
from pausefl.experiment.toml_source import listed_values, parts_of_key
from pausefl.results.report.sweep import write_sweep
from pausefl.results.stored_summary import read_summary, told_at_starts
from pausefl.results.tables import data_frame
from pausefl.studies.campaign import Missing, Plan, Planned, read_plan, unfinished
from pausefl.studies.playing import Player, play_campaign
from pausefl_proto.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

Grid = Mapping[str, Sequence[Any]]
"""The values to try, by key of the experiment."""
MOST_RUNS = 10_000
# A file's name has up to 255 bytes, ten of which `job.on_own_disk` adds. A longer name keeps some leading characters.
_LONGEST_NAME, _KEPT = 245, 100


@dataclass(frozen=True)
class Sweep:
    """A finished sweep. Its rows are also written to `folder`/sweep.csv."""

    folder: Path
    """The folder of sweep.csv, the figure and the runs."""
    rows: Sequence[Mapping[str, Any]]
    """One row per run: the grid's keys, then seed, run_dir and the figures of its summary.json. For a run without
    results, `outcome` is "missing" and `stopped_because` says why."""
    missing: Missing = field(default_factory=dict)
    """The errors of runs without results, by the run's name."""

    @property
    def run_dirs(self) -> Sequence[Path]:
        """The directories of the runs that have results."""
        return [self.folder / row["run_dir"] for row in self.rows if row["run_dir"] not in self.missing]

    def to_frame(self) -> "pd.DataFrame":
        """The rows as a DataFrame."""
        return data_frame(self.rows)

    def __repr__(self) -> str:
        return f"<Sweep of {len(self.rows)} runs: {self.folder}>"


def parse_grid(settings: Sequence[str]) -> Grid:
    """The grid that settings of the form `key=a,b,c` span. A setting with one value holds for every run.

    Commas within brackets, braces and quotes do not separate values, so a list is one value. ConfigError for a setting
    without key or value, and for a key that is set twice.
    """
    grid: dict[str, Sequence[Any]] = {}
    for setting in settings:
        key, separator, text = setting.partition("=")
        if not (separator and (parts := parts_of_key(key.strip())) and text.strip()):
            raise ConfigError(f"--set {setting}: must be table.key=value or table.key=a,b,c")
        if parts in map(parts_of_key, grid):
            raise ConfigError(f"--set {setting}: {key.strip()} is set twice; list all its values in one --set")
        grid[key.strip()] = listed_values(text.strip())
    return grid


def run_sweep(source: str, grid: Grid, seeds: int, folder: Path, player: Player) -> Sweep:
    """Play every point of the grid with `seeds` seeds each and write sweep.csv and a figure to `folder`.

    `source` is the experiment as TOML. Raises `CampaignInterrupted` if the user ends a run.
    """
    grid = {key: as_listed(key, values) for key, values in grid.items()}
    return _play(Plan("sweep", source, {"grid": grid, "seeds": seeds}), folder, player)


def resume_sweep(folder: Path, player: Player) -> Sweep:
    """Resume an interrupted sweep. Finished runs are not repeated."""
    return _play(read_plan(folder, "sweep"), folder, player)


def sweep_in(plan: Plan, folder: Path) -> Sweep:
    """Read the sweep in a folder and write its table and figure again. ConfigError if no run is finished."""
    runs = _planned(plan)
    return _gather(plan, runs, folder, unfinished(runs, folder, "sweep"))


def as_listed(key: str, values: object) -> list[Any]:
    """The values of a grid's key as TOML values. ConfigError if `values` is not a non-empty list."""
    if isinstance(values, str) or not (isinstance(values, Iterable) and (listed := list(values))):
        raise ConfigError(f"{key} = {values!r}: must be a list of at least one value")
    return [as_toml(value, key) for value in listed]


def _play(plan: Plan, folder: Path, player: Player) -> Sweep:
    runs = _planned(plan)
    return play_campaign(plan, runs, folder, player, partial(_gather, plan, runs, folder))


def _gather(plan: Plan, runs: Sequence[Planned], folder: Path, missing: Missing) -> Sweep:
    rows = []
    for run in runs:
        found: dict[str, Any] = {"outcome": "missing", "stopped_because": str(missing.get(run.name))}
        if run.name not in missing:
            summary = {name: value for name, value in read_summary(folder / run.name).items() if name != "seed"}
            found = {name: value for name, value in summary.items() if isinstance(value, str | int | float | None)}
            found |= told_at_starts(summary)
        rows.append({**run.point, "seed": run.experiment.experiment.seed, "run_dir": run.name, **found})
    varied = [key for key, values in plan.arguments["grid"].items() if len(values) > 1]
    write_sweep(rows, varied, folder)
    return Sweep(folder, rows, missing)


def _planned(plan: Plan) -> list[Planned]:
    """The runs to play, seed by seed. ConfigError for an invalid grid or experiment."""
    grid, seeds = plan.arguments["grid"], plan.arguments["seeds"]
    if not grid and seeds == 1:
        raise ConfigError("--set: nothing varies; name a key and its values, such as --set selection.m=2,4")
    settings = math.prod(map(len, grid.values()))
    if settings * seeds > MOST_RUNS:
        raise ConfigError(f"--set: {settings} settings of {seeds} seeds each are more than {MOST_RUNS} runs")
    for key, values in grid.items():
        for one, other in itertools.combinations(values, 2):
            if one == other:  # also finds 1 and 1.0, whose runs would have different names
                raise ConfigError(f"--set {key}: {one!r} and {other!r} are the same; name each value once")
        if seeds > 1 and len(values) > 1 and parts_of_key(key) == ["experiment", "seed"]:
            raise ConfigError(f"--set {key}: lists {len(values)} seeds beside --seeds {seeds}; leave one out")
    points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    experiments = [parse_experiment(plan.source, point) for point in points]
    for experiment in experiments:
        check_policies(experiment)
    runs = []
    for i in range(seeds):
        for point, experiment in zip(points, experiments, strict=True):
            seed = experiment.experiment.seed + i
            runs.append(Planned(_name(point, grid, seed), with_values(experiment, "experiment", seed=seed), point))
    return runs


def _name(point: Mapping[str, Any], grid: Grid, seed: int) -> str:
    """The name of a run's folder, from the values that distinguish it. A name that is too long ends in a digest."""
    parts = [f"{key.rpartition('.')[2]}={point[key]}" for key, values in grid.items() if len(values) > 1]
    text = "-".join([*parts, f"seed{seed}"])
    name = re.sub(r"[^A-Za-z0-9_.=+-]+", "-", text)
    if len(name) <= _LONGEST_NAME:
        return name
    return f"{name[:_KEPT]}-{sha256(text.encode()).hexdigest()[:12]}-seed{seed}"
