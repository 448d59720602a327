"""A lower bound on ε from what an attacker sees in two worlds.

If an event has probability p in one world and q in the other, the mechanism is not ε-DP for any ε < ln(p/q). Bounding p
from below and q from above (Clopper and Pearson, 1934) over many uploads gives a bound that a right mechanism exceeds
as rarely as is asked for, and that a broken one exceeds as soon as it leaks noticeably more than it claims.
"""

from dataclasses import dataclass

import numpy as np
from scipy import stats

from pausefl_proto.arrays import FloatArray

_EVENTS = 64


@dataclass(frozen=True)
class Leak:
    """What one attack found out about the mechanism."""

    attack: str
    epsilon: float
    """What the mechanism claims against this attack."""
    lower_bound: float
    """At this confidence the mechanism is not ε-DP for any smaller ε."""
    scores: int
    """Attempts at telling the two worlds apart, both together."""

    @property
    def holds(self) -> bool:
        """Whether the claim survived."""
        return self.lower_bound <= self.epsilon


def epsilon_lower_bound(plus: FloatArray, minus: FloatArray, alpha: float) -> float:
    """A lower bound on ε from scores seen in either world, (n,) each, that is too high with probability `alpha`.

    The event "score ≥ t" is chosen on the first half of the scores and tested on the second, so that choosing does not
    spoil the bound.
    """
    first, then = plus.size // 2, minus.size // 2
    events = np.quantile(np.concatenate([plus[:first], minus[:then]]), np.linspace(0.02, 0.9999, _EVENTS))
    t = events[np.argmax(_log_ratio(plus[:first], minus[:then], events, alpha))]
    return float(_log_ratio(plus[first:], minus[then:], np.array([t]), alpha)[0])


def _log_ratio(plus: FloatArray, minus: FloatArray, events: FloatArray, alpha: float) -> FloatArray:
    """ln(p/q) with p bounded from below and q from above, each wrong with probability alpha/2."""
    hits, false_hits = ((scores[:, None] >= events).sum(0) for scores in (plus, minus))
    p = np.nan_to_num(stats.beta.ppf(alpha / 2, hits, plus.size - hits + 1), nan=0.0)
    q = np.nan_to_num(stats.beta.isf(alpha / 2, false_hits + 1, minus.size - false_hits), nan=1.0)
    ratio: FloatArray = np.log(np.maximum(p, 1e-300) / q)
    return ratio
