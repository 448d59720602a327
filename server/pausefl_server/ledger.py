"""The server's mirror of what each client has spent. Clients charge themselves; the server only believes upwards."""

import math
from dataclasses import dataclass

import numpy as np

from pausefl_proto.arrays import IntArray
from pausefl_proto.budget import Budget
from pausefl_proto.errors import WireError

# Two machines may round e^{-ηi} differently in the last place.
_RELATIVE_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class Release:
    """One private release as its client reports it: the i-th, at ε_i, and all it has spent with it."""

    participation: int = 0
    epsilon: float = 0.0
    epsilon_spent: float = 0.0


def check_ledger(released: int, epsilon_spent: float, budget: Budget | None, mirrored: int) -> None:
    """Raise WireError unless what a client's ledger says at hello fits the schedule and what the server knows.

    `mirrored` is how many of the client's releases the server has proof of.
    """
    spent = budget.spent(released) if budget else 0.0
    if not math.isclose(epsilon_spent, spent, rel_tol=_RELATIVE_TOLERANCE):
        raise WireError(
            f"the client's ledger says {epsilon_spent} epsilon is spent after {released} releases,"
            f" the schedule says {spent}"
        )
    if released < mirrored:
        raise WireError(
            f"the client's ledger counts {released} releases, the server knows of {mirrored}:"
            " restore the ledger, or use a new client id"
        )


def check_release(release: Release, budget: Budget | None, mirrored: int, used: int = 0) -> None:
    """Raise WireError unless a reported release fits the agreed schedule.

    `mirrored` is how many releases the server already knows of: a client that counts fewer has lost its ledger.
    `used` is the last release an update of which was used: the same noise must not come twice.
    """
    if budget is None:
        if release != Release():
            raise WireError("reports a private release in a run without privacy")
        return
    i = release.participation
    if i < 1:
        raise WireError("sends an update without a private release")
    if i < mirrored:
        raise WireError(f"counts {i} releases, the server knows of {mirrored}: its ledger is older than the server's")
    if i <= used:
        raise WireError(f"sends release {i} once more, it has been used in an earlier round")
    if not math.isclose(release.epsilon, budget.epsilon(i), rel_tol=_RELATIVE_TOLERANCE):
        raise WireError(f"spent epsilon {release.epsilon} on release {i}, the schedule says {budget.epsilon(i)}")
    if not math.isclose(release.epsilon_spent, budget.spent(i), rel_tol=_RELATIVE_TOLERANCE):
        raise WireError(f"has spent {release.epsilon_spent} after {i} releases, the schedule says {budget.spent(i)}")


def is_plausible(release: Release, budget: Budget | None) -> bool:
    """Whether what a client says it has spent on an update that was not used can be believed, and so is spent."""
    if budget is None or release.participation < 1:
        return False
    return math.isclose(release.epsilon_spent, budget.spent(release.participation), rel_tol=_RELATIVE_TOLERANCE)


def rounds_left(left: IntArray, chosen: IntArray, m: int) -> int:
    """How many more rounds of m the clients' budgets allow, if all go on being chosen in the proportions so far.

    left, (K,) int64: participations each client still has; chosen, (K,) int64: how often it was chosen. With w =
    chosen + 1 client k is used up at time left_k / w_k; at the time s* at which the m-th last goes, Σ min(left_k,
    w_k s*) participations have been had. No policy at all gets beyond the greatest T with Σ min(left_k, T) ≥ m T.
    """
    if left.size < m:
        return 0
    weights = chosen + 1.0
    end = np.partition(left / weights, left.size - m)[left.size - m]
    return min(int(np.minimum(left, weights * end).sum() / m), _most_rounds(left, m))


def _most_rounds(left: IntArray, m: int) -> int:
    low, high = 0, int(left.sum()) // m
    while low < high:
        middle = (low + high + 1) // 2
        if np.minimum(left, middle).sum() >= m * middle:
            low = middle
        else:
            high = middle - 1
    return low
