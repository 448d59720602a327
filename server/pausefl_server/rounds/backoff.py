"""Backoff after misses: a client that does not answer is not selected for a growing number of rounds."""

import numpy as np

from pausefl_proto.arrays import IntArray
from pausefl_server.clients import ClientTable


def selectable_rows(
    table: ClientTable, round: int, m: int, rest_rounds_max: int, among: IntArray | None = None
) -> IntArray:
    """Rows that may be selected in `round`, ascending: connected, not retired and not at rest.

    A client that missed k times in a row rests min(2^(k-1), rest_rounds_max) rounds, as a binary exponential backoff
    (Metcalfe and Boggs, CACM 1976). An answer ends its rests. If fewer than m other clients are there, resting clients
    are asked too, those first whose rest ends first. A client that missed an earlier attempt at this round is asked
    again only if no other client is there. `among`: rows to consider instead of all eligible ones, ascending.
    """
    rows = table.eligible() if among is None else among
    is_silent = table.misses_in_a_row[rows] > 0
    if not np.count_nonzero(is_silent):
        return rows
    missed_now = is_silent & (table.last_missed_round[rows] == round)
    if missed_now.any() and not missed_now.all():
        rows = rows[~missed_now]
    doublings = np.minimum(table.misses_in_a_row[rows] - 1, 62)
    rest = np.minimum(np.left_shift(1, np.maximum(doublings, 0)), rest_rounds_max)
    ends = np.where(table.misses_in_a_row[rows] > 0, table.last_missed_round[rows] + rest, 0)
    resting = ends >= round
    if not resting.any():
        return rows
    needed = max(0, m - int((~resting).sum()))
    soonest = np.lexsort((table.tie_key[rows], ends))
    recalled = [i for i in soonest.tolist() if resting[i]][:needed]
    resting[recalled] = False
    return rows[~resting]
