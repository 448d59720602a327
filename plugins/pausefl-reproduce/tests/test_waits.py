"""Times until an accuracy is reached: the mean is an area under a curve, and censored seeds can only take longer."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pausefl.results.statistics import FEWEST_SEEDS, mean_interval
from pausefl_reproduce.waits import (
    Waits,
    common_horizon_s,
    first_reached,
    restricted_difference,
    restricted_mean,
    smoothed,
)

FOLLOWED = st.lists(st.tuples(st.floats(0.1, 1e3), st.booleans()), min_size=FEWEST_SEEDS, max_size=12)


def waits(followed: list[tuple[float, bool]]) -> Waits:
    return Waits(np.array([seconds for seconds, _ in followed]), np.array([hit for _, hit in followed], dtype=bool))


@given(FOLLOWED, st.floats(1.0, 2e3))
def test_a_restricted_mean_is_the_area_under_scipys_curve(followed: list[tuple[float, bool]], horizon_s: float) -> None:
    seeds = waits(followed)
    sample = stats.CensoredData(uncensored=seeds.seconds[seeds.reached], right=seeds.seconds[~seeds.reached])
    curve = stats.ecdf(sample).sf
    edges = np.unique(np.concatenate([[0.0, horizon_s], seeds.seconds[seeds.seconds < horizon_s]]))
    area = float(np.sum(curve.evaluate(edges[:-1]) * np.diff(edges)))
    assert restricted_mean(seeds, horizon_s).mean == pytest.approx(area)


@given(FOLLOWED, st.integers(0, 11), st.floats(1.0, 2e3))
def test_to_censor_a_seed_shortens_no_wait(followed: list[tuple[float, bool]], which: int, horizon_s: float) -> None:
    which %= len(followed)
    censored = [(s, hit and i != which) for i, (s, hit) in enumerate(followed)]
    before, after = (restricted_mean(waits(each), horizon_s).mean for each in (followed, censored))
    assert after >= before - 1e-9


@given(FOLLOWED)
def test_without_censored_seeds_it_is_the_plain_mean(followed: list[tuple[float, bool]]) -> None:
    seeds = waits([(s, True) for s, _ in followed])
    assert common_horizon_s([seeds]) == np.inf
    assert restricted_mean(seeds, np.inf).mean == pytest.approx(seeds.seconds.mean())
    assert restricted_mean(seeds, np.inf).high == pytest.approx(mean_interval(seeds.seconds).high)


@given(FOLLOWED, FOLLOWED)
def test_a_difference_of_waits_is_antisymmetric(one: list[tuple[float, bool]], other: list[tuple[float, bool]]) -> None:
    n = min(len(one), len(other))
    first, second = waits(one[:n]), waits(other[:n])
    horizon_s = common_horizon_s([first, second])
    there, back = (restricted_difference(a, b, horizon_s) for a, b in ((first, second), (second, first)))
    assert there.difference.mean == pytest.approx(-back.difference.mean)
    assert there.win_rate + back.win_rate == pytest.approx(1.0)


def test_a_censored_pair_is_no_win_unless_it_is_known_to_be_later() -> None:
    """Means are compared up to the time until which all censored seeds were observed."""
    long, short = waits([(10.0, False), (20.0, True)]), waits([(5.0, False), (8.0, True)])
    assert common_horizon_s([long, short, waits([(1.0, True)])]) == 8.0
    first = waits([(10.0, True)] * 5)
    second = waits([(20.0, False), (5.0, False), (8.0, True), (10.0, True), (30, True)])
    assert restricted_difference(first, second, np.inf).win_rate == pytest.approx((1 + 0.5 + 0 + 0.5 + 1) / 5)
    sooner, later = waits([(9.0, True)] * 5), waits([(10.0, True)] * 5)  # wins count only before the horizon
    assert [restricted_difference(sooner, later, horizon_s).win_rate for horizon_s in (8.0, 9.5)] == [0.5, 1.0]


def test_the_first_evaluation_that_reaches_an_accuracy_counts_and_the_last_censors_and_smoothing_averages() -> None:
    times = [np.array([1.0, 2.0, 3.0])] * 2
    found = first_reached(times, [np.array([0.1, 0.5, 0.4]), np.array([0.1, 0.2, 0.3])], 0.5)
    assert (found.seconds.tolist(), found.reached.tolist()) == ([2.0, 3.0], [True, False])
    rounds, values = np.array([0.0, 5.0, 10.0, 15.0]), np.array([1.0, 2.0, 4.0, 6.0])
    assert [smoothed(rounds, values, last).tolist() for last in (10, 1)] == [[1.0, 1.5, 3.0, 5.0], values.tolist()]
