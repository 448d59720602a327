"""How a round's clients are chosen from the run's state: the same way in a run and in the replay of its log."""

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

import numpy as np

from pausefl_process.global_generators import seeded_generators
from pausefl_proto.arrays import IntArray
from pausefl_proto.draws import generator
from pausefl_server.clients import ClientTable
from pausefl_server.rounds.budget_exhaustion import too_few_left, used_up
from pausefl_server.selection.base import Context, Oracle, Selection
from pausefl_server.selection.validation import checked
from pausefl_server.settings import ServerSettings
from pausefl_server.state import RunState


@dataclass(frozen=True, slots=True)
class FreePlaces:
    """The free places of an asynchronous step, `count` >= 1 of them, and the clients that may take them."""

    count: int
    idle: IntArray
    """Rows of the clients that may be given a place, ascending, (n,) int64, n >= 1."""
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
    """The places that an asynchronous step may give to `idle` rows while it lacks updates; None if there are none.

    If no step can follow, there are no more places than the step lacks updates: further updates would be charged but
    not used. No step follows the run's last one, or when the updates of the `answered` rows leave too few clients with
    a budget. A policy with tiers gets up to K places, for its fastest tier of which no client is at work.
    """
    steps, rows = settings.asynchronous, np.array(idle, np.int64)
    retiring = len(used_up(state.table, settings.budget, answered))
    is_last = step >= settings.rounds or too_few_left(state, steps.buffer, retiring) != ""
    count = (min(steps.concurrency, lacks) if is_last else steps.concurrency) - len(at_work)
    if (tiers := state.policy.tiers_of(state.policy_state, state.table)) is not None:
        count = min(count, steps.buffer)
        rows = rows[~np.isin(tiers[rows], tiers[at_work])]
        rows = rows[tiers[rows] == tiers[rows].min(initial=len(tiers))]
    return FreePlaces(count, rows, jobs) if count > 0 and rows.size else None


def updates_needed(settings: ServerSettings, state: RunState, at_work: IntArray) -> int:
    """How many updates an asynchronous step needs while these rows are at work: K, or as the policy paces it."""
    buffer = settings.asynchronous.buffer
    return max(1, state.policy.updates_needed(state.table, at_work, buffer)) if at_work.size else buffer


def selectable_rows(
    table: ClientTable, round: int, m: int, rest_rounds_max: int, among: IntArray | None = None
) -> IntArray:
    """Rows that may be selected in `round`, ascending: connected, not retired and not at rest.

    docs/selection.md defines rests, a binary exponential backoff (Metcalfe and Boggs, CACM 1976). A client that missed
    an earlier attempt at this round is asked again only if no other client is there. `among`: rows to consider instead
    of all eligible ones, ascending.
    """
    rows = table.eligible() if among is None else among
    is_silent = table.misses_in_a_row[rows] > 0
    if not np.count_nonzero(is_silent):
        return rows
    missed_now = is_silent & (table.last_missed_round[rows] == round)
    if missed_now.any() and not missed_now.all():
        rows = rows[~missed_now]
    rest = np.minimum(np.left_shift(1, np.clip(table.misses_in_a_row[rows] - 1, 0, 62)), rest_rounds_max)
    ends = np.where(table.misses_in_a_row[rows] > 0, table.last_missed_round[rows] + rest, 0)
    resting = np.flatnonzero(ends >= round)
    soonest = resting[np.lexsort((table.tie_key[rows[resting]], ends[resting]))]
    needed = max(0, m - (len(rows) - len(resting)))
    return np.delete(rows, soonest[needed:])


def choose(context: Context, state: RunState, free: FreePlaces | None = None) -> Selection:
    """The policy's checked choice in the context that `context_of` made of the same arguments.

    With `free`, the choice is for these places, and the policy's m is their number. Users' policies may draw from
    generators that the process shares: these draws depend on the same seed as those of `context.rng`.
    """
    policy = state.policy if free is None else replace(state.policy, m=free.count)
    is_ours = type(policy).__module__.startswith("pausefl_server.")  # seeding takes as long as a simulated round
    with nullcontext() if is_ours else seeded_generators(int(context.rng.bit_generator.seed_seq.generate_state(1)[0])):
        selection = policy.select(state.policy_state, context)
    return checked(selection, context, None if free is None else free.count)


def context_of(
    settings: ServerSettings,
    state: RunState,
    oracle: Oracle | None,
    round: int,
    attempt: int,
    clock: Callable[[], float] = time.monotonic,
    free: FreePlaces | None = None,
) -> Context:
    """The policy's context for an attempt at `round`, whose events are folded into `state`."""
    table, m = state.table, state.policy.m if free is None else free.count
    among = table.eligible() if free is None else free.idle
    counted = state.policy.counted(table)[among]
    # A client that m does not count takes no place of those that it counts, and rests whoever is left.
    groups = [(m, among[counted]), (0, among[~counted])] if counted.any() else [(m, among)]
    awake = [selectable_rows(table, round, places, settings.rest_rounds_max, rows) for places, rows in groups]
    return Context(
        round=round,
        table=table,
        eligible=np.sort(np.concatenate(awake)),
        rng=generator(settings.seed, "selection", round, attempt),
        epsilon_budget=settings.budget.epsilon_budget if settings.budget else None,
        weight_share_max=settings.aggregation.weight_share_max,
        oracle=oracle,
        clock=clock,
        concurrency=None if free is None else settings.asynchronous.concurrency,
        jobs=0 if free is None else free.jobs,
    )
