"""When budgets end: who must not be asked again, and until which round a run can go on. Pure functions."""

import numpy as np

from pausefl_proto.budget import Budget
from pausefl_server.clients import ClientTable
from pausefl_server.ledger import rounds_left
from pausefl_server.records import LogEvent


def used_up(table: ClientTable, budget: Budget | None) -> tuple[LogEvent, ...]:
    """Who must not be asked again: the floor, which looks at i alone, does not allow its next release."""
    limit = budget.participations if budget else None
    if limit is None:
        return ()
    rows = np.flatnonzero(~table.retired & (table.released >= limit))
    return tuple(LogEvent("retired", table.ids[row], "its next epsilon would lie below the floor") for row in rows)


def too_few_left(table: ClientTable, m: int) -> str:
    """Why the run must end before noise drowns what it learnt; empty while m clients may still release."""
    left = int((~table.retired).sum())
    if left >= m or left == len(table):
        return ""
    return f"privacy budgets: {left} of {len(table)} clients may still release, a round takes m = {m}"


def budgets_end(table: ClientTable, budget: Budget | None, round: int, m: int) -> int | None:
    """The round after which fewer than m clients will have budget left, as things go; None without a floor."""
    limit = budget.participations if budget else None
    if limit is None:
        return None
    active = ~table.retired
    return round + rounds_left(limit - table.released[active], table.chosen[active], m)
