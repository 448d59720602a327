"""Draws how policies treat newcomers: accuracy as groups join, and how often each group was chosen."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

from pausefl.results.report.comparison.figure import Runs, all_runs, draw_band, policy_looks
from pausefl.results.report.group_plots import ChoicesByGroup, group_looks, joins, mark_joins, name_joins, so_far
from pausefl.results.report.style import MUTED, capitalised, percent_axis
from pausefl.results.selections import choices_by_group
from pausefl_server.records import Split

_PANELS_A_ROW = 4


def draw_groups(runs: Runs, split: Split) -> Figure | None:
    """A figure of means over the seeds, with bands (see `band_note`). None if no group joins during the run."""
    choices = {policy: [choices_by_group(run.records, run.groups) for run in runs[policy]] for policy in runs}
    groups = next(iter(choices.values()))[0]
    if not joins(groups):
        return None
    rows = -(-len(runs) // _PANELS_A_ROW)
    figure = Figure(figsize=(10.4, 3.4 + 3.0 * rows), layout="constrained")
    above, below = figure.subfigures(2, 1, squeeze=False, height_ratios=(3.4, 3.0 * rows))[:, 0]
    _accuracy(above, runs, split, groups)
    panels = below.subplots(rows, min(len(runs), _PANELS_A_ROW), sharey=True, squeeze=False)
    for axes in panels.flat[len(runs) :]:
        axes.remove()
    for axes, policy in zip(panels.flat, choices, strict=False):
        _selections(axes, choices[policy])
        axes.set(title=policy, xlabel="round", xlim=(0, None))
    panels[0, 0].set_ylim(bottom=0)  # fixes the shared y axis of all panels, so it follows the drawing
    for axes in panels[:, 0]:
        axes.set_ylabel("times chosen so far, per client")
    below.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside right center", handlelength=2.6)
    return figure


def _accuracy(figure: SubFigure, runs: Runs, split: Split, groups: ChoicesByGroup) -> None:
    axes = figure.subplots()
    for policy, look in policy_looks(runs).items():
        curves = [run.curve(split, "round") for run in runs[policy]]
        if all(rounds.size for rounds, _ in curves):
            draw_band(axes, curves, look, policy)
    metric = all_runs(runs)[0].metric
    axes.set(title=f"{capitalised(metric)} around the joins", xlabel="round", ylabel=f"{split} {metric}")
    axes.set_xlim(0, max(len(run.records) for run in all_runs(runs)))
    percent_axis(axes)
    name_joins(axes, groups)
    if axes.get_legend_handles_labels()[0]:
        figure.legend(*axes.get_legend_handles_labels(), loc="outside right center", handlelength=3.2)
    else:
        axes.text(0.5, 0.5, "not evaluated", transform=axes.transAxes, ha="center", color=MUTED.light)


def _selections(axes: Axes, seeds: Sequence[ChoicesByGroup]) -> None:
    """Draw how often a client of each group was chosen so far, on average. `seeds` has an entry per seed."""
    looks = group_looks(seeds[0])
    mark_joins(axes, joins(seeds[0]))
    for name, group in seeds[0].items():
        if group.join_round:
            curves = [so_far(seed[name].chosen / max(seed[name].clients, 1), group.join_round) for seed in seeds]
            draw_band(axes, curves, looks[name], name)
