"""The names of `import pausefl`: load and run experiments, compare policies, sweep settings, simulate, read results."""

import operator
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, get_args

from pausefl.experiment.experiment import Experiment, load_experiment, parse_experiment, with_values
from pausefl.experiment.objects import as_toml, cells_of, folders_of
from pausefl.experiment.toml_source import Overrides, bare_or_quoted, override_values
from pausefl.extras import needs, require
from pausefl.outcomes import with_resume_command
from pausefl.results.run import Run
from pausefl.results.tables import data_frame, flat
from pausefl.runtime.observers.base import Observer
from pausefl_process.files import check_places
from pausefl_proto.errors import ConfigError, PauseflError

if TYPE_CHECKING:
    import pandas as pd

    from pausefl.experiment.measured.formats import Unit
    from pausefl.results.report.comparison import Comparison
    from pausefl.runtime.standing_fleet import StandingFleet
    from pausefl.studies.offline.latency_fit import LatencyFit
    from pausefl.studies.offline.replay_outputs import Replay
    from pausefl.studies.playing import Player, Show
    from pausefl.studies.sweep import Grid, Sweep
    from pausefl_audit.audit import Audit
    from pausefl_tune.front import FrontPoint
    from pausefl_tune.plan import TuningPlan
    from pausefl_tune.study import SearchResult

By = Literal["simulate", "run"]
"""How a trial of `tune` is played: as a simulation or as a run."""


@dataclass(frozen=True)
class Simulation:
    """The result of a simulation."""

    folder: Path
    """The folder of its tables and its figure."""
    summary: Mapping[str, Any]
    """The content of simulation.json, or of simulations.json with several policies or seeds."""

    def to_frame(self) -> "pd.DataFrame":
        """A row per simulation: policy, seed, rounds, total latency, ε and regrets."""
        rows = self.folder / "simulations.csv"
        return data_frame(rows if rows.exists() else [self.summary])

    def __repr__(self) -> str:
        return f"<Simulation of {self.summary['rounds']} rounds: {self.folder}>"


@dataclass(frozen=True)
class Reproduction:
    """The result of playing a published figure again."""

    folder: Path
    """The folder of its runs and its figure."""
    summary: Mapping[str, Any]
    """The content of reproduction.json."""

    def to_frame(self) -> "pd.DataFrame":
        """A row per series, with the mean and the interval of each figure."""
        rows = [{"series": name, **flat(found)} for name, found in self.summary["series"].items()]
        return data_frame(rows)

    def __repr__(self) -> str:
        return f"<Reproduction of {', '.join(self.summary['series'])}: {self.folder}>"


@dataclass(frozen=True)
class Tuning:
    """The result of a parameter search."""

    folder: Path
    """The folder of front.csv, front.png, the settings as TOML, and the study."""
    plan: "TuningPlan"
    """The plan of the search: its space, its seeds and its objectives."""
    tried: "SearchResult"
    """Every setting that was tried."""
    front: "Sequence[FrontPoint]"
    """The settings that no other setting dominates, the recommended one first. The published setting comes last."""
    confirmed: "Sequence[FrontPoint]"
    """The recommended and the published setting, measured on the real clock. Empty unless the plan has `real_seeds`."""

    def to_frame(self) -> "pd.DataFrame":
        """The rows of front.csv, one for each setting of the front."""
        return data_frame(self.folder / "front.csv")

    def __repr__(self) -> str:
        return f"<Tuning with {len(self.front)} settings on its front: {self.folder}>"


@needs("server", "client", "report")
def load(source: str | Path | Mapping[str, Any] | Experiment, overrides: Overrides = ()) -> Experiment:
    """Return the checked experiment of a TOML file, a preset, tables of values or another experiment.

    `overrides` are values by dotted key, such as `{"experiment.rounds": 20}`. ConfigError says what is wrong.
    """
    check_places()
    if isinstance(source, Experiment):
        experiment = source.replace(overrides)
    elif isinstance(source, Mapping):
        experiment = parse_experiment("", {**override_values(_by_key(source)), **override_values(overrides)})
    elif isinstance(source, str | Path):
        experiment = load_experiment(str(source), overrides)
    else:
        raise ConfigError(f"source = {source!r:.80}: must be a TOML file, a preset, tables or an Experiment")
    from pausefl.experiment.server_records import check_policies
    from pausefl.runtime.observers import check_observers

    check_policies(experiment)
    check_observers(experiment.experiment.observers)
    return experiment


@needs("server", "client", "report")
def run(
    experiment: Experiment | None = None,
    run_dir: str | Path | None = None,
    *,
    resume: bool = False,
    rounds: int | None = None,
    back_to: int | None = None,
    progress: bool = True,
    observers: Sequence[Observer] = (),
    fleet: str | None = None,
) -> Run:
    """Run an experiment to its end, with real processes on this machine, and return its results.

    `run_dir` is runs/<policy>-<time> by default. With `resume`, the run in `run_dir` goes on, if there is one; then
    `experiment` may be left out. `rounds` replaces the number of rounds. `back_to` first discards the rounds after that
    round. The call blocks until the run has ended, also inside a running event loop. `observers` are notified of its
    progress, from a thread of their own. With `fleet`, "HOST:PORT", its clients connect to that address from outside.
    Raises ConfigError for bad input, and PauseflError for a run that cannot begin or go on. If rounds were played, the
    error names the call that goes on with them. `summary["outcome"]` says how the run ended.
    """
    from pausefl.runtime.observers import check_methods
    from pausefl.runtime.run import run_experiment
    from pausefl.runtime.run_dir import has_rounds, refuse_run_in, stored_experiment

    if resume and run_dir is None:
        raise ConfigError("resume = True: needs the run_dir of the run to go on with")
    if resume and experiment is None and run_dir is not None:
        experiment = stored_experiment(_path("run_dir", run_dir))
    experiment = _checked(experiment)
    if rounds is not None:
        experiment = with_values(experiment, "experiment", rounds=_count("rounds", rounds))
    if back_to is not None and not (resume and _count("back_to", back_to, at_least=0) == back_to):
        raise ConfigError(f"back_to = {back_to}: goes with resume = True")
    _check_list("observers", observers, Observer, "pausefl.Observer objects")
    for observer in observers:
        check_methods(observer, f"observers: {type(observer).__name__}")
    with _folder(experiment.selection.policy, run_dir, "run_dir") as folder, _show(progress)(experiment.title) as show:
        where = f", fleet={fleet!r}" if fleet else ""
        go_on = f"pausefl.run(run_dir={str(folder)!r}, resume=True{where})"
        if not resume:
            refuse_run_in(folder, go_on)
        try:
            run_experiment(
                experiment, folder, show, resume=resume, back_to=back_to, observers=observers, fleet=_fleet(fleet)
            )
        except PauseflError as error:
            if not has_rounds(folder):
                raise
            raise with_resume_command(error, go_on) from error
    return Run(folder)


@needs("server", "report")
def open(folder: str | Path) -> "Run | Any":  # noqa: A001 - read as pausefl.open, like gzip.open
    """Return the results in a folder: a Run, finished or not, or a finished Comparison, Sweep or Reproduction.

    Raises ConfigError if the folder is none of these.
    """
    path = _path("folder", folder)
    if not (path / "campaign.json").exists():
        return Run(path)
    from pausefl.studies.redrawing import opened_campaign

    found = opened_campaign(path)
    return Reproduction(path, found) if isinstance(found, Mapping) else found


@needs("report")
def report(folder: str | Path, *, csv: bool = False, formats: Sequence[str] = ()) -> list[Path]:
    """Write the figures and the report of a run, or of a campaign and its runs, again. Return pages and CSV folders.

    `csv` also exports every view of run.db. `formats` ("svg", "png", "pdf") also writes its pictures as files.
    """
    from pausefl.studies.redrawing import report_folder

    return report_folder(_path("folder", folder), csv=csv, formats=formats)


@needs("server", "client")
def validate(experiment: Experiment) -> list[str]:
    """Try out data, partition, model and the user's own code without a run. Return what was found, a line each.

    Raises the ConfigError or PauseflError with which a run would end.
    """
    from pausefl.runtime.evaluator.preflight import check_own_code, try_out
    from pausefl.studies.ahead import ahead

    notes: list[str] = []
    check_own_code(_checked(experiment))
    return [*try_out(experiment, notes.append), *notes, *ahead(experiment)]


@needs("server", "client", "audit")
def audit(source: str | Path | Experiment, *, uploads: int = 20_000, run_dir: str | Path | None = None) -> "Audit":
    """Attack the privacy mechanism of an experiment or a run with `uploads` uploads, and check a run's ledgers.

    With `run_dir`, the experiment is first run there with canaries in its data, and their releases are audited too.
    Raises PauseflError if an upload leaks more than it claims, or if noise is not what was charged.
    """
    from pausefl_audit.audit import play_with_canaries, run_audit

    if not isinstance(source, str | Path | Experiment):
        raise ConfigError(f"source = {source!r:.80}: must be a run directory, a TOML file, a preset or an Experiment")
    uploads = _count("uploads", uploads, at_least=100)
    if run_dir is not None:
        source = play_with_canaries(source, (), _path("run_dir", run_dir))
    found = run_audit(source, (), uploads)
    found.raise_if_broken()
    return found


@needs("server", "client", "report", "reproduce")
def reproduce(
    name: str,
    folder: str | Path | None = None,
    *,
    scale: Literal["quick", "full"] | None = None,
    seeds: int | None = None,
    series: Sequence[str] = (),
    each_seed: bool = False,
    resume: bool = False,
    progress: bool = True,
    jobs: int = 1,
    executor: Executor | None = None,
) -> Reproduction:
    """Play the runs of a published figure or table by name, and draw it with the published values.

    `scale` is "quick" by default. `folder` is runs/reproduce-NAME by default. With `resume`, the reproduction there
    goes on. With `each_seed`, each seed is also drawn as a thin line.
    """
    from pausefl_reproduce.command import requested
    from pausefl_reproduce.playing import reproduce

    _check_list("series", series, str, "names")
    if scale not in (None, "quick", "full"):
        raise ConfigError(f"scale = {scale!r:.80}: must be quick or full")
    out = None if folder is None else str(_path("folder", folder))
    asked = Namespace(name=name, out=out, scale=scale, resume=resume, overrides=[], series=",".join(series) or None)
    asked.seeds, asked.each_seed = None if seeds is None else _count("seeds", seeds), each_seed
    request = requested(asked)
    player = _player(progress, _count("jobs", jobs), executor)
    return Reproduction(request.folder.absolute(), reproduce(request, player, resume=resume))


@needs("server", "client", "report")
def compare(
    experiment: Experiment,
    policies: Sequence[str | type],
    seeds: int = 1,
    folder: str | Path | None = None,
    *,
    progress: bool = True,
    jobs: int = 1,
    fleet: str | None = None,
    executor: Executor | None = None,
) -> "Comparison":
    """Run an experiment under each policy with the same seeds, and compare the results.

    `policies` are names or classes. On the virtual clock, `jobs` runs are played at the same time, or as many as the
    `executor` accepts. With `fleet`, "HOST:PORT", clients from outside stay connected and play the runs one after the
    other, in an order drawn by the seed. `missing` lists runs without results. Table, figure and page are written to
    `folder`, runs/compare-<time> by default.
    """
    from pausefl.studies.compare import compare_policies

    experiment, names = _with_policies(experiment, policies)
    seeds, jobs = _count("seeds", seeds), _count("jobs", jobs)
    if not names:
        raise ConfigError(f"policies = {policies!r}: must name at least one")
    with _folder("compare", folder) as out:
        return compare_policies(experiment, names, seeds, out, _player(progress, jobs, executor, fleet))


@needs("server", "client", "report")
def sweep(
    experiment: Experiment,
    grid: "Grid",
    seeds: int = 1,
    folder: str | Path | None = None,
    *,
    progress: bool = True,
    jobs: int = 1,
    fleet: str | None = None,
    executor: Executor | None = None,
) -> "Sweep":
    """Run an experiment at every point of a grid, `{"selection.pause.alpha": [1, 10]}`, with `seeds` seeds each.

    For `jobs`, `executor` and `fleet`, see `compare`. `missing` lists runs without results. sweep.csv and a figure are
    written to `folder`, runs/sweep-<time> by default.
    """
    from pausefl.studies.sweep import as_listed, run_sweep

    _checked(experiment)
    seeds, jobs = _count("seeds", seeds), _count("jobs", jobs)
    if not (isinstance(grid, Mapping) and all(isinstance(key, str) for key in grid)):
        raise ConfigError(f"grid = {grid!r:.80}: must be lists of values by key")
    grid = {key: as_listed(key, values) for key, values in grid.items()}
    experiment = _with_code(experiment, [value for values in grid.values() for value in values])
    with _folder("sweep", folder) as out:
        return run_sweep(experiment.to_toml(), grid, seeds, out, _player(progress, jobs, executor, fleet))


@needs("server", "report")
def simulate(
    experiment: Experiment,
    rounds: int,
    folder: str | Path | None = None,
    *,
    policies: Sequence[str | type] = (),
    seeds: int = 1,
    jobs: int | None = None,
) -> Simulation:
    """Simulate the policy and the latencies, without network or training, and return regret, latency and leakage.

    With several policies or seeds, all are simulated under the same latencies, `jobs` at a time: by default one per
    core, but one below 400,000 rounds in all. The figure then has a line for each policy, with a band over the seeds.
    Tables and a figure are written to `folder`, runs/simulate-<time> by default.
    """
    from pausefl.studies.simulations import run_simulations

    experiment, names = _with_policies(experiment, policies)
    rounds, seeds = _count("rounds", rounds), _count("seeds", seeds)
    jobs = None if jobs is None else _count("jobs", jobs)
    with _folder("simulate", folder) as out:
        return Simulation(out, run_simulations(experiment, names, seeds, rounds, out, jobs))


@needs("server")
def replay(
    run_dir: str | Path,
    policy: str | None = None,
    overrides: Overrides = (),
    *,
    draws: int = 100,
    folder: str | Path | None = None,
) -> "Replay":
    """Replay a run's log with its own policy, which must choose the same clients. If not, PauseflError names the round.

    With another `policy`, or `overrides` of [selection], it estimates that policy's choices and latencies from `draws`
    draws. Tables and a figure are written to `folder`, if it is given. Raises ConfigError if the log lacks data that
    the policy needs.
    """
    from pausefl.studies.offline.replay_outputs import replayed, write_replay

    draws = _count("draws", draws)
    if not (policy is None or isinstance(policy, str)):
        raise ConfigError(f"policy = {policy!r:.80}: must be the name of a policy")
    out = _path("folder", folder) if folder is not None else None
    found = replayed(_path("run_dir", run_dir), policy, overrides, draws)
    if out is not None:
        write_replay(found, out)
    return found


@needs("server", "latency")
def fit_latency(
    source: str | Path,
    *,
    format: str = "csv",
    column: str | None = None,
    unit: "Unit | None" = None,
    client_column: str | None = None,
    time_column: str | None = None,
    filter: Sequence[str] = (),
    lost: Sequence[str] = (),
    timeout_s: float | None = None,
) -> "LatencyFit":
    """Fit a law to each client's latencies, from a run directory or a file of (client, time, seconds).

    The other arguments describe the file, like the keys of an "empirical" law. Without `unit`, values that look like
    milliseconds are refused. Raises ConfigError for any other source; it names the line.
    """
    from pausefl.experiment.measured.reading import Reading
    from pausefl.studies.offline.latency_fit import fit_latency

    try:
        reading = Reading(
            format=format,
            column=column,
            unit=unit,
            client_column=client_column,
            time_column=time_column,
            filter=tuple(filter),
            lost=tuple(lost),
            timeout_s=timeout_s,
        )
    except ValueError as error:
        raise ConfigError(str(error)) from None
    _path("source", source)  # the file is read now, and errors name it as it was given
    return fit_latency(Path(source), reading)


@needs("server", "report", "tune")
def tune(
    experiment: Experiment,
    search: Sequence[str] = (),
    folder: str | Path | None = None,
    *,
    by: By = "simulate",
    trials: int = 50,
    seeds: int = 3,
    fresh_seeds: int = 10,
    target_accuracy: float | None = None,
    real_seeds: int = 0,
    jobs: int = 1,
    executor: Executor | None = None,
) -> Tuning:
    """Search parameters, `["selection.pause.alpha=log:1..1000"]`, for latency, leakage and accuracy together.

    `by` says how a setting is played: "simulate" or "run". For `jobs` and `executor`, see `compare`. Returns the Pareto
    front, compared with the experiment's own setting on fresh seeds. Tables, settings and a figure are written to
    `folder`, runs/tune-<time> by default.
    """
    require("tune", "report")
    from pausefl.terminal_table import plain_console
    from pausefl_tune import tune_experiment
    from pausefl_tune.plan import TuningPlan

    _checked(experiment)
    trials, seeds, fresh_seeds = _count("trials", trials), _count("seeds", seeds), _count("fresh_seeds", fresh_seeds)
    real_seeds = _count("real_seeds", real_seeds, at_least=0)
    _check_list("search", search, str, "texts KEY=SPACE")
    if by not in get_args(By):
        raise ConfigError(f"by = {by!r:.80}: must be {' or '.join(get_args(By))}")
    if not (target_accuracy is None or isinstance(target_accuracy, int | float)):
        raise ConfigError(f"target_accuracy = {target_accuracy!r:.80}: must be a number")
    plan = TuningPlan(experiment.to_toml(), search, by, trials, seeds, fresh_seeds, target_accuracy, real_seeds)
    with _folder("tune", folder) as out:
        return tune_experiment(plan, out, plain_console(stderr=True), _player(True, _count("jobs", jobs), executor))


def _by_key(tables: Mapping[str, Any]) -> dict[str, Any]:
    """The values of tables by dotted key. Entries that already have a dotted key stay as they are."""
    found: dict[str, Any] = {}
    for table, values in tables.items():
        if isinstance(values, Mapping) and isinstance(table, str) and "." not in table:
            found |= {f"{table}.{bare_or_quoted(str(name))}": value for name, value in values.items()}
        else:
            found[table] = values
    return found


def _checked(experiment: Experiment | None) -> Experiment:
    """Return the experiment. Raises ConfigError if it is not an `Experiment`."""
    if not isinstance(experiment, Experiment):
        raise ConfigError(f"experiment = {experiment!r:.80}: must be an Experiment, as pausefl.load returns it")
    return experiment


def _with_policies(experiment: Experiment, policies: Sequence[str | type]) -> tuple[Experiment, list[str]]:
    """The experiment, with code of policies that other processes could not import, and the policies' names."""
    _check_list("policies", policies, str | type, "names and classes")
    names = [as_toml(policy, "policies") for policy in policies]
    return _with_code(_checked(experiment), names), names


def _with_code(experiment: Experiment, values: list[Any]) -> Experiment:
    """The experiment, with the modules that these values need and other processes could not import."""
    cells, folders = cells_of(values), folders_of(values)
    table = experiment.experiment
    if not (cells or set(folders) - set(table.python_path)):
        return experiment
    path = list(dict.fromkeys([*table.python_path, *folders]))
    return experiment.replace({"experiment.by_value": {**table.by_value, **cells}, "experiment.python_path": path})


def _check_list(name: str, values: Sequence[object], kind: type | UnionType, what: str) -> None:
    is_listed = isinstance(values, Sequence) and not isinstance(values, str)
    if not (is_listed and all(isinstance(value, kind) for value in values)):
        raise ConfigError(f"{name} = {values!r:.80}: must be a list of {what}")


def _count(name: str, value: SupportsIndex, at_least: int = 1) -> int:
    """The argument as an int. Raises ConfigError if it is no whole number, of Python or numpy, or is too small."""
    try:
        count = operator.index(value)
    except TypeError:
        count = at_least - 1
    if isinstance(value, bool) or count < at_least:
        raise ConfigError(f"{name} = {value!r:.80}: must be a whole number of at least {at_least}")
    return count


def _path(name: str, path: str | Path) -> Path:
    """The argument as an absolute path, as the working folder may change. Raises ConfigError if it is no path."""
    try:
        check_places(str(found := Path(path)))
    except TypeError:
        raise ConfigError(f"{name} = {path!r:.80}: must be a path") from None
    return found.absolute() if found.name != ".." else found.resolve()  # runs are called by the last name


@contextmanager
def _folder(command: str, folder: str | Path | None, name: str = "folder") -> Iterator[Path]:
    """Yield the absolute path of `folder`. By default, it is a new folder, which is removed if it stays empty."""
    from pausefl.runtime.run_dir import default_folder, remove_unused

    path = _path(name, folder) if folder is not None else default_folder(command).absolute()
    try:
        yield path
    finally:
        if folder is None:
            remove_unused(path)


def _fleet(address: str | None) -> "StandingFleet | None":
    from pausefl.runtime.standing_fleet import StandingFleet

    if not (address is None or isinstance(address, str)):
        raise ConfigError(f"fleet = {address!r:.80}: must be HOST:PORT")
    return StandingFleet(address) if address is not None else None


def _player(progress: bool, jobs: int, executor: Executor | None, fleet: str | None = None) -> "Player":
    from pausefl.studies.executors import player_on
    from pausefl.studies.playing import OneByOne, OnExecutor
    from pausefl.terminal_table import plain_console

    say = plain_console(quiet=not progress).print
    if fleet is not None:
        if jobs != 1 or executor is not None:
            other = f"jobs = {jobs}" if executor is None else "executor"
            raise ConfigError(f"{other}: goes without fleet, whose clients play one run at a time")
        return OneByOne(_show(progress), say, _fleet(fleet))
    if executor is None:
        return player_on("local", (), jobs, _show(progress), say)
    if not isinstance(executor, Executor):
        raise ConfigError(f"executor = {executor!r:.80}: must be a concurrent.futures.Executor")
    if jobs != 1:
        raise ConfigError(f"jobs = {jobs}: goes without executor, which plays as many runs at a time as it accepts")
    is_elsewhere = not isinstance(executor, ThreadPoolExecutor | ProcessPoolExecutor)
    return OnExecutor(lambda *_: nullcontext(executor), say, is_elsewhere=is_elsewhere)


def _show(progress: bool) -> "Show":
    """The display of a run: live on a terminal, lines in a notebook, or none."""
    from pausefl.runtime.terminal import make_view
    from pausefl.terminal_table import plain_console

    return partial(make_view, plain_console()) if progress else lambda _: nullcontext(lambda _: None)
