"""Intervals over seeds: they hold the mean, and pairs are antisymmetric."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats

from pausefl.results.statistics import (
    FEWEST_SEEDS,
    Interval,
    Spread,
    mean_band,
    mean_interval,
    paired_difference,
    saving_in_words,
    shares_saved,
    three_digits,
)
from pausefl.studies.simulations import _answers

NUMBERS = st.floats(-1e3, 1e3)
PAIRS = st.lists(st.tuples(NUMBERS, NUMBERS), min_size=FEWEST_SEEDS, max_size=12)


def bounds(interval: Interval) -> tuple[float, float]:
    assert interval.low is not None
    assert interval.high is not None
    return interval.low, interval.high


@given(st.lists(NUMBERS, min_size=FEWEST_SEEDS, max_size=12))
@example([0.7] * 6)  # whose resampled means are rounded to less
def test_an_interval_holds_its_mean_and_lies_in_the_range(values: list[float]) -> None:
    low, high = bounds(found := mean_interval(values))
    assert min(values) - 1e-9 <= low <= found.mean <= high <= max(values) + 1e-9


@pytest.mark.parametrize("n_seeds", range(1, FEWEST_SEEDS))
def test_few_seeds_have_no_interval(n_seeds: int) -> None:
    found = mean_interval(np.arange(n_seeds, dtype=float))
    assert (found.low, found.high, found.n_seeds) == (None, None, n_seeds)
    assert [*map(float, mean_band(np.arange(n_seeds, dtype=float)))] == [(n_seeds - 1) / 2, 0, n_seeds - 1]


def test_an_interval_is_scipys_and_covers_the_truth_about_as_often_as_it_says() -> None:
    """With ten seeds, a percentile interval of the mean is known to be narrow: it covers about 90 % instead of 95 %."""
    found = [bounds(mean_interval(values)) for values in np.random.default_rng(3).normal(0.0, 1.0, (300, 10))]
    assert 0.85 < np.mean([low <= 0 <= high for low, high in found]) < 0.97
    drawn = np.random.default_rng(1).normal(5.0, 2.0, 12)
    theirs = stats.bootstrap((drawn,), np.mean, method="percentile", n_resamples=20_000, rng=2).confidence_interval
    assert bounds(mean_interval(drawn)) == pytest.approx((theirs.low, theirs.high), abs=0.05)


ACCURACIES = [83.8, 85.3, 86.9, 83.6, 87.4, 84.1, 88.2, 86.7, 86.3, 82.4, 61.3, 68.5]
ACCURACIES += [86.5, 87.6, 70.0, 73.5, 83.0, 85.8, 82.8, 86.8, 86.6, 84.6, 87.1, 85.9]
"""Test accuracies in % of `small_mnist` without privacy after 200 rounds. The seeds form two groups (modes)."""


@pytest.mark.parametrize(("n_seeds", "stated"), [(10, 0.83), (5, 0.60)])
def test_an_interval_of_skewed_accuracies_covers_less_often_as_stated(n_seeds: int, stated: float) -> None:
    """docs/results.md states these shares."""
    found = [bounds(mean_interval(values)) for values in np.random.default_rng(1).choice(ACCURACIES, (500, n_seeds))]
    assert np.mean([low <= np.mean(ACCURACIES) <= high for low, high in found]) == pytest.approx(stated, abs=0.03)


@given(PAIRS)
def test_a_paired_difference_is_antisymmetric(pairs: list[tuple[float, float]]) -> None:
    first, second = zip(*pairs, strict=True)
    there, back = paired_difference(first, second), paired_difference(second, first)
    assert there.difference.mean == pytest.approx(-back.difference.mean)
    assert bounds(there.difference)[0] == pytest.approx(-bounds(back.difference)[1], abs=1e-6)
    assert there.win_rate + back.win_rate == pytest.approx(1.0)


def test_pairing_removes_what_both_seeds_share() -> None:
    shared = np.array([0.0, 100.0, 200.0, 300.0, 400.0])
    found = paired_difference(shared, shared + 1.0)
    assert (found.difference.low, found.difference.high) == (-1.0, -1.0)
    assert found.win_rate == 1.0
    with pytest.raises(ValueError, match="3 values cannot be paired with 2"):
        paired_difference([1.0, 2.0, 3.0], [1.0, 2.0])


def test_a_band_is_the_interval_of_each_point() -> None:
    curves = np.random.default_rng(1).normal(size=(6, 3))
    curves[:, 2] = 0.7  # its resampled means are rounded to less
    for i, (mean, low, high) in enumerate(zip(*mean_band(curves), strict=True)):
        assert low <= mean <= high
        point = mean_interval(curves[:, i])
        assert (mean, low, high) == (pytest.approx(point.mean), pytest.approx(point.low), pytest.approx(point.high))


@pytest.mark.parametrize(
    ("saved", "said"),
    [
        ((-0.1, *[0.5] * 9), "44.0 % less than random (95 % interval 32.0 to 50.0 %, 10 seeds) x"),
        ((0.1, *[-0.5] * 9), "44.0 % more than random (95 % interval 32.0 to 50.0 %, 10 seeds) x"),
        ((0.3, 0.1), "20.0 % less than random (10.0 to 30.0 %, 2 seeds, too few for an interval) x"),
        ((0.2,), "20.0 % less than random (one seed, so no interval) x"),
        ((0.0,), "0.0 % less than random (one seed, so no interval) x: no difference is shown"),
        ((-0.1, 0.3) * 5, "10.0 % less than random (95 % interval -2.0 to 22.0 %, 10 seeds) x: no difference is shown"),
        ((*[0.0] * 4, -0.1), "2.0 % more than random (95 % interval 0.0 to 6.0 %, 5 seeds) x: no difference is shown"),
    ],
)
def test_a_saving_is_said_with_its_interval(saved: Sequence[float], said: str) -> None:
    spread = Spread.of(saved)
    assert spread is not None
    assert saving_in_words("pause", "random", spread, " x") == f"pause waits {said}"


def test_nothing_is_saved_of_no_wait() -> None:
    assert shares_saved([1.0, 0.0, 0.0, 1.0, None], [2.0, 2.0, 0.0, 0.0, 2.0]) == [0.5, 1.0, None, None, None]
    assert len(list(_answers({name: [{"total_latency_s": 0.0}] for name in ("random", "pause")}, "random"))) == 1
    shown = [three_digits(value) for value in (0.0, 0.004567, 0.04567, 0.09999, 0.5, 9.999, 99.97, -99.97, 1234.5)]
    assert shown == ["0.00", "0.00457", "0.0457", "0.10", "0.50", "10.0", "100", "-100", "1,234"]
