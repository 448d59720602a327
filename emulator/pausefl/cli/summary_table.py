"""A run's summary as a table on a terminal."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.table import Table

from pausefl.results.in_words import accuracies, asked, by_whom, costs, counted, noise, timing_error, turn


def summary_table(summary: Mapping[str, Any]) -> Table:
    """The table at the end of a run, from the keys of summary.json. Its texts are plain, without markup."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for row in _played(summary):
        table.add_row(*row)
    for name, value, note in (*accuracies(summary), *costs(summary)):
        table.add_row(name, f"{value} ({note})" if note else value)
    for row in (*_privacy(summary), *_doubts(summary)):
        table.add_row(*row)
    return table


def _played(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    rounds = f"{summary['rounds']} with {counted(summary['clients'], 'client')}, {asked(summary)}"
    yield "policy", f"{summary['policy']} (seed {summary['seed']})"
    yield f"{turn(summary)}s", f"{rounds}; {summary['stopped_because']}"
    if summary["data"] is not None:
        yield "data", summary["data"]


def _privacy(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if summary["max_epsilon_spent"] is None:
        yield "privacy", "none: updates leave without noise"
        return
    if told := noise(summary):
        yield "noise", told
    if not summary["private"]:
        yield "NOT PRIVATE", "the noise was drawn from the seed: anyone who knows it can subtract it"


def _doubts(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What failed, and how far the measurements can be trusted."""
    for failure in summary["failures"]:
        yield "failed", f"{counted(failure['jobs'], 'job')}: {failure['reason']}"
    if told := timing_error(summary):
        yield "timing error", told
    for reason in (summary["suspect_because"] or {}).values():
        rounds, whose = counted(reason["rounds"], "round"), by_whom(reason.get("clients", {}))
        yield "suspect", f"{rounds}: {reason['advice']}{whose}"
    for name, why in summary.get("missing_figures", {}).items():
        yield "missing", f"{name}: {why}"
