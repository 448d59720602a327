"""How a round's clients are chosen from what the run knows: the same for a run and for the replay of its log."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pausefl_proto.arrays import IntArray
from pausefl_proto.draws import generator
from pausefl_server.rounds.backoff import selectable_rows
from pausefl_server.rounds.budget_exhaustion import too_few_left, used_up
from pausefl_server.selection.base import Context, Oracle, Selection
from pausefl_server.selection.validation import checked
from pausefl_server.settings import ServerSettings
from pausefl_server.state import RunState


@dataclass(frozen=True, slots=True)
class FreePlaces:
    """The free places of an asynchronous step: so many, 1 at least, for these clients."""

    count: int
    idle: IntArray
    """Rows of the clients that may be given one, ascending, (n,) int64, n >= 1."""
    jobs: int
    """J, how many jobs were handed out so far."""


def free_places(
    settings: ServerSettings,
    state: RunState,
    step: int,
    idle: Sequence[int],
    at_work: IntArray,
    lacks: int,
    answered: Sequence[int],
    jobs: int,
) -> FreePlaces | None:
    """The jobs that an asynchronous step may hand out to idle rows, while it lacks so many updates; None for none.

    Where no step can follow, it is no more than the step lacks: other updates would come for nothing, and be charged.
    None follows the last step, nor where the updates of the `answered` rows leave too few clients with a budget. A
    policy of tiers is given K places for its fastest tier of which no client is at work.
    """
    steps, rows = settings.asynchronous, np.array(idle, np.int64)
    retiring = len(used_up(state.table, settings.budget, answered))
    is_last = step >= settings.rounds or too_few_left(state.table, steps.buffer, retiring) != ""
    count = (min(steps.concurrency, lacks) if is_last else steps.concurrency) - len(at_work)
    if (tiers := state.policy.tiers_of(state.policy_state, state.table)) is not None:
        count, rows = min(count, steps.buffer), rows[~np.isin(tiers[rows], tiers[at_work])]
        rows = rows[tiers[rows] == tiers[rows].min(initial=len(tiers))]
    return FreePlaces(count, rows, jobs) if count > 0 and rows.size else None


def choose(
    settings: ServerSettings,
    state: RunState,
    oracle: Oracle | None,
    round: int,
    attempt: int,
    clock: Callable[[], float] = time.monotonic,
    free: FreePlaces | None = None,
) -> Selection:
    """The policy's checked choice for an attempt at `round`, whose events `state` has.

    With `free`, for these places: the policy's m is then how many there are.
    """
    context = context_of(settings, state, oracle, round, attempt, clock, free)
    return chosen_in(context, state, None if free is None else free.count)


def chosen_in(context: Context, state: RunState, places: int | None = None) -> Selection:
    """The policy's choice in that context, checked; with `places`, its m is so many."""
    policy = state.policy if places is None else replace(state.policy, m=places)
    return checked(policy.select(state.policy_state, context), context, places)


def context_of(
    settings: ServerSettings,
    state: RunState,
    oracle: Oracle | None,
    round: int,
    attempt: int,
    clock: Callable[[], float] = time.monotonic,
    free: FreePlaces | None = None,
) -> Context:
    """The policy's context at that attempt."""
    table, m = state.table, state.policy.m if free is None else free.count
    among = table.eligible() if free is None else free.idle
    return Context(
        round=round,
        table=table,
        eligible=selectable_rows(table, round, m, settings.rest_rounds_max, among),
        rng=generator(settings.seed, "selection", round, attempt),
        epsilon_budget=settings.budget.epsilon_budget if settings.budget else None,
        weight_share_max=settings.aggregation.weight_share_max,
        oracle=oracle,
        clock=clock,
        concurrency=None if free is None else settings.asynchronous.concurrency,
        jobs=0 if free is None else free.jobs,
    )
