"""The names of `import pausefl`: load and run experiments, compare policies, sweep settings, simulate, read results.

Plug-ins have functions of their own among these names. They check their arguments by the functions at the end.
"""

import operator
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, SupportsIndex

from pausefl.experiment.experiment import Experiment, load_experiment, parse_experiment, with_values
from pausefl.experiment.objects import as_toml, cells_of, folders_of
from pausefl.experiment.toml_source import Overrides, bare_or_quoted, override_values
from pausefl.extras import needs
from pausefl.outcomes import with_resume_command
from pausefl.results.run import Run
from pausefl.results.tables import data_frame
from pausefl.runtime.observers.base import Observer
from pausefl_process.files import check_places
from pausefl_proto.errors import ConfigError, PauseflError

if TYPE_CHECKING:
    import pandas as pd

    from pausefl.results.report.comparison import Comparison
    from pausefl.runtime.standing_fleet import StandingFleet
    from pausefl.studies.playing import Player, Show
    from pausefl.studies.sweep import Grid, Sweep


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
    return _playable(experiment)


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
        experiment = stored_experiment(path_of("run_dir", run_dir))  # it was checked when it began
    else:
        experiment = _playable(experiment)
    if rounds is not None:
        experiment = with_values(experiment, "experiment", rounds=count_of("rounds", rounds))
    if back_to is not None and not (resume and count_of("back_to", back_to, at_least=0) == back_to):
        raise ConfigError(f"back_to = {back_to}: goes with resume = True")
    check_list("observers", observers, Observer, "pausefl.Observer objects")
    for observer in observers:
        check_methods(observer, f"observers: {type(observer).__name__}")
    with (
        folder_of(experiment.selection.policy, run_dir, "run_dir") as folder,
        _show(progress)(experiment.title) as show,
    ):
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
    path = path_of("folder", folder)
    if not (path / "campaign.json").exists():
        return Run(path)
    from pausefl.studies.redrawing import opened_campaign

    return opened_campaign(path)


@needs("report")
def report(folder: str | Path, *, csv: bool = False, formats: Sequence[str] = ()) -> list[Path]:
    """Write the figures and the report of a run, or of a campaign and its runs, again. Return pages and CSV folders.

    `csv` also exports every view of run.db. `formats` ("svg", "png", "pdf") also writes its pictures as files.
    """
    from pausefl.studies.redrawing import report_folder

    return report_folder(path_of("folder", folder), csv=csv, formats=formats)


@needs("server", "client")
def validate(experiment: Experiment) -> list[str]:
    """Try out data, partition, model and training without a run, but no policy. Return what was found, a line each.

    Raises the ConfigError or PauseflError with which a run would end.
    """
    from pausefl.runtime.evaluator.preflight import check_own_code, try_out
    from pausefl.studies.ahead import ahead

    notes: list[str] = []
    check_own_code(_playable(experiment))
    return [*try_out(experiment, notes.append), *notes, *ahead(experiment)]


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
    seeds, jobs = count_of("seeds", seeds), count_of("jobs", jobs)
    if not names:
        raise ConfigError(f"policies = {policies!r}: must name at least one")
    with folder_of("compare", folder) as out:
        return compare_policies(experiment, names, seeds, out, player_of(progress, jobs, executor, fleet))


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

    checked(experiment)
    seeds, jobs = count_of("seeds", seeds), count_of("jobs", jobs)
    if not (isinstance(grid, Mapping) and all(isinstance(key, str) for key in grid)):
        raise ConfigError(f"grid = {grid!r:.80}: must be lists of values by key")
    grid = {key: as_listed(key, values) for key, values in grid.items()}
    experiment = _with_code(experiment, [value for values in grid.values() for value in values])
    with folder_of("sweep", folder) as out:
        return run_sweep(experiment.to_toml(), grid, seeds, out, player_of(progress, jobs, executor, fleet))


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
    rounds, seeds = count_of("rounds", rounds), count_of("seeds", seeds)
    jobs = None if jobs is None else count_of("jobs", jobs)
    with folder_of("simulate", folder) as out:
        return Simulation(out, run_simulations(experiment, names, seeds, rounds, out, jobs))


def _by_key(tables: Mapping[str, Any]) -> dict[str, Any]:
    """The values of tables by dotted key. Entries that already have a dotted key stay as they are."""
    found: dict[str, Any] = {}
    for table, values in tables.items():
        if isinstance(values, Mapping) and isinstance(table, str) and "." not in table:
            found |= {f"{table}.{bare_or_quoted(str(name))}": value for name, value in values.items()}
        else:
            found[table] = values
    return found


def checked(experiment: Experiment | None) -> Experiment:
    """Return the experiment. Raises ConfigError if it is not an `Experiment`."""
    if not isinstance(experiment, Experiment):
        raise ConfigError(f"experiment = {experiment!r:.80}: must be an Experiment, as pausefl.load returns it")
    return experiment


def _playable(experiment: Experiment | None) -> Experiment:
    """Return the experiment. Raises ConfigError also if its policies or its observers do not fit it."""
    from pausefl.experiment.server_records import check_policies
    from pausefl.runtime.observers import check_observers

    check_policies(experiment := checked(experiment))
    check_observers(experiment.experiment.observers)
    return experiment


def _with_policies(experiment: Experiment, policies: Sequence[str | type]) -> tuple[Experiment, list[str]]:
    """The experiment, with code of policies that other processes could not import, and the policies' names."""
    check_list("policies", policies, str | type, "names and classes")
    names = [as_toml(policy, "policies") for policy in policies]
    return _with_code(checked(experiment), names), names


def _with_code(experiment: Experiment, values: list[Any]) -> Experiment:
    """The experiment, with the modules that these values need and other processes could not import."""
    cells, folders = cells_of(values), folders_of(values)
    table = experiment.experiment
    if not (cells or set(folders) - set(table.python_path)):
        return experiment
    path = list(dict.fromkeys([*table.python_path, *folders]))
    return experiment.replace({"experiment.by_value": {**table.by_value, **cells}, "experiment.python_path": path})


def check_list(name: str, values: Sequence[object], kind: type | UnionType, what: str) -> None:
    """Raise ConfigError if an argument is no list of objects of a kind, which `what` describes."""
    is_listed = isinstance(values, Sequence) and not isinstance(values, str)
    if not (is_listed and all(isinstance(value, kind) for value in values)):
        raise ConfigError(f"{name} = {values!r:.80}: must be a list of {what}")


def count_of(name: str, value: SupportsIndex, at_least: int = 1) -> int:
    """The argument as an int. Raises ConfigError if it is no whole number, of Python or numpy, or is too small."""
    try:
        count = operator.index(value)
    except TypeError:
        count = at_least - 1
    if isinstance(value, bool) or count < at_least:
        raise ConfigError(f"{name} = {value!r:.80}: must be a whole number of at least {at_least}")
    return count


def path_of(name: str, path: str | Path) -> Path:
    """The argument as an absolute path, as the working folder may change. Raises ConfigError if it is no path."""
    try:
        check_places(str(found := Path(path)))
    except TypeError:
        raise ConfigError(f"{name} = {path!r:.80}: must be a path") from None
    return found.absolute() if found.name != ".." else found.resolve()  # runs are called by the last name


@contextmanager
def folder_of(command: str, folder: str | Path | None, name: str = "folder") -> Iterator[Path]:
    """Yield the absolute path of `folder`. By default, it is a new folder, which is removed if it stays empty."""
    from pausefl.runtime.run_dir import default_folder, remove_unused

    path = path_of(name, folder) if folder is not None else default_folder(command).absolute()
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


def player_of(progress: bool, jobs: int, executor: Executor | None, fleet: str | None = None) -> "Player":
    """The player of a campaign's runs, by arguments of the functions above. ConfigError if they cannot go together."""
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
