"""How an attempt at a round ends, and its log record. Pure functions, which server, simulation and replay share."""

from collections.abc import Iterable, Sequence

import numpy as np

from pausefl_proto.arrays import BoolArray, FloatArray
from pausefl_proto.budget import Budget
from pausefl_server.clients import ClientTable
from pausefl_server.records import LogEvent, Miss, MissKind, Observation, RoundRecord


def attempt_end(came_s: FloatArray, needed: int, deadline_s: float) -> tuple[float, BoolArray, MissKind]:
    """How long an attempt lasts, which answers are in time, and of which kind the other clients' misses are.

    came_s, (n,): the seconds after which each asked client answers, inf for never. The attempt ends with the last
    answer that is needed, or at the deadline.
    """
    end_s = float(np.sort(came_s)[needed - 1])
    if end_s < deadline_s:
        return end_s, came_s <= end_s, "unneeded"
    return deadline_s, came_s < deadline_s, "timeout"


def attempt_record(
    round: int, attempt: int, chosen: Sequence[str], observations: Iterable[Observation], misses: Iterable[Miss] = ()
) -> RoundRecord:
    """The attempt's log record. Its latency is eq. (3) on the signal, where a miss counts with the time waited."""
    seen, missed = tuple(observations), tuple(misses)
    waits_s = [miss.latency_s for miss in missed if miss.kind != "unneeded"]
    latency_s = max([*(o.latency_s for o in seen), *waits_s], default=0.0)
    return RoundRecord(round, attempt, tuple(chosen), observations=seen, misses=missed, round_latency_s=latency_s)


def next_release(table: ClientTable, row: int, budget: Budget | None) -> tuple[int, float, float]:
    """The i of a client's next release, its ε_i, and the ε spent with it included; zeros without privacy."""
    if budget is None:
        return 0, 0.0, 0.0
    i = int(table.released[row]) + 1
    return i, budget.epsilon(i), budget.spent(i)


def releases_of_misses(record: RoundRecord, table: ClientTable, budget: Budget | None) -> list[LogEvent]:
    """The events of a simulated attempt's misses: an update may have left its client, so each counts as released.

    A client that refused its job has released nothing.
    """
    if budget is None:
        return []
    missed = [miss.client_id for miss in record.misses if miss.kind != "refused"]
    releases = ((c, next_release(table, table.row_of[c], budget)) for c in missed)
    return [LogEvent("reconciled", c, epsilon_spent=spent, released=i) for c, (i, _, spent) in releases]
