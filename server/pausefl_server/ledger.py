"""The server's mirror of what each client has spent. Clients charge themselves; the server only believes upwards."""

import math
from dataclasses import dataclass

from pausefl.budget import Budget
from pausefl.errors import WireError

# Two machines may round e^{-ηi} differently in the last place.
_RELATIVE_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class Release:
    """One private release as its client reports it: the i-th, at ε_i, and all it has spent with it."""

    participation: int = 0
    epsilon: float = 0.0
    epsilon_spent: float = 0.0


def check_release(release: Release, budget: Budget | None, mirrored: int) -> None:
    """Raise WireError unless a reported release fits the agreed schedule.

    `mirrored` is how many releases the server already knows of: a client that counts fewer has lost its ledger.
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
    if not math.isclose(release.epsilon, budget.epsilon(i), rel_tol=_RELATIVE_TOLERANCE):
        raise WireError(f"spent epsilon {release.epsilon} on release {i}, the schedule says {budget.epsilon(i)}")
    if not math.isclose(release.epsilon_spent, budget.spent(i), rel_tol=_RELATIVE_TOLERANCE):
        raise WireError(f"has spent {release.epsilon_spent} after {i} releases, the schedule says {budget.spent(i)}")
