"""When budgets end: which clients must not be asked again, and until which round a run can go on. Pure functions."""

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from pausefl_proto.arrays import IntArray
from pausefl_proto.budget import Budget
from pausefl_server.clients import ClientTable
from pausefl_server.records import LogEvent
from pausefl_server.settings import ServerSettings
from pausefl_server.state import RunState


def used_up(table: ClientTable, budget: Budget | None, answered: Sequence[int] = ()) -> tuple[LogEvent, ...]:
    """The "retired" events of clients whose next release the floor forbids. The floor depends on i alone.

    The `answered` rows have one more release, which the table does not count yet.
    """
    limit = budget.participations if budget else None
    if limit is None:
        return ()
    released = table.released.copy()
    released[list(answered)] += 1
    rows = np.flatnonzero(~table.retired & (released >= limit))
    return tuple(LogEvent("retired", table.ids[row], "its next epsilon would lie below the floor") for row in rows)


def too_few_left(state: RunState, m: int, retiring: int = 0, to_come: int = 0) -> str:
    """Why budgets end the run: with fewer than m clients, noise would drown what the model has learnt.

    Empty if m of the clients that m counts may still release, `to_come` unknown ones among them, or if none of them has
    retired. `retiring` further clients are about to retire.
    """
    counted = state.policy.counted(state.table)
    known, left = counted.sum(), (counted & ~state.table.retired).sum() - retiring
    if left + to_come >= m or left == known:
        return ""
    clients = "clients" if counted.all() else "originals"
    return f"privacy budgets: {left} of {known} {clients} may still release, and {m} are needed"


def budgets_end(state: RunState, settings: ServerSettings) -> int | None:
    """The round after which fewer than m clients have budget left (`rounds_left`); None without a floor or rounds."""
    limit = settings.budget.participations if settings.budget else None
    if limit is None or not state.round:
        return None
    active, m = state.policy.counted(state.table) & ~state.table.retired, settings.updates_needed(state.policy.m)
    left, chosen = limit - state.table.released[active], state.table.chosen[active]
    answers = m if settings.is_asynchronous else float(chosen.sum()) / state.round - settings.spare
    return state.round + rounds_left(left, chosen, m, answers)


def rounds_left(left: IntArray, chosen: IntArray, m: int, answers: float = 0.0) -> int:
    """How many more rounds of m clients, or of `answers` if more, the budgets allow if choices go on as so far.

    left, (K,) int64: participations each client still has; chosen, (K,) int64: how often it was chosen. With w =
    chosen + 1, client k's budget ends at time left_k / w_k. At the time s* when the m-th last one ends, Σ min(left_k,
    w_k s*) participations have been used. No policy can exceed the greatest T with Σ min(left_k, T) ≥ m T.
    """
    if left.size < m:
        return 0
    weights = chosen + 1.0
    end = np.partition(left / weights, left.size - m)[left.size - m]
    possible = range(1, int(left.sum()) // m + 1)  # no T below the greatest fails, as the sum is concave in T
    most = bisect_left(possible, True, key=lambda rounds: bool(np.minimum(left, rounds).sum() < m * rounds))
    return min(int(np.minimum(left, weights * end).sum() / max(m, answers)), most)
