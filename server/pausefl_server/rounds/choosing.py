"""How a round's clients are chosen from what the run knows: the same for a run and for the replay of its log."""

import time
from collections.abc import Callable

from pausefl_proto.draws import generator
from pausefl_server.rounds.backoff import selectable_rows
from pausefl_server.selection.base import Context, Oracle, Selection
from pausefl_server.selection.validation import checked
from pausefl_server.settings import ServerSettings
from pausefl_server.state import RunState


def choose(
    settings: ServerSettings,
    state: RunState,
    oracle: Oracle | None,
    round: int,
    attempt: int,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[Selection, float]:
    """The policy's checked choice for an attempt at `round`, whose events `state` has, and the seconds it took."""
    context = context_of(settings, state, oracle, round, attempt, clock)
    started_s = clock()
    selection = state.policy.select(state.policy_state, context)
    selection_s = clock() - started_s
    checked(selection, context)
    return selection, selection_s


def context_of(
    settings: ServerSettings,
    state: RunState,
    oracle: Oracle | None,
    round: int,
    attempt: int,
    clock: Callable[[], float] = time.monotonic,
) -> Context:
    """What the policy is told at that attempt."""
    table = state.table
    return Context(
        round=round,
        table=table,
        eligible=selectable_rows(table, round, state.policy.m, settings.rest_rounds_max),
        rng=generator(settings.seed, "selection", round, attempt),
        epsilon_budget=settings.budget.epsilon_budget if settings.budget else None,
        weight_share_max=settings.aggregation.weight_share_max,
        oracle=oracle,
        clock=clock,
    )
