"""`make figures`: play the runs that docs/results.md still lacks, and write the page again.

python -m benchmarks.figures                          the whole plan in its order, one run at a time
python -m benchmarks.figures fedts-fig7 --jobs 2      one figure, two runs at a time
python -m benchmarks.figures --merge FILE             add the runs that another machine played, and write the page

Each finished run is stored as a line of docs/results/reproduce/NAME.runs.jsonl, so that an interrupted queue goes on
where it stopped. A figure is drawn from the seeds that all its played series have. With `--out FILE` all lines go into
that file, and no page is written. `make figures-gpu` uses this on a machine that is lent for a short time.
"""

import argparse
import json
import math
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from hashlib import blake2b
from pathlib import Path
from statistics import median
from typing import Any

from docs.write_results import store, write_page
from pausefl.experiment.experiment import Experiment, parse_experiment
from pausefl.results.reading import read_run
from pausefl.studies.campaign import CampaignInterrupted, Planned, is_played
from pausefl.studies.executors import side_by_side
from pausefl_process.files import held_folder, reason, write_durably
from pausefl_process.machine import machine_in_words
from pausefl_proto.errors import ConfigError, PauseflError
from pausefl_reproduce.played import PlayedSeed, has_diverged, summarise_series
from pausefl_reproduce.playing import planned
from pausefl_reproduce.published import find_reproduction
from pausefl_reproduce.request import Request
from pausefl_reproduce.summary import kept_of, summary_of

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "docs/results/reproduce"
RUNS = ROOT / "build/figures"
_TRIAL_ROUNDS = (1, 5)
_TAIL_LINES = 15
_DEVICES = ("cuda", "cpu")


@dataclass(frozen=True)
class Wanted:
    """One entry of the plan: a figure, or a variant of one."""

    seeds: int = 5
    series: tuple[str, ...] = ()
    """The series to play. Empty: all series of the figure."""
    set: tuple[str, ...] = ()
    """Settings (key=value) that differ from the figure's own."""
    of: str = ""
    """The figure of which this entry is a variant, which another page shows. Empty: the entry is a figure itself."""


def _poisoned(scale: float, groups: Sequence[str] = ("poisoned",)) -> tuple[str, ...]:
    behaviours = f'behaviours=[{{kind="gaussian-update",scale={scale:.1f}}}]'
    return tuple(f"clients.groups.{group}.{behaviours}" for group in groups)


_OF_250 = [f"poisoned{insertion}" for insertion in range(4)]
_GUARD = ("selection.fed-ts.guard=leave-one-out",)
_BOTH = ("fed-ts", "random-10")
PLAN: Mapping[str, Wanted] = {
    **{f"async{of}": Wanted(10) for of in ("", "-large", "-stragglers", "-pareto", "-outages")},
    "async-cifar": Wanted(),
    **{name: Wanted(10) for name in ("small_mnist", "large_mnist", "fig8")},
    "fedts-fig7": Wanted(),
    "fedts-fig6": Wanted(),
    "fedts-fig10": Wanted(),
    "fedts-table2-poisoning": Wanted(set=_poisoned(200)),
    "fedts-table2-heterogeneity": Wanted(),
    "fedts-fig9": Wanted(),
    **{f"poisoned-{s:g}": Wanted(3, _BOTH, _poisoned(s), "fedts-fig9") for s in (0.5, 5, 100, 200, 1000)},
    "never-poisoned": Wanted(3, ("fed-ts",), ("clients.groups.poisoned.join_round=101",), "fedts-fig9"),
    **{f"guarded-{s}": Wanted(3, ("fed-ts",), (*_poisoned(s), *_GUARD), "fedts-fig9") for s in (1, 200, 1000)},
    **{f"devices-250-poisoned-{s}": Wanted(1, (), _poisoned(s, _OF_250), "fedts-fig10") for s in (200, 1000)},
    "fedts-fig5": Wanted(),
    "fedts-fig8": Wanted(),
    **{name: Wanted() for name in ("small_cifar_running", "fig2", "fig3", "fig6", "small_cifar", "small_cifar_batch")},
    **{name: Wanted() for name in ("fig10", "fig11", "fig14")},
}
"""The entries that the documents show, by name, in the order in which they are played."""


def main() -> int:
    """Run the command. Returns 0 if no run is missing any more, 1 if runs are missing, 2 for bad input."""
    options = _options()
    try:
        if options.jobs < 1:
            raise ConfigError(f"--jobs {options.jobs}: must be at least 1")
        names = [_entry(name) for name in options.names] or list(PLAN)
        if unknown := set(options.series).difference(*(request_of(name).series for name in names)):
            raise ConfigError(f"--series {min(unknown)}: is shown by none of {', '.join(names)}")
        lines = Lines(options.out)
        try:
            if options.merge:
                lines.add(fit_lines(options.merge))
            else:
                play(names, lines, options.jobs, options.device, options.series)
        except CampaignInterrupted:
            print("figures: interrupted; the same command goes on", file=sys.stderr)
        if options.out is None:
            write_figures(names, lines)
    except (PauseflError, OSError) as error:
        print(f"figures: {error}", file=sys.stderr)
        return 2
    left = sum(1 for _ in missing(names, lines))
    print(f"{left} runs are missing")
    return int(left > 0)


# --- the stored runs


class Lines:
    """The stored runs, by entry of the plan, series and seed. They lie in `file`, or in one file per entry."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        if file:
            file.parent.mkdir(parents=True, exist_ok=True)
        self._of: dict[tuple[str, str, int], dict[str, Any]] = {}
        for path in [file] if file else sorted(KEPT.glob("*.runs.jsonl")):
            self._read(path)

    def _read(self, path: Path) -> None:
        if path.exists():
            self._of |= {_key(line): line for line in read_lines(path)}

    def add(self, lines: Iterable[dict[str, Any]]) -> None:
        """Store these lines. Each replaces the line that was stored for the same run."""
        new = {_key(line): line for line in lines}
        for file in {self._path(name) for name, _, _ in new}:
            with held_folder(file.parent):
                self._read(file)  # another queue may have stored runs meanwhile
                self._of |= {key: line for key, line in new.items() if self._path(key[0]) == file}
                kept = [line for key, line in sorted(self._of.items()) if self._path(key[0]) == file]
                write_durably(file, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in kept))

    def _path(self, name: str) -> Path:
        return self._file or KEPT / f"{name}.runs.jsonl"

    def runs(self, name: str, series: str) -> dict[int, PlayedSeed]:
        """The runs of a series that were played with the plan's settings, by seed."""
        settings = _settings(request_of(name).experiment(series))
        return {
            seed: PlayedSeed(**line["run"])
            for (entry, of_series, seed), line in self._of.items()
            if (entry, of_series) == (name, series) and line["settings"] == settings
        }


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The stored lines of a file, each a run as a JSON object; ConfigError for a file or a line that is none."""
    found = []
    for place, text in _texts(path):
        try:
            found.append(_line_of(text))
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{place}: cannot be read ({error!r})") from error
    return found


def fit_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the lines of a file that the plan can use. Others are named: damaged, of other settings, or cut short."""
    for place, text in _texts(path):
        try:
            line = _line_of(text)
            _check_fit(line)
        except PauseflError as error:
            print(f"left out: {place}: {error}", flush=True)
        except (KeyError, TypeError, ValueError) as error:
            print(f"left out: {place}: is damaged, or of another version ({error!r})", flush=True)
        else:
            yield line


def _check_fit(line: Mapping[str, Any]) -> None:
    """Raise an error if the plan has no use for a line: ConfigError, or that of drawing a damaged run."""
    (name, series, _), run = _key(line), PlayedSeed(**line["run"])
    request = request_of(_entry(name))
    if name != _entry(name) or series not in request.series:
        raise ConfigError(f"{name} shows no {series}")
    if line["settings"] != _settings(request.experiment(series)):
        raise ConfigError(f"{name}, {series}: was played with other settings")
    if not (run.is_whole or run.diverged or run.budgets_spent):
        raise ConfigError(f"{name}, {series}: ended early, after {run.rounds} rounds")
    summarise_series({series: [run]})


def _texts(path: Path) -> Iterator[tuple[str, str]]:
    """Yields the lines of a file, each with its place in words. ConfigError if the file cannot be read."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read ({reason(error)})") from error
    yield from ((f"{path}, line {number}", line) for number, line in enumerate(lines, start=1))


def _line_of(text: str) -> dict[str, Any]:
    """The run on a line. ValueError, TypeError or KeyError for a line without one."""
    line: dict[str, Any] = json.loads(text)
    if not all(isinstance(each, of) for each, of in zip(_key(line), (str, str, int), strict=True)):
        raise TypeError("name, series or seed")
    return line


def _key(line: Mapping[str, Any]) -> tuple[str, str, int]:
    return line["name"], line["series"], line["run"]["seed"]


def _settings(experiment: Experiment) -> str:
    """A digest of all settings that are not defaults, except the seed and the device."""
    tables = experiment.model_dump(mode="json", exclude_defaults=True)
    tables["experiment"].pop("seed", None)
    tables["workload"].pop("device", None)
    match tables["workload"].get("training"):
        case {"kind": kind, **others} if not others:
            tables["workload"]["training"] = kind  # a kind alone, as the stored digests have it
    return blake2b(json.dumps(tables, sort_keys=True).encode(), digest_size=8).hexdigest()


# --- the missing runs, and how they are played


def _entry(name: str) -> str:
    """The plan's name for a figure, such as fig2 for fig4, which is drawn from the same runs; ConfigError for none."""
    return name if name in PLAN else find_reproduction(name).name


@cache
def request_of(name: str) -> Request:
    """The request for an entry of the plan, or for a figure with five seeds. ConfigError for an unknown name."""
    wanted = PLAN.get(name, Wanted())
    figure = find_reproduction(wanted.of or name)
    series = wanted.series or tuple(figure.series)
    return Request(figure, series, wanted.seeds, "full", ("experiment.clock=virtual", *wanted.set), RUNS / name)


def missing(names: Sequence[str], lines: Lines, only: Sequence[str] = ()) -> Iterator[tuple[str, str, Planned]]:
    """Yields (entry, series, run) of each run that is not stored, only of the series `only` if given; seed by seed."""
    for name in names:
        request = request_of(name)
        kept = {series: lines.runs(name, series) for series in request.series}
        for series, run in planned(request, {series: request.experiment(series) for series in request.series}):
            if run.experiment.experiment.seed not in kept[series] and (not only or series in only):
                yield name, series, Planned(f"{name}/{run.name}", run.experiment)


def play(names: Sequence[str], lines: Lines, jobs: int, device: str, only: Sequence[str] = ()) -> None:
    """Play the missing runs, and store each when it ends. CampaignInterrupted if a signal ends the play.

    A run that fails is reported with the end of its server's log, and is played once more.
    """
    left = {run.name: (name, series, run) for name, series, run in missing(names, lines, only)}
    began_s, again = time.monotonic(), set[str]()
    runs = [run for _, _, run in left.values()]
    devices = _fastest(runs, jobs) if device == "fastest" and runs else {}
    left = {k: (name, series, _on(devices.get(_kind(run), device), run)) for k, (name, series, run) in left.items()}

    def keep(key: str) -> None:
        name, series, _ = left.pop(key)
        if line := _line(name, series, RUNS / key):
            lines.add([line])
        shutil.rmtree(RUNS / key)

    def ended(said: str) -> None:
        print(f"{time.monotonic() - began_s:5.0f} s  {said}", flush=True)
        key = said.partition(":")[0]
        if is_played(left[key][2], RUNS):
            keep(key)

    RUNS.mkdir(parents=True, exist_ok=True)
    while left:
        for key in [key for key, (_, _, run) in left.items() if is_played(run, RUNS)]:
            keep(key)
        failed = side_by_side(jobs, ended).play([run for _, _, run in left.values()], RUNS)
        for key, error in failed.items():
            if isinstance(error, CampaignInterrupted):
                raise error
            how = "left out" if key in again else "once more"
            print(f"{key}, {how}: {error}\n{_last_said(RUNS / key)}", flush=True)
            if key in again:
                shutil.rmtree(RUNS / key, ignore_errors=True)
                del left[key]
        again.update(failed)


def _last_said(run_dir: Path) -> str:
    """The last lines of the server's log. Empty if there is no log."""
    log = run_dir / "server.log"
    return "\n".join(log.read_text("utf-8", "replace").splitlines()[-_TAIL_LINES:]) if log.exists() else ""


def _line(name: str, series: str, run_dir: Path) -> dict[str, Any] | None:
    """The line to store for a run. None for a run that failed, unless it failed because its model diverged."""
    run, request = read_run(run_dir), request_of(name)
    if run.summary["outcome"] == "failed" and not has_diverged(run.summary):
        print(f"left out: {run_dir}: {run.summary['stopped_because']}", flush=True)
        return None
    hardware = machine_in_words() + (f", {_gpu()}" if run.settings["workload"].get("device") == "cuda" else "")
    played = asdict(kept_of(request, run, hardware))
    return {"name": name, "series": series, "settings": _settings(request.experiment(series)), "run": played}


def _gpu() -> str:
    import torch  # imported here: this takes seconds, and only runs on a GPU need it

    return torch.cuda.get_device_name()


# --- processor or GPU


def _kind(run: Planned) -> str:
    """The data set and the model of a run, as one string."""
    return f"{run.experiment.workload.dataset}, {run.experiment.workload.model}"


def _on(device: str, run: Planned) -> Planned:
    return Planned(run.name, parse_experiment(run.experiment.to_toml(), [f"workload.device={device}"]))


def _fastest(runs: Sequence[Planned], jobs: int) -> dict[str, str]:
    """By kind of run, the device on which one more round takes less time. About `jobs` trials run at the same time."""
    kinds = {_kind(run): run for run in reversed(runs)}
    copies = range(max(1, jobs // (len(_DEVICES) * len(_TRIAL_ROUNDS) * len(kinds))))
    folder, began_s, ends_s = RUNS / "trials", time.monotonic(), dict[str, float]()
    shutil.rmtree(folder, ignore_errors=True)

    def trial(number: int, run: Planned, device: str, rounds: int, copy: int) -> Planned:
        settings = [f"experiment.rounds={rounds}", "evaluation.every=100", f"workload.device={device}"]
        experiment = parse_experiment(run.experiment.to_toml(), settings)
        return Planned(f"{number}-{device}-{rounds}-{copy}", experiment)

    def ended(said: str) -> None:
        ends_s[said.partition(":")[0]] = time.monotonic() - began_s

    trials = [
        trial(number, run, device, rounds, copy)
        for number, run in enumerate(kinds.values())
        for device in _DEVICES
        for rounds in _TRIAL_ROUNDS
        for copy in copies
    ]
    for name, error in side_by_side(len(trials), ended).play(trials, folder).items():
        if isinstance(error, CampaignInterrupted):
            raise error
        print(f"a trial failed: {name}: {error}", flush=True)  # for instance without a GPU: the trial then has no time
        ends_s.pop(name, None)

    def round_s(number: int, device: str) -> float:
        few_s, many_s = (
            median(ends_s.get(f"{number}-{device}-{rounds}-{copy}", math.inf) for copy in copies)
            for rounds in _TRIAL_ROUNDS
        )
        return (many_s - few_s) / (_TRIAL_ROUNDS[1] - _TRIAL_ROUNDS[0]) if math.isfinite(many_s) else math.inf

    found = {}
    for number, kind in enumerate(kinds):
        on_gpu_s, on_cpu_s = (round_s(number, device) for device in _DEVICES)
        found[kind] = "cuda" if on_gpu_s < on_cpu_s else "cpu"
        print(f"{kind}: a round takes {on_gpu_s:.2f} s on cuda, {on_cpu_s:.2f} s on cpu", flush=True)
    return found


# --- the page


def write_figures(names: Sequence[str], lines: Lines) -> None:
    """Write the summary of each figure from the seeds that all its played series have, and the page."""
    for name in (name for name in names if not PLAN.get(name, Wanted()).of):
        request = request_of(name)
        played = {series: runs for series in request.series if (runs := lines.runs(name, series))}
        if seeds := sorted(set.intersection(*(set(runs) for runs in played.values())) if played else ()):
            found = {series: [runs[seed] for seed in seeds] for series, runs in played.items()}
            summary = summary_of(replace(request, series=tuple(found), seeds=len(seeds)), found)
            try:
                store(summary, KEPT.parents[1])
            except ConfigError as error:
                print(f"the page stays as it was: {error}", flush=True)
    write_page(KEPT.parents[1])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("figures", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", help="these alone, in this order; default: all of the plan")
    parser.add_argument("--series", type=lambda text: text.split(","), default=[], help="play these alone: a,b")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="runs at a time (default: 1)")
    parser.add_argument("--device", choices=("cpu", "cuda", "fastest"), default="cpu")
    parser.add_argument("--out", type=Path, metavar="FILE", help="keep the lines here, and write no page")
    parser.add_argument("--merge", type=Path, metavar="FILE", help="take over these lines, and play nothing")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
