"""The exact searches against brute force, on difficult inputs: ties, infinities, forced rows, extremes."""

import itertools
import os
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pausefl_server.search import brute_force, convex_pivot_and_fill, kernels, pivot_and_fill, sweep
from pausefl_server.search.kernels import compiled
from pausefl_server.search.sweep import FEW

# Few distinct values, so that ties are frequent. The fractions are exact in binary, so equal energies compare equal.
UCB = st.one_of(st.sampled_from([0.0, 0.5, 1.0, 2.0, np.inf]), st.floats(-100, 100))
VALUE = st.one_of(st.sampled_from([-1.0, 0.0, 0.25, 0.5]), st.floats(-10, 10))


def under_r2(ucb: Any, value: Any, m: int, cluster: Any, penalty: float, forced: Any = ()) -> Any:
    """The search with eq. (22)'s penalty."""
    return convex_pivot_and_fill(ucb, value, m, cluster, (0.0, penalty), forced)


@st.composite
def problems(draw: st.DrawFn) -> dict[str, Any]:
    """A search problem of up to 9 rows, with clusters, a penalty and forced rows."""
    k = draw(st.integers(1, 9))
    m = draw(st.integers(1, k))
    return {
        "ucb": np.array(draw(st.lists(UCB, min_size=k, max_size=k))),
        "value": np.array(draw(st.lists(VALUE, min_size=k, max_size=k))),
        "m": m,
        "cluster": np.array(draw(st.lists(st.integers(-2, 3), min_size=k, max_size=k))),
        "penalty": draw(st.one_of(st.sampled_from([0.0, 0.25, 1e6]), st.floats(0, 10))),
        "forced": draw(st.lists(st.integers(0, k - 1), max_size=m, unique=True)),
    }


def energy(problem: dict[str, Any], rows: Any, marginal: Any) -> tuple[float, float]:
    """The sort key of a set: (1, Σ) if the minimum is +inf, else (0, min + Σ)."""
    rows = list(rows)
    least, total = problem["ucb"][rows].min(), problem["value"][rows].sum()
    for _, members in itertools.groupby(sorted(problem["cluster"][rows])):
        total -= sum(marginal[min(j, len(marginal) - 1)] for j, _ in enumerate(members))
    return (1.0, total) if least == np.inf else (0.0, least + total)


def optimum(problem: dict[str, Any], marginal: Any) -> tuple[float, float]:
    """The greatest energy of all sets that contain the forced rows, found by trying each."""
    sets = itertools.combinations(range(len(problem["ucb"])), problem["m"])
    return max(energy(problem, s, marginal) for s in sets if set(problem["forced"]) <= set(s))


def assert_optimal(problem: dict[str, Any], rows: Any, marginal: Any) -> None:
    """`rows` is a well-formed answer whose energy is the optimum's, up to the rounding of sums."""
    assert (rows.dtype, rows.shape) == (np.int64, (problem["m"],))
    assert (np.diff(rows) > 0).all()
    assert set(problem["forced"]) <= set(rows.tolist())
    assert energy(problem, rows, marginal) == pytest.approx(optimum(problem, marginal), rel=1e-9, abs=1e-7)


@given(problems(), st.lists(st.sampled_from([0.0, 0.25, 0.5, 3.0]), min_size=1, max_size=4))
@settings(max_examples=250)
def test_every_search_is_optimal(problem: dict[str, Any], steps: list[float]) -> None:
    ucb, value, m, cluster, forced = (problem[key] for key in ("ucb", "value", "m", "cluster", "forced"))
    assert_optimal(problem, pivot_and_fill(ucb, value, m, forced), [0.0])
    marginal = np.cumsum(steps)
    for search in (convex_pivot_and_fill, brute_force):
        for costs in (np.array([0.0, problem["penalty"]]), marginal):
            assert_optimal(problem, search(ucb, value, m, cluster, costs, forced), costs)


@given(problems(), st.randoms(use_true_random=False))
@settings(max_examples=100)
def test_the_order_of_the_rows_changes_only_the_choice_among_equals(problem: dict[str, Any], random: Any) -> None:
    order = np.array(random.sample(range(len(problem["ucb"])), len(problem["ucb"])))
    forced = np.flatnonzero(np.isin(order, problem["forced"]))
    moved = problem | {key: problem[key][order] for key in ("ucb", "value", "cluster")} | {"forced": forced}
    marginal = [0.0, problem["penalty"]]
    there = energy(moved, under_r2(**moved), marginal)
    assert there == pytest.approx(energy(problem, under_r2(**problem), marginal), rel=1e-9, abs=1e-7)


def hard(k: int, m: int, seed: int) -> dict[str, Any]:
    """Many rows with few distinct values, so that long runs of equals meet in one heap."""
    rng = np.random.default_rng(seed)
    ucb = rng.integers(0, 40, k) / 8
    ucb[rng.random(k) < 0.01] = np.inf
    return {
        "ucb": ucb,
        "value": rng.integers(-20, 20, k) / 16,
        "m": m,
        "cluster": rng.integers(0, 25, k),
        "penalty": 0.75,
        "forced": rng.choice(k, m // 4, replace=False),
    }


@pytest.mark.parametrize("seed", range(5))
def test_a_cost_stated_twice_changes_nothing_on_large_problems(seed: int) -> None:
    """Eq. (22) is also the penalty (0, λ, λ). Without a penalty, the plain search shares no loop with it."""
    problem = hard(3000, 200, seed)
    ucb, value, m, cluster, forced = (problem[key] for key in ("ucb", "value", "m", "cluster", "forced"))
    marginal = [0.0, problem["penalty"], problem["penalty"]]
    once, twice = under_r2(**problem), convex_pivot_and_fill(ucb, value, m, cluster, marginal, forced)
    assert energy(problem, once, marginal) == energy(problem, twice, marginal)
    unpriced, plain = under_r2(**problem | {"penalty": 0.0}), pivot_and_fill(ucb, value, m, forced)
    assert energy(problem, unpriced, [0.0]) == energy(problem, plain, [0.0])


@pytest.mark.parametrize("levels", [2, 50, 10**6], ids="{} levels".format)
@given(seed=st.integers(0, 2**32), m=st.integers(1, FEW // 64))
def test_rows_that_m_others_surpass_need_not_be_sorted_compiled_or_not(levels: int, seed: int, m: int) -> None:
    rng = np.random.default_rng(seed)
    ucb, value = rng.integers(0, levels, (2, 3 * FEW)).astype(np.float64)
    order = np.argsort(-ucb)
    threshold = sweep.best_threshold(ucb[order].tolist(), value[order].tolist(), m)
    assert threshold == kernels.best_threshold(ucb[order], value[order], m)
    above = np.flatnonzero(ucb >= threshold)
    plain = np.sort(above[np.argsort(-value[above], kind="stable")[:m]])
    np.testing.assert_array_equal(pivot_and_fill(ucb, value, m), plain)
    found = sweep.contenders(ucb, value, m)
    assert len(found) < 0.7 * len(ucb)
    np.testing.assert_array_equal(found, kernels.contenders(ucb, value, m))


def test_among_equals_the_first_rows_win() -> None:
    ucb, value, cluster = np.ones(6), np.zeros(6), np.array([0, 0, 1, 1, 2, 2])
    assert pivot_and_fill(ucb, value, 3).tolist() == [0, 1, 2]
    assert under_r2(ucb, value, 3, cluster, 1.0).tolist() == [0, 2, 4]
    assert brute_force(ucb, value, 3, cluster, (0.0, 1.0)).tolist() == [0, 2, 4]


def test_a_forced_row_occupies_its_cluster() -> None:
    ucb, value, cluster = np.ones(3), np.array([0.0, 0.9, 0.5]), np.array([7, 7, 8])
    assert under_r2(ucb, value, 2, cluster, 1.0, forced=[0]).tolist() == [0, 2]


def test_inputs_are_left_as_they_were() -> None:
    ucb, value, cluster = np.array([3.0, 1.0, 2.0]), np.array([1.0, 3.0, 2.0]), np.array([0, 0, 1])
    for array in (ucb, value, cluster):
        array.flags.writeable = False
    pivot_and_fill(ucb, value, 2, forced=[1])
    under_r2(ucb, value, 2, cluster, 0.5)
    convex_pivot_and_fill(ucb, value, 2, cluster, (0.0, 0.5, 0.6))
    brute_force(ucb, value, 2, cluster, (0.0, 0.5))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"m": 0}, "m = 0: must be from 1 to K = 3"),
        ({"m": 4}, "m = 4: must be from 1 to K = 3"),
        ({"ucb": [1.0, np.nan, 2.0]}, "ucb holds NaN or -inf"),
        ({"ucb": [1.0, -np.inf, 2.0]}, "ucb holds NaN or -inf"),
        ({"value": [1.0, np.inf, 2.0]}, "value holds NaN or an infinity"),
        ({"value": [1.0, 2.0]}, "must be \\(K,\\) both"),
        ({"forced": [3]}, "forced: must be at most m = 2 different rows from 0 to 2"),
        ({"forced": [-1]}, "forced"),
        ({"forced": [0, 0]}, "forced"),
        ({"forced": [0, 1, 2]}, "forced"),
        ({"forced": [0.7]}, "forced: must be at most m = 2 different rows"),
        ({"forced": [True]}, "forced"),
        ({"cluster": [0, 1]}, "cluster: must be integers of shape \\(3,\\)"),
        ({"cluster": [0.0, 1.0, 1.0]}, "cluster: must be integers"),
    ],
)
def test_bad_input_is_refused(change: dict[str, Any], message: str) -> None:
    problem: dict[str, Any] = {"ucb": [1.0, 2.0, 3.0], "value": [0.0, 0.0, 0.0], "m": 2, "forced": ()}
    problem |= {"cluster": [0, 1, 1], "marginal": (0.0, 1.0)}
    for search in (convex_pivot_and_fill, brute_force):
        with pytest.raises(ValueError, match=message):
            search(**(problem | change))
    if "cluster" not in change:
        plain = {key: (problem | change)[key] for key in ("ucb", "value", "m", "forced")}
        with pytest.raises(ValueError, match=message):
            pivot_and_fill(**plain)


@pytest.mark.parametrize("marginal", [(), (1.0, 0.5), (0.0, -0.5), (0.0, np.inf), (0.0, np.nan)])
def test_a_penalty_that_is_not_convex_is_refused(marginal: tuple[float, ...]) -> None:
    """Greedy filling is wrong for falling marginal costs, so these must be refused."""
    for search in (convex_pivot_and_fill, brute_force):
        with pytest.raises(ValueError, match="marginal"):
            search([1.0, 2.0], [0.0, 0.0], 1, [0, 0], marginal)


@pytest.mark.parametrize("home", ["~", "/home/somebody"])
def test_an_account_without_a_home_gets_no_folder_of_that_name(home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """numba would keep its cache in a folder called `~`, for instance in a systemd service with DynamicUser."""
    asked: list[dict[str, bool]] = []

    def njit(*_: object, **options: bool) -> Callable[[object], object]:
        asked.append(options)
        return lambda function: function

    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda _: home)
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(numba, "njit", njit)
    compiled(test_an_account_without_a_home_gets_no_folder_of_that_name)
    assert asked == [{"cache": home != "~"}]
