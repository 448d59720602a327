"""Checks of the releases that clients report, against the schedule and the log."""

from pausefl_proto.budget import Budget, Release, is_same_epsilon
from pausefl_proto.errors import WireError


def check_ledger(released: int, epsilon_spent: float, budget: Budget | None, proven: int) -> None:
    """Raise WireError if the ledger that a client states at hello contradicts the schedule or the server's log.

    `proven` is how many of the client's releases are proven to the server.
    """
    spent = budget.spent(released) if budget else 0.0
    if not is_same_epsilon(epsilon_spent, spent):
        raise WireError(
            f"the client's ledger says {epsilon_spent} epsilon is spent after {released} releases,"
            f" the schedule says {spent}"
        )
    # The floor is not checked: the ledger may come from a run with a lower floor than this one's.
    if budget and released and not budget.epsilon(released) > 0:
        raise WireError(f"the client's ledger counts {released} releases, more than its schedule has an epsilon for")
    if released < proven:
        raise WireError(
            f"the client's ledger counts {released} releases, the server knows of {proven}:"
            " restore the ledger, or use a new client id"
        )


def check_release(release: Release, budget: Budget | None, proven: int, used: int) -> None:
    """Raise WireError unless a reported release fits the agreed schedule.

    `proven` is how many releases the server already knows of: a client that counts fewer has lost its ledger.
    `used` is the last release whose update was used: the same noise must not be used twice.
    """
    if budget is None:
        if release != Release():
            raise WireError("reports a private release in a run without privacy")
        return
    i = release.participation
    if i < 1:
        raise WireError("sends an update without a private release")
    if i < proven:
        raise WireError(f"counts {i} releases, the server knows of {proven}: its ledger is older than the server's")
    if i <= used:
        raise WireError(f"sends release {i} once more, it has been used already")
    if not budget.affords(i):
        raise WireError(f"made release {i}, for which its budget leaves nothing")
    if not is_same_epsilon(release.epsilon, budget.epsilon(i)):
        raise WireError(f"spent epsilon {release.epsilon} on release {i}, the schedule says {budget.epsilon(i)}")
    if not is_same_epsilon(release.epsilon_spent, budget.spent(i)):
        raise WireError(f"has spent {release.epsilon_spent} after {i} releases, the schedule says {budget.spent(i)}")


def is_plausible(release: Release, budget: Budget | None) -> bool:
    """Whether a release is plausible whose update was not used. If so, its ε counts as spent."""
    if budget is None or release.participation < 1:
        return False
    return is_same_epsilon(release.epsilon_spent, budget.spent(release.participation))
