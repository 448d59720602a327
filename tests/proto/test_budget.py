"""The schedule of the ε_i (PAUSE v2, eq. (6)) and the floor under it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pausefl_client.privacy.mechanism import Mechanism
from pausefl_proto.budget import Budget
from pausefl_proto.errors import ConfigError

budgets = st.builds(Budget, st.floats(1e-3, 1e3), st.floats(1e-3, 3.0))


def test_no_eta_is_too_great_and_what_cannot_be_spent_is_refused() -> None:
    """e^η alone overflows from 710 on."""
    assert Budget(10.0, 1000.0).epsilon(1) == 10.0
    assert Budget(10.0, 1000.0).spent(3) == 10.0
    with pytest.raises(
        ConfigError, match=r"privacy\.epsilon_budget = 5e-324: too small to spend with privacy\.eta = 0\.1"
    ):
        Budget(5e-324, 0.1)


@given(budget=budgets, participations=st.integers(0, 2000))
def test_spent_is_the_sum_of_what_each_participation_spends(budget: Budget, participations: int) -> None:
    spent = math.fsum(budget.epsilon(i) for i in range(1, participations + 1))
    assert budget.spent(participations) == pytest.approx(spent, rel=1e-9)
    assert budget.spent(participations) <= budget.epsilon_budget


@given(budget=budgets, share=st.floats(1e-9, 1.0))
def test_the_floor_allows_exactly_the_participations_it_says(budget: Budget, share: float) -> None:
    floored = Budget(budget.epsilon_budget, budget.eta, share * budget.epsilon(1))
    participations = floored.participations
    assert participations is not None
    assert floored.affords(participations)
    assert not floored.affords(participations + 1)


@given(budget=budgets, i=st.integers(1, 100))
def test_a_floor_at_an_epsilon_of_the_schedule_still_allows_it(budget: Budget, i: int) -> None:
    assert Budget(budget.epsilon_budget, budget.eta, budget.epsilon(i)).affords(i)


def test_without_a_floor_only_an_epsilon_of_nothing_ends_it() -> None:
    budget = Budget(1.0, 1.0)
    assert budget.participations is None
    assert budget.affords(700)
    assert not budget.affords(1000)


def test_schedules_are_equal_whatever_their_floor() -> None:
    assert Budget(1.0, 0.04).key == Budget(1.0, 0.04, 0.01).key
    assert Budget(1.0, 0.04).key != Budget(1.0, 0.05).key


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize("key", ["epsilon_budget", "eta"])
def test_a_bad_schedule_names_its_key(key: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"^{key} = .*must be a finite number, above 0"):
        Budget(**{"epsilon_budget": 1.0, "eta": 0.04, key: value})


@pytest.mark.parametrize("floor", [-1.0, math.nan, math.inf, 1.0])
def test_a_floor_no_release_could_reach_is_refused(floor: float) -> None:
    with pytest.raises((ConfigError, ValueError), match=r"epsilon_floor = .*must be (a finite|at most epsilon_1 = )"):
        Budget(1.0, 0.04, floor)


def test_participations_count_from_one() -> None:
    with pytest.raises(ValueError, match="count from 1"):
        Budget(1.0, 0.04).epsilon(0)


def test_the_ratio_of_noise_to_clip_is_the_mechanisms_in_both_units() -> None:
    budget = Budget(100.0, 0.04)
    for i in (1, 50, 300):
        in_coordinate, in_vector = Mechanism("coordinate", 0.02), Mechanism("vector", 0.02)
        assert budget.noise_to_clip(i) == pytest.approx(in_coordinate.scale(budget.epsilon(i)) / (0.02 / 2))
        assert budget.noise_to_clip(i) == pytest.approx(in_vector.scale(budget.epsilon(i)) / 0.02)
    assert budget.noise_to_clip(10**6) == math.inf
