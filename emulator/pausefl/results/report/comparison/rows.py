"""Computes the figures of one policy in a comparison, over its seeds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from pausefl.results.figures import Figures
from pausefl.results.reading import RunData
from pausefl.results.selections import GroupChoices, choices_by_group, per_client_round, relevant_to_irrelevant
from pausefl.results.statistics import PairedDifference, Spread, paired_difference, shares_saved


@dataclass(frozen=True)
class GroupRow:
    """How often the clients of one group were chosen under one policy."""

    clients: int
    join_round: int | None
    selections_per_client: Spread | None
    """How often a client was chosen, from the round in which it joined to the last round."""
    per_client_round: Spread | None
    """How often a client was chosen per round in which it could be."""


@dataclass(frozen=True)
class Row:
    """One policy's line in the table."""

    policy: str
    final_accuracy: Spread | None
    """The accuracy of the last model on test data."""
    best_accuracy: Spread | None
    """The accuracy on test data of the model that was best on validation data. It may be below `final_accuracy`."""
    total_latency_s: Spread | None
    elapsed_s: Spread | None
    missed_jobs: Spread | None
    """How many jobs gave no update. The waits for them are part of the total latency."""
    time_to_common_s: Spread | None
    """The time, on the axis `reading.time_axis`, of the first evaluation that reached the common accuracy."""
    latency_saved: Spread | None
    """1 − (time to the common accuracy) / (the baseline's time to it under the same seed)."""
    time_difference_s: PairedDifference | None
    """Time to the common accuracy minus the baseline's time to it under the same seed. A win is a shorter time."""
    max_epsilon_spent: Spread | None
    epsilon_budget: float | None
    """The budget of a client in this policy's private runs; None if it differs (`common_budget`)."""
    suspect_rounds: Spread | None
    """How many rounds have measurements that a host spoilt. Each run's report says how."""
    selections_by_group: Mapping[str, GroupRow]
    """How often each group was chosen, by group name. Empty for an experiment without groups."""
    relevant_to_irrelevant: Spread | None
    """The ratio of selections of relevant to irrelevant newcomers (see `selections.relevant_to_irrelevant`)."""


def row_of(
    policy: str,
    runs: Sequence[RunData],
    times_s: Sequence[float | None],
    baseline_s: Sequence[float | None],
    figures: Figures,
) -> Row:
    """One policy's line. `times_s` and `baseline_s` are the times to the common accuracy, one per seed."""
    choices = cache(lambda: [choices_by_group(run.records, run.groups) for run in runs])

    def spread(name: str, values: Callable[[], Sequence[float | None]]) -> Spread | None:
        return figures.compute(f"{policy}: {name}", lambda: Spread.of(values()))

    def groups() -> Mapping[str, GroupRow]:
        return {name: _group_row([run[name] for run in choices()]) for name in runs[0].groups}

    return Row(
        policy=policy,
        final_accuracy=spread("final_accuracy", lambda: [run.summary["final_accuracy"] for run in runs]),
        best_accuracy=spread("best_accuracy", lambda: [run.summary["best_accuracy"] for run in runs]),
        total_latency_s=spread("total_latency_s", lambda: [run.summary["total_latency_s"] for run in runs]),
        elapsed_s=spread("elapsed_s", lambda: [run.summary["elapsed_s"] for run in runs]),
        missed_jobs=spread("missed_jobs", lambda: [sum(run.summary["missed_jobs"].values()) for run in runs]),
        time_to_common_s=spread("time_to_common_s", lambda: times_s),
        latency_saved=spread("latency_saved", lambda: shares_saved(times_s, baseline_s)),
        time_difference_s=figures.compute(f"{policy}: time_difference_s", lambda: _difference(times_s, baseline_s)),
        max_epsilon_spent=spread("max_epsilon_spent", lambda: [run.summary["max_epsilon_spent"] for run in runs]),
        epsilon_budget=common_budget(runs),
        suspect_rounds=spread("suspect_rounds", lambda: [run.summary["suspect_rounds"] for run in runs]),
        selections_by_group=figures.compute(f"{policy}: selections_by_group", groups) or {},
        relevant_to_irrelevant=spread(
            "relevant_to_irrelevant", lambda: [relevant_to_irrelevant(run) for run in choices()]
        ),
    )


def common_budget(runs: Sequence[RunData]) -> float | None:
    """The budget of a client in the private runs. None if the runs' budgets differ, or no run is private."""
    budgets = {run.privacy.epsilon_budget for run in runs if run.privacy}
    return budgets.pop() if len(budgets) == 1 else None


def _difference(own_s: Sequence[float | None], baseline_s: Sequence[float | None]) -> PairedDifference | None:
    own, baseline = ([time for time in times if time is not None] for times in (own_s, baseline_s))
    return paired_difference(own, baseline) if len(own) == len(baseline) == len(own_s) else None


def _group_row(groups: Sequence[GroupChoices]) -> GroupRow:
    """The line of one group. `groups` has an entry per seed."""
    return GroupRow(
        clients=groups[0].clients,
        join_round=groups[0].join_round,
        selections_per_client=Spread.of([g.chosen.sum() / g.clients if g.clients else None for g in groups]),
        per_client_round=Spread.of([per_client_round([g]) for g in groups]),
    )
