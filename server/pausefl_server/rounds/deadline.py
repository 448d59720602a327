"""When a round ends: how long it waits, derived from past exchanges, and for how many answers. Pure functions."""

import math

import numpy as np

from pausefl_proto.arrays import IntArray
from pausefl_server.clients import ClientTable
from pausefl_server.settings import ServerSettings

QUANTILE, FACTOR = 0.9, 3.0
"""A client is expected to answer within FACTOR times this quantile of its last round trips."""
UNSEEN_S = 60.0
"""The least time allowed to a client that has not answered yet, or whose last job was a miss."""
LEAST_S, GREATEST_S = 10.0, 600.0
RETRY_FACTOR = 3.0
"""The factor by which each further attempt at a round waits longer: all clients may be slower than expected."""
# Further failed attempts do not lengthen the deadline: it has reached GREATEST_S, and a greater power would overflow.
_MOST_RETRIES = 100
# A server that notices the end of a wait this late has stood still.
_STALL_S = 0.25


def round_timeout_s(settings: ServerSettings, table: ClientTable, rows: IntArray, failed_attempts: int = 0) -> float:
    """Seconds that a round with the clients of these rows waits from when its jobs are sent: d of docs/network.md.

    `failed_attempts`: f, how many attempts at this round had no update.
    """
    if settings.round_timeout_s is not None:
        return settings.round_timeout_s
    stretch = max(1.0, settings.time_scale)
    # Q_k is the smallest round trip that at least QUANTILE of the client's known ones do not exceed; NaN without any.
    ordered_s = np.sort(table.recent_round_trips_s[rows], axis=1)  # NaN is sorted last
    place = np.ceil(QUANTILE * (~np.isnan(ordered_s)).sum(axis=1)).astype(np.int64) - 1
    expected_s = FACTOR * ordered_s[np.arange(len(rows)), np.maximum(place, 0)]
    is_unseen = np.isnan(expected_s) | (table.misses_in_a_row[rows] > 0)
    expected_s = np.where(is_unseen, np.fmax(expected_s, UNSEEN_S * stretch), expected_s)
    deadline_s = RETRY_FACTOR ** min(failed_attempts, _MOST_RETRIES) * max(LEAST_S, float(expected_s.max()))
    return min(GREATEST_S * stretch, deadline_s)


def second_wait_s(late_s: float, wait_s: float) -> float:
    """Seconds to wait again after a wait of `wait_s` whose end was noticed `late_s` late; 0 unless the server stalled.

    When a stopped process, or its machine, goes on, the timer has run out while messages may still be unread.
    """
    return min(late_s, wait_s) if _STALL_S <= late_s < math.inf else 0.0


class Patience:
    """A wait that begins now. It is extended once if the server stood still when it should have ended."""

    def __init__(self, wait_s: float, now_s: float) -> None:
        self._wait_s = wait_s
        self._until_s = now_s + wait_s
        self._is_first = True

    def left_s(self, now_s: float) -> float:
        """Seconds that are left; not positive when the wait is over."""
        if self._is_first and now_s >= self._until_s:
            self._is_first = False
            self._until_s = now_s + second_wait_s(now_s - self._until_s, self._wait_s)
        return self._until_s - now_s


def answers_needed(asked: int, m: int, spare: int, quorum: float, beyond: int = 0) -> int:
    """How many of the clients asked must answer before a round ends early: k of m.

    m + `spare` clients are asked if enough are connected, and m answers are needed. If a policy asks more clients,
    their answers are needed as well; m does not count `beyond` of those asked, such as newcomers. `quorum`, in (0, 1],
    is the share of these that is enough.
    """
    return max(1, min(asked, math.ceil(quorum * (max(m, asked - beyond - spare) + beyond) - 1e-9)))
