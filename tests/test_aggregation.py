"""FedAvg: eq. (2) of PAUSE v2, whoever answers first."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pausefl.wire import Vector
from pausefl_server.aggregation import federated_average

SIZES = st.integers(1, 2000)


def vectors(n: int, size: int, seed: int) -> list[Vector]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(size, np.float32) for _ in range(n)]


def reference(theta: Vector, updates: list[Vector], weights: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    """Eq. (2) in float64."""
    alphas = weights / weights.sum()
    return theta.astype(np.float64) + sum(a * h.astype(np.float64) for a, h in zip(alphas, updates, strict=True))


@given(st.integers(1, 20), SIZES, st.integers(0, 1000), st.data())
def test_it_is_equation_2_to_float32s_accuracy(n: int, size: int, seed: int, data: st.DataObject) -> None:
    theta, *updates = vectors(n + 1, size, seed)
    weights = np.array(data.draw(st.lists(st.integers(1, 10**6), min_size=n, max_size=n)), np.float64)
    averaged = federated_average(theta, updates, weights)
    assert averaged.dtype == np.float32
    assert averaged.shape == theta.shape
    # Each of n products and sums of values below 5 rounds by 2^-24.
    np.testing.assert_allclose(averaged, reference(theta, updates, weights), rtol=0, atol=5 * (n + 3) * 2**-23)


def test_weights_are_shares_of_the_data() -> None:
    theta = np.zeros(3, np.float32)
    updates = [np.full(3, value, np.float32) for value in (1.0, 2.0, 10.0)]
    averaged = federated_average(theta, updates, np.array([100.0, 50.0, 50.0]))
    assert averaged.tolist() == [3.5, 3.5, 3.5]  # (1·100 + 2·50 + 10·50) / 200


@pytest.mark.parametrize("scale", [1.0, 0.25, 1024.0])
def test_only_the_ratios_of_the_weights_count(scale: float) -> None:
    theta, *updates = vectors(4, 100, seed=3)
    weights = np.array([1.0, 2.0, 5.0])
    assert (
        federated_average(theta, updates, scale * weights).tobytes()
        == federated_average(theta, updates, weights).tobytes()
    )


def test_one_update_is_taken_whole_whatever_its_weight() -> None:
    theta, update = vectors(2, 500, seed=5)
    assert federated_average(theta, [update], np.array([7.0])).tobytes() == (update + theta).tobytes()


def test_a_client_drawn_twice_counts_twice() -> None:
    theta, a, b = vectors(3, 50, seed=6)
    twice = federated_average(theta, [a, a, b], np.ones(3))
    np.testing.assert_allclose(twice, theta + (2 * a + b) / 3, atol=1e-6)


def test_without_updates_the_model_stays_the_same_array() -> None:
    (theta,) = vectors(1, 10, seed=7)
    assert federated_average(theta, [], np.empty(0)) is theta


@pytest.mark.parametrize("writeable", [True, False])
def test_arguments_are_left_as_they_were(writeable: bool) -> None:
    """Updates that came over the wire are read-only."""
    theta, *updates = vectors(4, 100, seed=8)
    before = [v.tobytes() for v in (theta, *updates)]
    for vector in (theta, *updates):
        vector.flags.writeable = writeable
    averaged = federated_average(theta, updates, np.array([3.0, 1.0, 2.0]))
    assert [v.tobytes() for v in (theta, *updates)] == before
    assert not any(np.shares_memory(averaged, v) for v in (theta, *updates))


def test_each_update_needs_its_weight() -> None:
    theta, *updates = vectors(4, 10, seed=9)
    with pytest.raises(ValueError):
        federated_average(theta, updates, np.ones(2))
