"""What clipping and noise cannot have made is rejected; what they make is not, up to the stated probability."""

import math

import numpy as np
import pytest

from pausefl_client.privacy.mechanism import Mechanism, NumpyLaplace, entropy_rng
from pausefl_proto.encoding import FLOAT32, Float16
from pausefl_proto.errors import WireError
from pausefl_proto.privacy_unit import PrivacyUnit
from pausefl_proto.wire import Vector
from pausefl_server.model.norm_bound import TAIL_PROBABILITY, NormBound

UNITS: tuple[PrivacyUnit, ...] = ("coordinate", "vector")


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("d", [1, 30, 20_000])
@pytest.mark.parametrize("epsilon", [0.01, 1.5, 1e6])
def test_what_the_mechanism_makes_is_taken(unit: PrivacyUnit, d: int, epsilon: float) -> None:
    mechanism, bound = Mechanism(unit, 0.3), NormBound(unit, 0.3)
    greatest: Vector = np.full(d, 1e6, np.float32)  # clipped to the bound itself
    for _ in range(20):
        bound.check(mechanism.privatise(greatest, epsilon, NumpyLaplace(entropy_rng())), epsilon)


@pytest.mark.parametrize("unit", UNITS)
def test_one_value_that_no_noise_makes_is_rejected(unit: PrivacyUnit) -> None:
    update = np.zeros(1000, np.float32)
    update[7] = 9e29
    with pytest.raises(WireError, match="has a value of 9e"):
        NormBound(unit, 0.3).check(update, 0.01)


@pytest.mark.parametrize("unit", UNITS)
def test_many_values_that_are_possible_alone_are_rejected_together(unit: PrivacyUnit) -> None:
    bound, d = NormBound(unit, 0.3), 10_000
    greatest, total = bound.limits(d, 1.0)
    assert greatest * d > total
    with pytest.raises(WireError, match="has an L1 norm of"):
        bound.check(np.full(d, 0.9 * greatest, np.float32), 1.0)


@pytest.mark.parametrize(
    ("unit", "value", "norm", "scale"), [("coordinate", 0.15, 0.15 * 50, 0.3 / 2), ("vector", 0.3, 0.3, 0.6 / 2)]
)
def test_bounds_are_those_of_clip_and_noise(unit: PrivacyUnit, value: float, norm: float, scale: float) -> None:
    """What a clip of 0.3 leaves of one value and of all 50, and what Laplace noise of this scale adds at ε = 2."""
    s = math.log(2 / TAIL_PROBABILITY)
    expected = value + scale * math.log(2 * 50 / TAIL_PROBABILITY), norm + scale * (50 + math.sqrt(100 * s) + s)
    assert NormBound(unit, 0.3).limits(50, 2.0) == pytest.approx(expected, rel=2e-5)


def test_rounding_on_the_way_widens_the_bound_of_a_sum_by_each_value() -> None:
    bound, encoding, d = NormBound("coordinate", 0.3), Float16(), 50
    greatest, total = bound.limits(d, 2.0)
    limit = np.float32(total / d + encoding.step * greatest)
    bound.check(np.full(d, 0.9999 * limit, np.float32), 2.0, encoding)
    for value, travels in ((0.9999 * limit, FLOAT32), (1.0001 * limit, encoding)):
        with pytest.raises(WireError, match="has an L1 norm of"):
            bound.check(np.full(d, value, np.float32), 2.0, travels)


def test_the_bounds_are_no_wider_than_their_probability_asks_for() -> None:
    """The noise alone passes each bound with at most half the probability, and would often pass half of it."""
    scale, d = 2.0, 1000
    greatest, total = NormBound("coordinate", 2.0).limits(d, 1.0)
    least = scale * math.log(d / TAIL_PROBABILITY)
    assert least <= greatest <= 1.2 * least
    assert total <= 1.4 * (d + d * scale)
