"""The same experiment under several policies: what each reached, in what time, at what privacy, over the seeds.

May live here: the table, figures and page of `pausefl compare`.
"""

import html
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich import box
from rich.table import Table
from rich.text import Text

from pausefl.report.comparison.differences import differing_keys
from pausefl.report.comparison.figure import all_runs, band_note, draw_comparison, evaluated_runs
from pausefl.report.comparison.groups import draw_groups
from pausefl.report.comparison.rows import Row, common_budget, row_of
from pausefl.report.comparison.why import draw_why
from pausefl.report.html import embed, render
from pausefl.report.style import save_pdf, save_png
from pausefl.results.reading import PrivacyFigures, RunData, read_run
from pausefl.results.statistics import FEWEST_SEEDS, Spread, three_digits
from pausefl_process.files import write_durably
from pausefl_proto.errors import ConfigError
from pausefl_server.records import ACCURACY, Split


@dataclass(frozen=True)
class Comparison:
    """Several policies, each run once per seed."""

    runs: Mapping[str, Sequence[RunData]] = field(repr=False)
    """By policy, sorted by seed."""
    baseline: str
    """The policy that savings are measured against."""
    split: Split
    """What accuracies of curves are measured on."""
    common_accuracy: float | None
    """The greatest accuracy every run reached at some evaluation; None where some run failed or was never evaluated."""
    rows: Sequence[Row]
    """The figures of each policy, in the order they were given."""
    folder: Path | None = None
    """Where comparison.html, its figures and the runs lie; None where nothing was written."""

    @property
    def metric(self) -> str:
        """What accuracies hold: the name of the task's mean score."""
        return next(iter(_first_by_score(self.runs)), ACCURACY)

    @property
    def seeds(self) -> Sequence[int]:
        """The seeds every policy was run with."""
        return _seeds(next(iter(self.runs.values())))

    @property
    def spread_note(self) -> str:
        """What stands beside each mean."""
        if len(self.seeds) >= FEWEST_SEEDS:
            return "brackets: 95 % bootstrap intervals of the means"
        return f"no intervals, which need {FEWEST_SEEDS} seeds: least and greatest"

    @property
    def privacy(self) -> PrivacyFigures | None:
        """The figures of the first private run, whose unit is that of all; None where none is private."""
        return next((run.privacy for run in all_runs(self.runs) if run.privacy), None)

    @property
    def epsilon_budget(self) -> float | None:
        """The budget of a client in the private runs; None where theirs differ, and where none is private."""
        return common_budget(all_runs(self.runs))

    @property
    def data(self) -> Sequence[str]:
        """What the runs trained and were evaluated on; one text where they are alike."""
        told = (run.summary.get("data") for run in all_runs(self.runs))
        return list(dict.fromkeys(text for text in told if text))

    @property
    def differences(self) -> Sequence[str]:
        """The settings besides policy and seed in which runs differ."""
        return differing_keys(all_runs(self.runs))

    @property
    def failed(self) -> str:
        """How many runs failed, and of which names; empty where none did."""
        failed = {name: sum(run.has_failed for run in runs) for name, runs in self.runs.items()}
        names = ", ".join(name for name, n_failed in failed.items() if n_failed)
        return f"{sum(failed.values())} of {sum(map(len, self.runs.values()))} runs failed ({names})" if names else ""

    @property
    def warning(self) -> str:
        """What speaks against comparing these runs; empty where nothing does."""
        summaries = [run.summary for run in all_runs(self.runs)]
        suspect, rounds = (sum(summary[key] for summary in summaries) for key in ("suspect_rounds", "rounds"))
        played = sorted({summary["rounds"] for summary in summaries})
        unequal = f"runs have {played[0]} to {played[-1]} rounds: their totals do not compare"
        doubted = f"{suspect} of {rounds} rounds are suspect; each run's report says why"
        return "; ".join(filter(None, [self.failed, unequal if len(played) > 1 else "", doubted if suspect else ""]))

    @property
    def budget_per(self) -> str:
        """Whether each run had budgets of its own ("run") or some drew from older ones ("data holder")."""
        per = {run.summary["budget_per"] for run in all_runs(self.runs)}
        return "data holder" if "data holder" in per else "run"

    def _repr_html_(self) -> str:
        """The comparison in a notebook: the table that its page has."""
        columns, lines = _cells(self)
        return f"{render('comparison_table.html', columns=columns, lines=lines)}<p>{html.escape(_caption(self))}</p>"


def compare(run_dirs: Mapping[str, Sequence[Path]]) -> Comparison:
    """Read the runs, for each policy one per seed, the same seeds for all. The baseline is `random`, else the first."""
    if not run_dirs:
        raise ConfigError("nothing to compare: name at least one policy")
    runs = {policy: _read(dirs) for policy, dirs in run_dirs.items()}
    first = next(iter(runs))
    for policy, of_policy in runs.items():
        own, others = _seeds(of_policy), _seeds(runs[first])
        if len(set(own)) < len(own):
            raise ConfigError(f"{policy}: runs of one name need different seeds, and these have {own}; see --labels")
        if own != others:
            runs_of = f"{policy} was run with seeds {own}, {first} with {others}"
            raise ConfigError(f"{runs_of}: they must be the same; --labels names the runs of several seeds alike")
    _refuse_mixed_units(runs)
    _refuse_mixed_scores(runs)
    baseline = "random" if "random" in runs else first
    split = _common_split(runs)
    common = _common_accuracy(runs, split)
    times_s = {policy: [_time_to(run, split, common) for run in of_policy] for policy, of_policy in runs.items()}
    rows = [row_of(policy, runs[policy], times_s[policy], times_s[baseline]) for policy in runs]
    return Comparison(runs, baseline, split, common, rows)


def write_comparison(comparison: Comparison, folder: Path) -> Path:
    """Write comparison.json, comparison.html and the figures as PNG; return the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    c = comparison
    figures = {"comparison": draw_comparison(c.runs, c.split, c.privacy, c.common_accuracy)}
    if why := draw_why(c.runs):
        figures["why"] = why
    if groups := draw_groups(c.runs, c.split):
        figures["groups"] = groups
    for name, figure in figures.items():
        save_png(figure, folder / f"{name}.png")
        save_pdf(figure, folder / f"{name}.pdf")
    text = json.dumps(as_json(comparison), indent=2, ensure_ascii=False)
    write_durably(folder / "comparison.json", f"{text}\n")
    page = folder / "comparison.html"
    write_durably(page, _page(comparison, figures, folder))
    return page


def as_json(comparison: Comparison) -> Mapping[str, Any]:
    """The table for programs; a spread is an object, null where a run has no such number."""
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
        "policies": [asdict(row) for row in comparison.rows],
    }


def as_table(comparison: Comparison) -> Table:
    """The table for a terminal."""
    columns, lines = _cells(comparison)
    # It has to fit 80 columns.
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    table.caption, table.caption_justify = _caption(comparison), "left"
    for column in columns:
        table.add_column(column, justify="right")
    table.columns[0].justify, table.columns[0].no_wrap = "left", True
    for policy, *cells in lines:
        table.add_row(Text(policy), *(Text.assemble(mean, "\n", (spread, "dim")) for mean, spread in cells))
    return table


def as_group_table(comparison: Comparison) -> Table | None:
    """How often each group was chosen under each policy, for a terminal; None for an experiment without groups."""
    lines = _group_lines(comparison)
    if not lines:
        return None
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    table.caption, table.caption_justify = "times chosen per client, without failed attempts", "left"
    table.add_column("group", no_wrap=True)
    for row in comparison.rows:
        table.add_column(row.policy, justify="right")
    for name, *cells in lines:
        table.add_row(Text(name), *(Text.assemble(mean, "\n", (spread, "dim")) for mean, spread in cells))
    return table


def _group_lines(comparison: Comparison) -> list[list[Any]]:
    """Each group's name, then (mean, spread) of the selections per client under each policy; last the ratio."""
    rows = comparison.rows
    names = dict.fromkeys(name for row in rows for name in row.selections_by_group)
    lines = [[name, *(_of_group(row, name) for row in rows)] for name in names]
    if any(row.relevant_to_irrelevant for row in rows):
        lines.append(["relevant : irrelevant", *(_cell(row.relevant_to_irrelevant, three_digits) for row in rows)])
    return lines


def _of_group(row: Row, name: str) -> tuple[str, str]:
    group = row.selections_by_group.get(name)
    return _cell(group.selections_per_client if group else None, three_digits)


def _caption(comparison: Comparison) -> str:
    seeds = f"seeds {', '.join(map(str, comparison.seeds))}"
    differ = f"the runs differ in {', '.join(comparison.differences)}" if comparison.differences else ""
    notes = (seeds, comparison.spread_note, _accuracy_note(comparison), differ, comparison.warning)
    return "; ".join(note for note in notes if note)


def _accuracy_note(comparison: Comparison) -> str:
    if comparison.common_accuracy is None:
        why = "failed" if comparison.failed else "was never evaluated"
        return f"some run {why}, so there is no {comparison.metric} that all reach"
    score = f"{comparison.split} {comparison.metric}"
    return f"{comparison.common_accuracy:.1%} is the greatest {score} that every run reaches"


def _page(comparison: Comparison, figures: Mapping[str, Figure], folder: Path) -> str:
    columns, lines = _cells(comparison)
    return render(
        "comparison.html",
        c=comparison,
        columns=columns,
        lines=lines,
        group_lines=_group_lines(comparison),
        accuracy_note=_accuracy_note(comparison),
        is_evaluated=bool(evaluated_runs(comparison.runs, comparison.split)),
        band_note=band_note(len(comparison.seeds)),
        figures=embed(figures, comparison.metric),
        links=_links(comparison, folder),
    )


def _links(comparison: Comparison, folder: Path) -> Mapping[Path, str]:
    """Each run's report, relative to the page, so that both can move together."""
    runs = all_runs(comparison.runs)
    return {run.path: Path(os.path.relpath(run.path / "report.html", folder)).as_posix() for run in runs}


def _cells(comparison: Comparison) -> tuple[list[str], list[list[Any]]]:
    """The table as text: its columns' names, and its lines: the policy, then (mean, spread) per column."""
    metric = comparison.metric
    common = f"common {metric}" if comparison.common_accuracy is None else f"{comparison.common_accuracy:.1%}"
    epsilon = comparison.privacy.label if comparison.privacy else "ε"
    columns: Mapping[str, tuple[str, Callable[[float], str]]] = {
        f"test {metric}, last model (%)": ("final_accuracy", _per_cent),
        f"test {metric}, validated model (%)": ("best_accuracy", _per_cent),
        "total latency (s)": ("total_latency_s", three_digits),
        f"time to {common} (s)": ("time_to_common_s", three_digits),
        f"latency saved over {comparison.baseline} (%)": ("latency_saved", _per_cent),
        f"greatest {epsilon}": ("max_epsilon_spent", three_digits),
    }
    if any(row.missed_jobs is not None and row.missed_jobs.mean for row in comparison.rows):
        columns = {**columns, "missed jobs": ("missed_jobs", three_digits)}
    lines = [
        [row.policy, *(_cell(getattr(row, name), form) for name, form in columns.values()), _win_rate(comparison, row)]
        for row in comparison.rows
    ]
    return ["policy", *columns, "wins"], lines


def _win_rate(comparison: Comparison, row: Row) -> tuple[str, str]:
    if row.time_difference_s is None or row.policy == comparison.baseline:  # which ties with itself
        return "–", ""
    return f"{100 * row.time_difference_s.win_rate:.0f}%", ""


def _cell(spread: Spread | None, form: Callable[[float], str]) -> tuple[str, str]:
    return ("–", "") if spread is None else spread.text(form)


def _per_cent(value: float) -> str:
    return f"{100 * value:.1f}"


def _read(run_dirs: Sequence[Path]) -> Sequence[RunData]:
    return sorted((read_run(run_dir) for run_dir in run_dirs), key=lambda run: run.summary["seed"])


def _seeds(runs: Sequence[RunData]) -> Sequence[int]:
    return [run.summary["seed"] for run in runs]


def _refuse_mixed_units(runs: Mapping[str, Sequence[RunData]]) -> None:
    units = {run.privacy.unit for run in all_runs(runs) if run.privacy}
    if len(units) > 1:
        raise ConfigError("privacy.unit differs between the runs: ε per coordinate and ε of a vector do not compare")


def _refuse_mixed_scores(runs: Mapping[str, Sequence[RunData]]) -> None:
    first = _first_by_score(runs)
    if len(first) > 1:
        named = ", ".join(f"{run.path} has {score}" for score, run in first.items())
        raise ConfigError(f"runs of different scores do not compare: {named}")


def _first_by_score(runs: Mapping[str, Sequence[RunData]]) -> Mapping[str, RunData]:
    """The first run of each score; one that was not evaluated in the end has none, whatever its `metric` says."""
    first: dict[str, RunData] = {}
    for run in all_runs(runs):
        if run.summary["final_accuracy"] is not None:
            first.setdefault(run.metric, run)
    return first


def _common_split(runs: Mapping[str, Sequence[RunData]]) -> Split:
    """Test accuracy, which is what is reported, unless some run has none."""
    return "test" if all(run.curve("test")[1].size for run in all_runs(runs)) else "validation"


def _common_accuracy(runs: Mapping[str, Sequence[RunData]], split: Split) -> float | None:
    """What a failed run reached before its end is no accuracy to race for: the sooner it failed, the sooner it wins."""
    curves = [run.curve(split)[1] for run in all_runs(runs)]
    if any(run.has_failed for run in all_runs(runs)) or not all(curve.size for curve in curves):
        return None
    return min(float(curve.max()) for curve in curves)


def _time_to(run: RunData, split: Split, accuracy: float | None) -> float | None:
    total_latency_s, values = run.curve(split)
    return None if accuracy is None else float(total_latency_s[np.argmax(values >= accuracy)])
