"""Compares an experiment under several policies over the seeds: accuracy, time and privacy of each.

May live here: the table, figures and page of `pausefl compare`.
"""

import html
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich import box
from rich.table import Table
from rich.text import Text

from pausefl.experiment.in_force import what_is_played
from pausefl.experiment.toml_source import bare_or_quoted
from pausefl.results.figures import Figures
from pausefl.results.labels import clients_labels
from pausefl.results.reading import TIME_LABELS, PrivacyFigures, RunData, TimeAxis, read_run, time_axis
from pausefl.results.report.comparison.figure import Runs, all_runs, band_note, drawings, evaluated_runs, unit_of
from pausefl.results.report.comparison.rows import Row, common_budget, row_of
from pausefl.results.report.html import embed, render
from pausefl.results.report.style import KINDS, write_picture
from pausefl.results.statistics import FEWEST_SEEDS, Spread, saving_in_words, three_digits
from pausefl.results.stored_summary import told_at_starts, unequal_starts
from pausefl.results.tables import data_frame, flat
from pausefl_process.files import write_durably
from pausefl_proto.errors import ConfigError, PauseflError
from pausefl_server.records import ACCURACY, Split

if TYPE_CHECKING:
    import pandas as pd

# With fewer evaluations, the time to an accuracy depends on when evaluations happen more than on the policy.
_FEWEST_EVALUATIONS = 3
# Keys that are not listed as differences: those that a comparison varies, and one that changes no figure.
_IGNORED = {"selection.policy", "experiment.seed", "experiment.observers"}


@dataclass(frozen=True, eq=False)
class Comparison:
    """A comparison of several policies, each of which was run once per seed."""

    runs: Mapping[str, Sequence[RunData]] = field(repr=False)
    """The runs by policy, sorted by seed."""
    baseline: str
    """The policy that savings are measured against."""
    split: Split
    """The split on which accuracies of curves are measured."""
    common_accuracy: float | None
    """The greatest accuracy that every run reached at some evaluation; None if a run failed or was never evaluated."""
    rows: Sequence[Row]
    """The figures of each policy, in the order in which the policies were given."""
    no_saving_because: str = ""
    """Why neither savings nor wins are computed; empty if they are."""
    figures: Figures = field(default_factory=Figures, repr=False)
    """Holds the reasons for figures that could not be computed."""
    missing: Mapping[str, PauseflError] = field(default_factory=dict, repr=False)
    """The errors of planned runs that have no results, by the run's name."""
    folder: Path | None = None
    """The folder of comparison.html, its figures and the runs; None if nothing was written."""

    @property
    def metric(self) -> str:
        """The name of the task's mean score. The fields named "accuracy" hold this score."""
        return next(iter(_first_by_score(self.runs)), ACCURACY)

    @property
    def axis(self) -> TimeAxis:
        """The time by which the runs are compared (see `reading.time_axis`)."""
        return time_axis(run.summary for run in all_runs(self.runs))

    @property
    def seeds(self) -> Sequence[int]:
        return _seeds(next(iter(self.runs.values())))

    @property
    def spread_note(self) -> str:
        """A note that explains the values beside each mean. Empty with one seed, which has none."""
        if len(self.seeds) >= FEWEST_SEEDS:
            return "brackets: 95 % bootstrap intervals of the means; accuracies, often skewed: median (quartiles)"
        return f"no intervals, which need {FEWEST_SEEDS} seeds: least and greatest" if len(self.seeds) > 1 else ""

    @property
    def privacy(self) -> PrivacyFigures | None:
        """The privacy figures of the first private run; all runs have its unit. None without private runs."""
        return next((run.privacy for run in all_runs(self.runs) if run.privacy), None)

    @property
    def epsilon_budget(self) -> float | None:
        """The budget of a client in the private runs. None if the runs' budgets differ, or no run is private."""
        return common_budget(all_runs(self.runs))

    @property
    def data(self) -> Sequence[str]:
        """Texts on the data that runs trained and were evaluated on, each different text once."""
        return list(dict.fromkeys(text for run in all_runs(self.runs) if (text := run.summary["data"])))

    @property
    def differences(self) -> Sequence[str]:
        """The keys, besides policy and seed, in which settings differ: those of one policy between its own runs."""
        settings = [what_is_played(run.settings) for run in all_runs(self.runs)]
        keys = {key for of_run in settings for key in of_run} - _IGNORED
        return sorted(key for key in keys if len({repr(of_run.get(key)) for of_run in _that_use(key, settings)}) > 1)

    @property
    def failed(self) -> str:
        """A text on how many runs failed, and under which policies; empty if no run failed."""
        failed = {name: sum(run.summary["outcome"] == "failed" for run in runs) for name, runs in self.runs.items()}
        names = ", ".join(name for name, n_failed in failed.items() if n_failed)
        return f"{sum(failed.values())} of {sum(map(len, self.runs.values()))} runs failed ({names})" if names else ""

    @property
    def warning(self) -> str:
        """The reasons against comparing these runs; empty without any."""
        summaries = [run.summary for run in all_runs(self.runs)]
        suspect, rounds = (sum(summary[key] for summary in summaries) for key in ("suspect_rounds", "rounds"))
        played = sorted({summary["rounds"] for summary in summaries})
        turns = "rounds or steps" if self.axis == "elapsed_s" else "rounds"
        unequal = f"runs have {played[0]} to {played[-1]} {turns}: their totals do not compare"
        doubted = f"{suspect} of {rounds} rounds are suspect; pausefl report says why"
        no_saving = f"no saving is claimed: {self.no_saving_because}" if self.no_saving_because else ""
        left_out = f"without {', '.join(self.missing)}" if self.missing else ""
        uneven = unequal_starts([told_at_starts(summary) for summary in summaries])
        found = [left_out, self.failed, unequal if len(played) > 1 else "", doubted if suspect else ""]
        return "; ".join(filter(None, [*found, uneven, no_saving]))

    @property
    def answers(self) -> Sequence[str]:
        """A sentence per policy on what it saved until the common accuracy. Empty if `warning` says why not."""
        until = "" if self.common_accuracy is None else f" until {self.common_accuracy:.1%} {self.metric}"
        saved = {row.policy: row.latency_saved for row in self.rows if row.policy != self.baseline}
        return [saving_in_words(policy, self.baseline, s, until) for policy, s in saved.items() if s]

    @property
    def budget_per(self) -> str:
        """Whether each run had budgets of its own ("run") or some drew from older ones ("data holder")."""
        per = {run.summary["budget_per"] for run in all_runs(self.runs)}
        return "data holder" if "data holder" in per else "run"

    def to_frame(self) -> "pd.DataFrame":
        """A row per policy, with the parts of each spread as NAME.mean, NAME.low and NAME.high."""
        return data_frame([flat(asdict(row)) for row in self.rows])

    def __repr__(self) -> str:
        policies, seeds = ", ".join(self.runs), len(self.seeds)
        return f"<Comparison of {policies} over {seeds} seed{'s' * (seeds > 1)}: {self.folder}>"

    def _repr_html_(self) -> str:
        """HTML for a notebook: the same table as in comparison.html."""
        columns, lines = _cells(self)
        return f"{render('comparison_table.html', columns=columns, lines=lines)}<p>{html.escape(_caption(self))}</p>"


def compare(run_dirs: Mapping[str, Sequence[Path]]) -> Comparison:
    """Read and compare each policy's runs, one per seed. The baseline is `random`, or the first policy without it.

    ConfigError if the policies differ in seeds, privacy unit or score.
    """
    if not run_dirs:
        raise ConfigError("nothing to compare: name at least one policy")
    runs = {
        policy: sorted(map(read_run, dirs), key=lambda run: run.summary["seed"]) for policy, dirs in run_dirs.items()
    }
    first = next(iter(runs))
    for policy, of_policy in runs.items():
        own, others = _seeds(of_policy), _seeds(runs[first])
        if len(set(own)) < len(own):
            raise ConfigError(f"{policy}: runs of one name need different seeds, and these have {own}; see --labels")
        if own != others:
            runs_of = f"{policy} was run with seeds {own}, {first} with {others}"
            raise ConfigError(f"{runs_of}: they must be the same; --labels names the runs of several seeds alike")
    if len({run.privacy.unit for run in all_runs(runs) if run.privacy}) > 1:
        raise ConfigError("privacy.unit differs between the runs: ε per coordinate and ε of a vector do not compare")
    if len(scores := _first_by_score(runs)) > 1:
        named = ", ".join(f"{run.path} has {score}" for score, run in scores.items())
        raise ConfigError(f"runs of different scores do not compare: {named}")
    baseline = "random" if "random" in runs else first
    # Reported is the test accuracy, unless a run was not evaluated on test data.
    split: Split = "test" if all(run.curve("test")[1].size for run in all_runs(runs)) else "validation"
    common = _common_accuracy(runs, split)
    axis = time_axis(run.summary for run in all_runs(runs))
    times_s = {policy: [_time_to(run, split, common, axis) for run in of_policy] for policy, of_policy in runs.items()}
    figures = Figures()
    doubt = _doubt(runs, split, common, figures)
    baseline_s = times_s[baseline] if not doubt else [None] * len(runs[baseline])  # without them, no saving is computed
    rows = [row_of(policy, runs[policy], times_s[policy], baseline_s, figures) for policy in runs]
    return Comparison(runs, baseline, split, common, rows, doubt, figures)


def write_comparison(comparison: Comparison, folder: Path) -> Path:
    """Write comparison.json, comparison.html and each figure in all formats; return the path of comparison.html."""
    folder.mkdir(parents=True, exist_ok=True)
    c = comparison
    draws = drawings(c.runs, c.split, c.privacy, c.common_accuracy)
    drawn = {name: write_picture(folder / name, draw, c.figures, list(KINDS)) for name, draw in draws.items()}
    pictures = embed(drawn, c.metric, c.figures)
    text = json.dumps(as_json(comparison), indent=2, ensure_ascii=False)
    write_durably(folder / "comparison.json", f"{text}\n")
    columns, lines = _cells(c)
    reports = {run.path: run.path / "report.html" for run in all_runs(c.runs)}
    content = render(
        "comparison.html",
        c=c,
        columns=columns,
        lines=lines,
        groups=_group_cells(c),
        accuracy_note=_accuracy_note(c),
        is_evaluated=bool(evaluated_runs(c.runs, c.split)),
        band_note=band_note(len(c.seeds)),
        figures=pictures,
        # Relative to the page, so that the folders can move together.
        links={path: Path(os.path.relpath(r, folder)).as_posix() for path, r in reports.items() if r.exists()},
        seconds=unit_of(c.runs),
        time=TIME_LABELS[c.axis],
    )
    page = folder / "comparison.html"
    write_durably(page, content)
    return page


def as_json(comparison: Comparison) -> Mapping[str, Any]:
    """The content of comparison.json. A spread is an object; null if a run has no such number."""
    privacy = comparison.privacy
    return {
        "seeds": comparison.seeds,
        "baseline": comparison.baseline,
        "split": comparison.split,
        "common_accuracy": comparison.common_accuracy,
        "privacy_unit": privacy.unit if privacy else None,
        "epsilon_budget": comparison.epsilon_budget,
        "differences": comparison.differences,
        "warning": comparison.warning,
        "answers": comparison.answers,
        "missing_figures": comparison.figures.missing,
        "policies": [asdict(row) for row in comparison.rows],
    }


def as_table(comparison: Comparison) -> Table:
    """The table for a terminal."""
    return _table(*_cells(comparison), _caption(comparison))


def as_group_table(comparison: Comparison) -> Table | None:
    """A table for a terminal: how often each group was chosen under each policy. None without groups."""
    columns, lines = _group_cells(comparison)
    return _table(columns, lines, "times chosen per client, without failed attempts") if lines else None


def _table(columns: Sequence[str], lines: Sequence[Sequence[Any]], caption: str) -> Table:
    """A table that fits a terminal of 80 columns. A line is a name, then (mean, spread) per further column."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    table.caption, table.caption_justify = caption, "left"
    for column in columns:
        table.add_column(column, justify="right")
    table.columns[0].justify, table.columns[0].no_wrap = "left", True
    for name, *cells in lines:
        table.add_row(Text(name), *(Text.assemble(mean, "\n", (spread, "dim")) for mean, spread in cells))
    return table


def _group_cells(comparison: Comparison) -> tuple[list[str], list[list[Any]]]:
    """The table of groups, as `_cells`: selections per client by policy; last, relevant : irrelevant."""
    rows = comparison.rows
    names = dict.fromkeys(name for row in rows for name in row.selections_by_group)
    groups = [(name, [row.selections_by_group.get(name) for row in rows]) for name in names]
    lines = [[name, *(_cell(g.selections_per_client if g else None, three_digits) for g in of)] for name, of in groups]
    if any(row.relevant_to_irrelevant for row in rows):
        lines.append(["relevant : irrelevant", *(_cell(row.relevant_to_irrelevant, three_digits) for row in rows)])
    return ["group", *(row.policy for row in rows)], lines


def _caption(comparison: Comparison) -> str:
    seeds = f"seed{'s' * (len(comparison.seeds) > 1)} {', '.join(map(str, comparison.seeds))}"
    differ = f"the runs differ in {', '.join(comparison.differences)}" if comparison.differences else ""
    notes = (seeds, comparison.spread_note, _accuracy_note(comparison), differ, comparison.warning)
    return "; ".join(note for note in notes if note)


def _accuracy_note(comparison: Comparison) -> str:
    if comparison.common_accuracy is None:
        why = "failed" if comparison.failed else "was never evaluated"
        return f"some run {why}, so there is no {comparison.metric} that all reach"
    score = f"{comparison.split} {comparison.metric}"
    return f"{comparison.common_accuracy:.1%} is the greatest {score} that every run reaches"


def _cells(comparison: Comparison) -> tuple[list[str], list[list[Any]]]:
    """The table as texts: column names, and lines with the policy, then (mean, spread) per further column."""
    metric = comparison.metric
    common = f"common {metric}" if comparison.common_accuracy is None else f"{comparison.common_accuracy:.1%}"
    epsilon = comparison.privacy.label if comparison.privacy else "ε"
    seconds, axis = unit_of(comparison.runs), comparison.axis
    columns: Mapping[str, tuple[Any, ...]] = {
        f"test {metric}, last model (%)": ("final_accuracy", _per_cent, True),
        f"test {metric}, validated model (%)": ("best_accuracy", _per_cent, True),
        f"{TIME_LABELS[axis]} ({seconds})": (axis, three_digits),
        f"time to {common} ({seconds})": ("time_to_common_s", three_digits),
        f"{TIME_LABELS[axis].split()[-1]} saved over {comparison.baseline} (%)": ("latency_saved", _per_cent),
        f"greatest {epsilon}": ("max_epsilon_spent", three_digits),
    }
    if any(row.missed_jobs is not None and row.missed_jobs.mean for row in comparison.rows):
        columns = {**columns, "missed jobs": ("missed_jobs", three_digits)}
    lines = [
        [row.policy, *(_cell(getattr(row, name), *how) for name, *how in columns.values()), _win_rate(comparison, row)]
        for row in comparison.rows
    ]
    return ["policy", *columns, "wins"], lines


def _win_rate(comparison: Comparison, row: Row) -> tuple[str, str]:
    if row.time_difference_s is None or row.policy == comparison.baseline:  # the baseline would tie with itself
        return "–", ""
    return f"{100 * row.time_difference_s.win_rate:.0f}%", ""


def _cell(spread: Spread | None, form: Callable[[float], str], is_skewed: bool = False) -> tuple[str, str]:
    return ("–", "") if spread is None else spread.text(form, is_skewed=is_skewed)


def _per_cent(value: float) -> str:
    return f"{100 * value:z.1f}"


def _seeds(runs: Sequence[RunData]) -> Sequence[int]:
    return [run.summary["seed"] for run in runs]


def _first_by_score(runs: Mapping[str, Sequence[RunData]]) -> Mapping[str, RunData]:
    """The first run of each score. A run whose last model was not evaluated has none, whatever its `metric` says."""
    first: dict[str, RunData] = {}
    for run in all_runs(runs):
        if run.summary["final_accuracy"] is not None:
            first.setdefault(run.metric, run)
    return first


def _common_accuracy(runs: Mapping[str, Sequence[RunData]], split: Split) -> float | None:
    """The greatest accuracy that all runs reached. None if a run failed: the policy that failed first could win."""
    curves = [run.curve(split)[1] for run in all_runs(runs)]
    if any(run.summary["outcome"] == "failed" for run in all_runs(runs)) or not all(curve.size for curve in curves):
        return None
    return min(float(curve.max()) for curve in curves)


def _doubt(runs: Runs, split: Split, common: float | None, figures: Figures) -> str:
    """Why the time to the common accuracy does not show a saving; empty if it does."""
    found = []
    if common is not None:
        fewest = min(run.curve(split, "round")[0].size for run in all_runs(runs))
        if fewest < _FEWEST_EVALUATIONS:
            found.append(f"a run has {fewest} evaluations, fewer than {_FEWEST_EVALUATIONS} (evaluation.every)")
        chance = figures.compute("chance level", lambda: _chance(runs, split))
        if chance is not None and common <= chance:
            found.append(f"{common:.1%} is no more than the first model or most frequent class gives ({chance:.1%})")
    if len(next(iter(runs.values()))) == 1:
        found.append("one seed")
    return ", ".join(found)


def _chance(runs: Runs, split: Split) -> float:
    """The greatest score without learning: that of a first model or, for classes, of the most frequent class."""
    levels = [0.0]
    for run in all_runs(runs):
        rounds, scores = run.curve(split, "round")
        levels += scores[rounds == 0].tolist()
    first = next(iter(all_runs(runs)))
    if first.metric == ACCURACY and (held := clients_labels(first)) is not None:
        of_class = np.sum([*held.values()], axis=0)
        levels.append(float(of_class.max() / of_class.sum()))
    return max(levels)


def _time_to(run: RunData, split: Split, accuracy: float | None, axis: TimeAxis) -> float | None:
    time_s, values = run.curve(split, axis)
    return None if accuracy is None else float(time_s[np.argmax(values >= accuracy)])


def _that_use(key: str, settings: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """The settings of those runs that use the key: a key of one policy's parameters is used by its runs only."""
    is_of_a_policy = key.startswith("selection.") and key.count(".") > 1
    for of_run in settings:
        if not is_of_a_policy or key.startswith(f"selection.{bare_or_quoted(of_run.get('selection.policy', ''))}."):
            yield of_run
