"""Writes results.md and its pictures from the summaries under results/reproduce. No number on the page is typed.

python docs/write_results.py           # write the page again
python docs/write_results.py DIR...    # store the summary of each `pausefl reproduce NAME --out DIR` first
"""

import json
import math
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

from pausefl.experiment.server_records import selected_policy
from pausefl.results.report.style import rendered
from pausefl.results.statistics import FEWEST_SEEDS, quartiles
from pausefl.results.summary import policy_parameters
from pausefl_process.files import reason, write_durably
from pausefl_proto.errors import ConfigError, PauseflError
from pausefl_reproduce.figure import StoredSummary, draw_reproduction
from pausefl_reproduce.published import find_reproduction, reproductions
from pausefl_reproduce.request import in_full
from pausefl_reproduce.summary import REPRODUCTION, as_text

_DOCS = Path(__file__).parent
_KEPT = Path("results/reproduce")

_HEAD = f"""# Reproduced figures

This page is written by `python docs/write_results.py` from `docs/results/reproduce/*.json`. Each of those files is
what one `pausefl reproduce NAME` left behind. `pausefl reproduce --list` shows every figure that can be run.

- A *seed* decides the split, the first model and the latency draws. All series share the same seeds, so that
  differences are taken pair by pair. Noise is private: no seed repeats it.
- Brackets are 95 % bootstrap intervals of the mean over seeds. With fewer than {FEWEST_SEEDS} seeds there is no
  interval. Such intervals are narrow: of a symmetric figure they hold the true mean about nine times in ten with ten
  seeds, and five times in six with five. The accuracy of the small MNIST net is skewed, since most of its first ReLUs
  die and a few seeds end far below the others: there they hold it in 83 % and 60 %.
- After an accuracy stands its median, where the values by seed were kept, with the quartiles; with fewer than
  {FEWEST_SEEDS} seeds, with the least and the greatest.
- *Time to* an accuracy is the total latency at the first evaluation that reached it, on a fixed subset of the
  test data. Some seeds may not reach it. They are censored, not dropped: the mean is then the restricted mean of
  the Kaplan–Meier estimate. It counts waits up to a stated time: the longest that the series, and the one it is
  compared with, were followed where they have censored seeds. Differences are of waits up to that time too. A model
  that diverged counts as followed as long as any run.
- *Win rate*: the share of the seeds in which the series was the earlier one of a pair. Half of the ties counts, and of
  the pairs that censoring leaves undecided.
- Accuracies are of test data. *Best* is the greatest of all evaluations, on the fixed subset, as in the authors'
  archive; where clients join later, of the evaluations since then. *Last* is the last model's, on all test examples.
  So it can be above the best.
- Values after "archived" or "published" are the authors', of one run. Totals and last values stand only beside runs of
  as many rounds. A series with a run that ended early has no total.
"""


def keep(folder: Path, docs: Path = _DOCS) -> None:
    """Store the summary of a finished reproduction. ConfigError for one that the page cannot show, or should not.

    That is one of another version, of the quick scale, of other settings, or of less than the stored one.
    """
    file = folder / REPRODUCTION
    summary = _read(file)
    try:
        results_page([summary])
        stored = docs / _KEPT / f"{summary['name']}.json"
        usual = _changed(_read(stored)) if stored.exists() else set()
        if other := sorted(_changed(summary) - usual):
            raise ConfigError(f"{file}: was played with other settings ({', '.join(other)})")
        store(summary, docs)
    except (AttributeError, KeyError, TypeError) as error:
        raise ConfigError(f"{file}: is of another version, or damaged ({error!r})") from error


def store(summary: StoredSummary, docs: Path = _DOCS) -> None:
    """Store a summary. ConfigError if it lacks series or seeds that the stored one has: the page would lose them."""
    file = docs / _KEPT / f"{summary['name']}.json"
    stored = _read(file)["series"] if file.exists() else {}
    lacking = [name for name in stored if name not in summary["series"]]
    if not lacking:
        lacking = [name for name, has in stored.items() if len(summary["series"][name]["seeds"]) < len(has["seeds"])]
    if lacking:
        raise ConfigError(f"{summary['name']}: lacks runs of {', '.join(lacking)}, which {file} has")
    write_durably(file, as_text(summary))


def _changed(summary: StoredSummary) -> set[str]:
    """What a summary's command changes in the figure's settings, except the clock."""
    words = shlex.split(summary["command"])
    changed = {value for option, value in pairwise(words) if option == "--set"}
    scale = set() if summary["scale"] == "full" else {f"--scale {summary['scale']}"}
    return {each for each in changed if not each.startswith(("experiment.clock=", "latency.time_scale="))} | scale


def _read(file: Path) -> dict[str, Any]:
    """A stored summary. ConfigError for a file that is none."""
    try:
        summary: dict[str, Any] = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: cannot be read ({reason(error)})") from error
    return summary


def write_page(docs: Path = _DOCS) -> str:
    """Write results.md and its pictures from the stored summaries. Returns the page."""
    summaries = kept_summaries(docs)
    for summary in summaries:
        (docs / _KEPT / f"{summary['name']}.png").write_bytes(rendered(draw_reproduction(summary), "png"))
    page = results_page(summaries)
    (docs / "results.md").write_text(page, "utf-8")
    return page


def kept_summaries(docs: Path = _DOCS) -> list[dict[str, Any]]:
    """The summaries stored in the documents, in the order of the papers."""
    files = (docs / _KEPT / f"{each.name}.json" for each in reproductions())
    return [_read(file) for file in files if file.exists()]


def results_page(summaries: Sequence[StoredSummary]) -> str:
    """The whole page as Markdown, with the summaries in the given order."""
    sections = (line for summary in summaries for line in _section(summary))
    return "\n".join([_HEAD, *_overview(summaries), "", *sections]) + "\n"


def _overview(summaries: Sequence[StoredSummary]) -> Iterator[str]:
    """Yields the table of all figures: the comparison with the published one, and what is not played yet."""
    kept = {summary["name"]: summary for summary in summaries}
    yield "| figure | beside the published one | seeds | still open |"
    yield "|---|---|---|---|"
    for figure in reproductions():
        if summary := kept.get(figure.name):
            seeds = len(next(iter(summary["series"].values()))["seeds"])
            wanted = max(FEWEST_SEEDS, figure.seeds)
            lacking = [name for name in figure.series if name not in summary["series"]]
            lacking = [f"the series {', '.join(lacking)}"] if lacking else []
            lacking += [phrase for phrase in summary["left_out"] if phrase.endswith(("rounds", "examples"))]
            lacking += [f"{wanted - seeds} of {wanted} seeds"] if seeds < wanted else []
            lacking += ["today's defaults of the policy"] if [*_played_otherwise(summary)] else []
            link = re.sub(r"[^\w\- ]", "", figure.title.lower()).replace(" ", "-")
            yield f"| [{figure.title}](#{link}) | {figure.verdict or 'open'} | {seeds} | {'; '.join(lacking) or '–'} |"
        else:
            yield f"| {figure.title} | open | – | all |"


def _section(summary: StoredSummary) -> Iterator[str]:
    yield f"## {summary['title']}"
    yield ""
    yield f"![{summary['title']}](results/reproduce/{summary['name']}.png)"
    yield ""
    yield from ("```", summary["command"], "```", "")
    yield from _conditions(summary)
    yield ""
    yield from _table(summary)
    yield ""
    if differences := list(_differences(summary)):
        yield from differences
        yield ""
    if told := [*_chosen(summary), *_retired(summary), *_ended_early(summary)]:
        yield from told
        yield ""
    if remarks := find_reproduction(summary["name"]).remarks:
        yield from (f"- {remark}" for remark in remarks)
        yield ""


def _conditions(summary: StoredSummary) -> Iterator[str]:
    settings = summary["settings"]
    seeds = next(iter(summary["series"].values()))["seeds"]
    numbers = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"
    delays = "" if settings["time_scale"] == 1 else f", delays at {settings['time_scale']:g} of their length"
    yield (
        f"- {_rounds_in_words(summary)}, {settings['clients']} clients, {settings['m']} a round, {settings['dataset']},"
        f" model `{settings['model']}`{delays}; {numbers}."
    )
    if settings.get("clock", "real") == "virtual":
        counts = summary["drawing"] == "elapsed" and settings.get("step_s") is None
        trained = "training took what it took there, and counts" if counts else "nothing was measured"
        yield f"- Played on the [virtual clock](virtual-clock.md): latencies are those drawn, and {trained}."
    if summary["epsilon_budget"] is not None:
        yield f"- Privacy budget ε̄ = {summary['epsilon_budget']:g} per {summary['privacy_unit']}."
    suspect = sum(series["suspect_rounds"] for series in summary["series"].values())
    played = sum(sum(_rounds_played(series)) for series in summary["series"].values())
    yield f"- {summary['hardware']}; pausefl {summary['software']}; {suspect:,} of {played:,} rounds are suspect."
    yield from _played_otherwise(summary)
    if summary["left_out"]:
        yield f"- Left out: {'; '.join(summary['left_out'])}."
    if len(seeds) < FEWEST_SEEDS:
        yield f"- No intervals: {len(seeds)} of at least {FEWEST_SEEDS} seeds."
    if not summary["published"]:
        yield "- No published values of this figure are kept here."


def _played_otherwise(summary: StoredSummary) -> Iterator[str]:
    """Yields a line for each set of series whose policy was played with parameters that are not today's defaults."""
    figure, of = in_full(find_reproduction(summary["name"])), dict[str, list[str]]()
    for name, played in summary.get("policies", {}).items():
        today = json.loads(json.dumps(policy_parameters(selected_policy(figure.experiment(name).selection))))
        if other := [f"`{key} = {json.dumps(value)}`" for key, value in played.items() if today.get(key) != value]:
            of.setdefault(" and ".join(other), []).append(f"`{name}`")
    for other_settings, names in of.items():
        yield f"- Played with {other_settings}, which is not today's default: {', '.join(names)}."


def _table(summary: StoredSummary) -> Iterator[str]:
    told = [level for level in ("0.6", "0.7", "0.8") if _is_reached(summary, level)]
    columns = ["series", "best, on the subset (%)", "last, on all (%)"]
    if has_latency := _has_latency(summary):
        columns += [f"{_time_meant(summary)} (s)", *(f"time to {100 * float(level):.0f} % (s)" for level in told)]
    if has_clusters := any("cluster_term_s" in series for series in summary["series"].values()):
        columns += ["δ_τ term of eq. (22) (s)"]
    if summary["epsilon_budget"] is not None:
        columns += ["greatest ε", "median ε"]
    yield f"| {' | '.join(columns)} |"
    yield "|---" * len(columns) + "|"
    for name, series in summary["series"].items():
        published = summary["published"].get(name) or {}
        word = "published" if summary["drawing"] == "best" else "archived"
        at_the_end = published if published and _is_as_long(summary, name) else {}
        cells = [
            f"`{name}`",
            _cell(series["best_accuracy"], 100, published.get("best"), word, series.get("best_by_seed", ())),
            _cell(series["last_accuracy"], 100, at_the_end.get("final"), word, series.get("last_by_seed", ())),
        ]
        if has_latency:
            cells += [_cell(series["total_latency_s"], 1, at_the_end.get("total_s"), word)]
            cells += [_time(series, level) for level in told]
        if has_clusters:
            cells += [_cell(series.get("cluster_term_s"), 1)]
        if summary["epsilon_budget"] is not None:
            leak = next((value for number, value in published.get("leak", ()) if number == series["rounds"]), None)
            cells += [_cell(series["greatest_leak"], 1, leak, word), _cell(series["median_leak"], 1)]
        yield f"| {' | '.join(cells)} |"


def _time_meant(summary: StoredSummary) -> str:
    return "elapsed time" if summary["drawing"] == "elapsed" else "total latency"


def _has_latency(summary: StoredSummary) -> bool:
    """Whether links had delays. Without them, a run on the virtual clock waits only for clients that drop out."""
    figure = in_full(find_reproduction(summary["name"]))
    latencies = (figure.experiment(name).latency for name in summary["series"])
    return any(latency.groups or (latency.delay or {"kind": "none"})["kind"] != "none" for latency in latencies)


def _ends(series: Mapping[str, Any]) -> list[int]:
    """The number of rounds after which each run that ended early has ended."""
    return [*series.get("diverged_after", ()), *series.get("budgets_spent_after", ())]


def _rounds_played(series: Mapping[str, Any]) -> list[int]:
    """The number of rounds that each run played."""
    ends = _ends(series)
    return ends + [series["rounds"]] * (len(series["seeds"]) - len(ends))


def _rounds_in_words(summary: StoredSummary) -> str:
    """The number of rounds played, in words, and the planned number if it differs."""
    planned, of_series = summary["settings"]["rounds"], summary["series"].values()
    if not any(_ends(series) for series in of_series):
        return f"{planned} rounds"
    played = sorted({rounds for series in of_series for rounds in _rounds_played(series)})
    return f"{' to '.join(str(rounds) for rounds in dict.fromkeys((played[0], played[-1])))} of {planned} rounds"


def _is_as_long(summary: StoredSummary, name: str) -> bool:
    """Whether all runs of a series have the published number of rounds: the stated one, or else the figure's."""
    stated = summary["published"][name].get("rounds")
    published = stated or in_full(find_reproduction(summary["name"])).experiment(name).experiment.rounds
    return set(_rounds_played(summary["series"][name])) == {published}


def _is_reached(summary: StoredSummary, level: str) -> bool:
    return any(series["time_to"][level]["reached"] for series in summary["series"].values())


def _time(series: Mapping[str, Any], level: str) -> str:
    found, n_seeds = series["time_to"][level], len(series["seeds"])
    if not found["reached"]:
        return "not reached"
    if _is_later(found):
        return f"not by {_digits(found['horizon_s'])} s ({found['reached']} of {n_seeds} later)"
    notes = [f"{found['reached']} of {n_seeds} reached it"] if found["reached"] < n_seeds else []
    notes += [f"waits up to {_digits(found['horizon_s'])} s"] if found["horizon_s"] is not None else []
    return f"{_cell(found, 1)} ({'; '.join(notes)})" if notes else _cell(found, 1)


def _is_later(time: Mapping[str, Any]) -> bool:
    """Whether the seeds that reached an accuracy did so after the time up to which waits count."""
    return time["horizon_s"] is not None and math.isclose(time["mean"], time["horizon_s"])


def _chosen(summary: StoredSummary) -> Iterator[str]:
    """Yields how often a newcomer of each role was chosen, for series in which roles differ."""
    for name, series in summary["series"].items():
        by_role: dict[str, list[float]] = {}
        for newcomer in (series["newcomers"] or {"selections": {}})["selections"].values():
            by_role.setdefault(newcomer["role"], []).append(newcomer["mean"])
        means = {role: fmean(times) for role, times in by_role.items() if role is not None}
        if len(set(means.values())) > 1:
            told = ", ".join(f"{_digits(mean)} times if {role}" for role, mean in sorted(means.items(), reverse=True))
            yield f"- `{name}` chose a newcomer {told} (mean over newcomers and seeds)."


def _retired(summary: StoredSummary) -> Iterator[str]:
    """Yields the number of clients in each fifth, by speed, that have used up their budgets, for each series."""
    for name, series in summary["series"].items():
        if any(fifths := series.get("retired_by_fifth", ())):
            told = " / ".join(_digits(retired) for retired in fifths)
            by = f"by {_digits(summary['shortest_s'])} s (means over seeds)"
            yield f"- `{name}` retired {told} clients of the fastest to the slowest fifth {by}."


def _ended_early(summary: StoredSummary) -> Iterator[str]:
    """Yields a line for each series with runs that ended early, with the reason."""
    reasons = {"diverged_after": "the model diverged", "budgets_spent_after": "privacy budgets ended the run"}
    for name, series in summary["series"].items():
        for key, why in reasons.items():
            if rounds := series.get(key):
                told = f"{len(rounds)} of {len(series['seeds'])} seeds, after round {' / '.join(map(str, rounds))}"
                yield f"- `{name}`: {why} with {told}. Its curves end with the first of these."


def _differences(summary: StoredSummary) -> Iterator[str]:
    """Yields the difference of each series from the baseline, paired by seed."""
    base = summary["baseline"]
    for name, series in summary["series"].items():
        if series["against_baseline"] and _has_latency(summary):
            parts = (_difference(series, key, found) for key, found in series["against_baseline"].items())
            if told := "; ".join(part for part in parts if part):
                yield f"- `{name}` less `{base}`: {told}."


def _difference(series: Mapping[str, Any], key: str, found: Mapping[str, Any]) -> str:
    """The difference of one figure in words. "" for the time to an accuracy that the series did not reach in time."""
    said = f"{_cell(found['difference'], 1)} s, win rate {100 * found['win_rate']:.0f} %"
    if key == "total_latency_s":
        return f"total latency {said}"
    level = key.split("_")[2]
    time = series["time_to"][level]
    up_to = "" if time["horizon_s"] is None else f", of waits up to {_digits(time['horizon_s'])} s"
    is_known = time["reached"] and not (_is_later(time) and found["difference"]["mean"] == 0)
    return f"time to {100 * float(level):.0f} % {said}{up_to}" if is_known else ""


def _cell(
    interval: Mapping[str, Any] | None,
    unit: float,
    published: float | None = None,
    word: str = "",
    by_seed: Sequence[float] = (),
) -> str:
    """A table cell: a mean with its interval, the median of the values by seed, and the published value."""
    if interval is None:
        return "–"
    text = _digits(unit * interval["mean"])
    if interval["low"] is not None:
        text += f" [{_digits(unit * interval['low'])}, {_digits(unit * interval['high'])}]"
    if len(by_seed) > 1:
        enough = len(by_seed) >= FEWEST_SEEDS
        low, middle, high = quartiles(by_seed) if enough else (min(by_seed), median(by_seed), max(by_seed))
        text += f", median {_digits(unit * middle)} ({_digits(unit * low)}–{_digits(unit * high)})"
    return text if published is None else f"{text}; {word} {published:g}"


def _digits(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}"


def main(folders: Sequence[str]) -> int:
    """Store the summaries in these folders and write the page. Returns 2 if a summary was left out, else 0."""
    status = 0
    for each in folders:
        try:
            keep(Path(each))
        except PauseflError as error:
            print(f"left out: {error}", file=sys.stderr)
            status = 2
    write_page()
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
