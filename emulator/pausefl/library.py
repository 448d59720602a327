"""What `import pausefl` offers: load and run experiments, compare policies, sweep settings, simulate, read results."""

import operator
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex, get_args

from pausefl.campaigns.campaign import OneByOne, Player, Show
from pausefl.campaigns.side_by_side import SideBySide
from pausefl.campaigns.sweep import Grid, Sweep
from pausefl.config.experiment import Experiment
from pausefl.config.loading import load_experiment
from pausefl.config.server_records import check_policies
from pausefl.config.toml_source import Overrides
from pausefl.exit_status import with_resume_command
from pausefl.observers import Observer, check_methods, check_observers
from pausefl.report.comparison import Comparison
from pausefl.results.run import Run
from pausefl.runtime.fleet import SILENT, View
from pausefl.runtime.run import run_experiment
from pausefl.runtime.run_dir import default_folder, has_rounds, refuse_run_in, remove_unused, resume_command
from pausefl.runtime.terminal import make_view
from pausefl.terminal_table import plain_console
from pausefl_proto.errors import ConfigError, PauseflError

if TYPE_CHECKING:
    from pausefl.campaigns.tuning import Tuning
    from pausefl.campaigns.tuning.plan import By
    from pausefl.offline.latency_fit import LatencyFit
    from pausefl.offline.replay_outputs import Replay


@dataclass(frozen=True)
class Simulation:
    """What a simulation found."""

    folder: Path
    """Where its tables and its figure lie."""
    summary: Mapping[str, Any]
    """What simulation.json holds."""


def load(source: str | Path, overrides: Overrides = ()) -> Experiment:
    """The experiment of a TOML file or a preset, checked.

    `overrides` are values by dotted key, `{"experiment.rounds": 20}`. ConfigError says in one line what is wrong.
    """
    if not isinstance(source, str | Path):
        raise ConfigError(f"source = {source!r:.80}: must be a TOML file or the name of a preset")
    experiment = load_experiment(str(source), overrides)
    check_policies(experiment)
    check_observers(experiment.experiment.observers)
    return experiment


def run(
    experiment: Experiment,
    run_dir: str | Path | None = None,
    *,
    progress: bool = True,
    observers: Sequence[Observer] = (),
) -> Run:
    """Run an experiment to its end, with real processes on this machine, and return its results.

    `run_dir` is runs/<policy>-<time> by default. Blocks until the run has ended, also inside a running event loop.
    `observers` are told of its progress, from a thread of their own.
    ConfigError for bad input, PauseflError for a run that cannot begin or go on: where rounds were played, it names
    the command that goes on with them. `summary["outcome"]` tells its end.
    """
    _check(experiment)
    if not (isinstance(observers, Sequence) and all(isinstance(observer, Observer) for observer in observers)):
        raise ConfigError(f"observers = {observers!r:.80}: must be a list of pausefl.Observer objects")
    for observer in observers:
        check_methods(observer, f"observers: {type(observer).__name__}")
    with _folder(experiment.selection.policy, run_dir, "run_dir") as folder, _show(progress)(experiment.title) as view:
        refuse_run_in(folder)
        try:
            run_experiment(experiment, folder, view, observers=observers)
        except PauseflError as error:
            if not has_rounds(folder):
                raise
            raise with_resume_command(error, resume_command(folder)) from error
    return Run(folder)


def open(run_dir: str | Path) -> Run:  # noqa: A001 - read as pausefl.open, like gzip.open
    """The results of a run directory, also while the run goes on. ConfigError when it is none."""
    return Run(_path("run_dir", run_dir))


def compare(
    experiment: Experiment,
    policies: Sequence[str],
    seeds: int = 1,
    folder: str | Path | None = None,
    *,
    progress: bool = True,
    jobs: int = 1,
) -> Comparison:
    """Run an experiment under each policy with the same seeds, and compare what each reached.

    On the virtual clock, `jobs` runs are played at a time. Table, figure and page are written to `folder`,
    runs/compare-<time> by default.
    """
    from pausefl.campaigns.compare import compare_policies

    _check(experiment, policies)
    seeds, jobs = _count("seeds", seeds), _count("jobs", jobs)
    if not policies:
        raise ConfigError(f"policies = {policies!r}: must name at least one")
    with _folder("compare", folder) as out:
        return compare_policies(experiment, policies, seeds, out, _player(progress, jobs))


def sweep(
    experiment: Experiment,
    grid: Grid,
    seeds: int = 1,
    folder: str | Path | None = None,
    *,
    progress: bool = True,
    jobs: int = 1,
) -> Sweep:
    """Run an experiment at every point of a grid, `{"selection.pause.alpha": [1, 10]}`, with `seeds` seeds each.

    On the virtual clock, `jobs` runs are played at a time. sweep.csv and a figure are written to `folder`,
    runs/sweep-<time> by default.
    """
    from pausefl.campaigns.sweep import run_sweep

    _check(experiment)
    seeds, jobs = _count("seeds", seeds), _count("jobs", jobs)
    if not (isinstance(grid, Mapping) and all(isinstance(key, str) for key in grid)):
        raise ConfigError(f"grid = {grid!r:.80}: must be lists of values by key")
    with _folder("sweep", folder) as out:
        return run_sweep(experiment.to_toml(), grid, seeds, out, _player(progress, jobs))


def simulate(
    experiment: Experiment,
    rounds: int,
    folder: str | Path | None = None,
    *,
    policies: Sequence[str] = (),
    seeds: int = 1,
) -> Simulation:
    """Play policy and latencies alone, without network or training: regret, latency and leakage.

    With several policies or seeds, each is simulated under the same latencies, and the figure has a line a policy in
    a band over the seeds. Tables and a figure are written to `folder`, runs/simulate-<time> by default.
    """
    from pausefl.campaigns.simulations import refuse_results_in, run_simulations
    from pausefl.simulation.outputs import run_simulation

    _check(experiment, policies)
    rounds, seeds = _count("rounds", rounds), _count("seeds", seeds)
    with _folder("simulate", folder) as out:
        refuse_results_in(out)
        if not policies and seeds == 1:
            return Simulation(out, run_simulation(experiment, rounds, out))
        of = policies or [experiment.selection.policy]
        return Simulation(out, run_simulations(experiment, of, seeds, rounds, out))


def replay(
    run_dir: str | Path,
    policy: str | None = None,
    overrides: Overrides = (),
    *,
    draws: int = 100,
    folder: str | Path | None = None,
) -> "Replay":
    """Fold the log of a run through its own policy, which must choose the same clients; PauseflError names the round.

    With another `policy`, or `overrides` of [selection], it estimates what that would have chosen and waited, from so
    many draws. Tables and a figure are written to `folder`, if there is one. ConfigError where the log lacks what the
    policy needs.
    """
    from pausefl.offline.replay_outputs import replayed, write_replay

    draws = _count("draws", draws)
    if not (policy is None or isinstance(policy, str)):
        raise ConfigError(f"policy = {policy!r:.80}: must be the name of a policy")
    out = _path("folder", folder) if folder is not None else None
    found = replayed(_path("run_dir", run_dir), policy, overrides, draws)
    if out is not None:
        write_replay(found, out)
    return found


def fit_latency(source: str | Path) -> "LatencyFit":
    """Fit a law to each client's latencies, from a run directory or a CSV file of (client, time, seconds).

    ConfigError for what is neither, with the line.
    """
    from pausefl.offline.latency_fit import fit_latency

    return fit_latency(_path("source", source))


def tune(
    experiment: Experiment,
    search: Sequence[str] = (),
    folder: str | Path | None = None,
    *,
    by: "By" = "simulate",
    trials: int = 50,
    seeds: int = 3,
    fresh_seeds: int = 10,
    target_accuracy: float | None = None,
    real_seeds: int = 0,
) -> "Tuning":
    """Search parameters, `["selection.pause.alpha=log:1..1000"]`, for latency, leakage and accuracy together.

    `by` says what a setting plays: "simulate" or "run". Returns the Pareto front, held against the experiment's own
    setting on fresh seeds. Tables, settings and a figure are written to `folder`, runs/tune-<time> by default.
    """
    from pausefl.campaigns.tuning import tune_experiment
    from pausefl.campaigns.tuning.plan import By, TuningPlan

    _check(experiment)
    trials, seeds, fresh_seeds = _count("trials", trials), _count("seeds", seeds), _count("fresh_seeds", fresh_seeds)
    real_seeds = _count("real_seeds", real_seeds, at_least=0)
    _check_texts("search", search, "texts KEY=SPACE")
    if by not in get_args(By):
        raise ConfigError(f"by = {by!r:.80}: must be {' or '.join(get_args(By))}")
    if not (target_accuracy is None or isinstance(target_accuracy, int | float)):
        raise ConfigError(f"target_accuracy = {target_accuracy!r:.80}: must be a number")
    plan = TuningPlan(experiment.to_toml(), search, by, trials, seeds, fresh_seeds, target_accuracy, real_seeds)
    with _folder("tune", folder) as out:
        return tune_experiment(plan, out, plain_console(stderr=True))


def _check(experiment: Experiment, policies: Sequence[str] = ()) -> None:
    """ConfigError for an argument of another kind than its annotation says, which Python does not check."""
    if not isinstance(experiment, Experiment):
        raise ConfigError(f"experiment = {experiment!r:.80}: must be an Experiment, as pausefl.load returns it")
    _check_texts("policies", policies, "names")


def _check_texts(name: str, texts: Sequence[str], what: str) -> None:
    if isinstance(texts, str) or not (isinstance(texts, Sequence) and all(isinstance(text, str) for text in texts)):
        raise ConfigError(f"{name} = {texts!r:.80}: must be a list of {what}")


def _count(name: str, value: SupportsIndex, at_least: int = 1) -> int:
    """The whole number that an argument is, one of numpy's too; ConfigError where it is none."""
    try:
        count = operator.index(value)
    except TypeError:
        count = at_least - 1
    if isinstance(value, bool) or count < at_least:
        raise ConfigError(f"{name} = {value!r:.80}: must be a whole number of at least {at_least}")
    return count


def _path(name: str, path: str | Path) -> Path:
    """The path that an argument is; ConfigError where it is none."""
    try:
        return Path(path)
    except TypeError:
        raise ConfigError(f"{name} = {path!r:.80}: must be a path") from None


@contextmanager
def _folder(command: str, folder: str | Path | None, name: str = "folder") -> Iterator[Path]:
    """The folder asked for, or a new one by default, which is removed where nothing was written there; absolute."""
    path = (_path(name, folder) if folder is not None else default_folder(command)).absolute()
    try:
        yield path
    finally:
        if folder is None:
            remove_unused(path)


def _player(progress: bool, jobs: int) -> Player:
    if jobs == 1:
        return OneByOne(_show(progress))
    return SideBySide(jobs, plain_console(quiet=not progress).print)


def _show(progress: bool) -> Show:
    """The display of a run: live on a terminal, lines in a notebook, or none."""
    console = plain_console()

    def show(title: str) -> AbstractContextManager[View]:
        return make_view(console, title) if progress else nullcontext(SILENT)

    return show
