"""A tighter privacy figure for many releases than the sum of their ε_i.

Theorem 2 of PAUSE v2 adds the ε_i up, which always holds. Composing the releases' privacy loss distributions gives, for
a small δ, an (ε, δ) guarantee whose ε is smaller. The composition and its rounding (upwards) are dp-accounting's.
"""

from pausefl_client.privacy import PrivacyUnit
from pausefl_proto.budget import Budget

# The loss distribution of all releases together stands on so many points.
_POINTS = 20_000


def tighter_epsilon(budget: Budget, unit: PrivacyUnit, participations: int, delta: float) -> float | None:
    """ε of (ε, δ) in `unit` for a client that released so often; None when dp-accounting is not installed.

    unit "coordinate": a release is the Laplace mechanism with scale 1/ε_i times its sensitivity. unit "vector": it is
    any ε_i-DP mechanism, whose loss is at most that of randomised response (Kairouz, Oh and Viswanath, 2015).
    """
    try:
        from dp_accounting.pld import common, privacy_loss_distribution
    except ImportError:
        return None
    if not participations:
        return 0.0
    interval = budget.spent(participations) / _POINTS
    total = privacy_loss_distribution.identity(value_discretization_interval=interval)
    for i in range(1, participations + 1):
        epsilon = budget.epsilon(i)
        if unit == "coordinate":
            release = privacy_loss_distribution.from_laplace_mechanism(
                1 / epsilon, value_discretization_interval=interval
            )
        else:
            release = privacy_loss_distribution.from_privacy_parameters(
                common.DifferentialPrivacyParameters(epsilon, 0.0), value_discretization_interval=interval
            )
        total = total.compose(release)
    # Discretising rounds up; the plain sum is a guarantee as well.
    return min(float(total.get_epsilon_for_delta(delta)), budget.spent(participations))
