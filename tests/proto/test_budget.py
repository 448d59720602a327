"""The schedule of the ε_i (PAUSE v2, eq. (6)) and its floor; bounds of fields stated by annotations."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import pytest
from annotated_types import Lt
from hypothesis import example, given
from hypothesis import strategies as st

from pausefl_client.privacy.mechanism import Mechanism
from pausefl_proto.budget import Budget
from pausefl_proto.errors import ConfigError
from pausefl_proto.number_types import Bounded, Count, Finite, Positive, Share

budgets = st.builds(Budget, st.floats(1e-3, 1e3), st.floats(1e-3, 3.0))


def test_no_eta_is_too_great_and_what_cannot_be_spent_is_refused() -> None:
    """e^η alone overflows a float for η from 710 on."""
    assert Budget(10.0, 1000.0).epsilon(1) == Budget(10.0, 1000.0).spent(3) == 10.0
    for small, eta in ((1e-307, 0.1), (10.0, 1e-306)):
        with pytest.raises(ConfigError, match=rf"_budget = {small}: too small to spend with privacy\.eta = {eta}"):
            Budget(small, eta)


@given(budget=budgets, participations=st.integers(0, 2000))
def test_spent_is_the_sum_of_what_each_participation_spends(budget: Budget, participations: int) -> None:
    spent = math.fsum(budget.epsilon(i) for i in range(1, participations + 1))
    assert budget.spent(participations) == pytest.approx(spent, rel=1e-9)
    assert budget.spent(participations) <= budget.epsilon_budget


@example(budget=Budget(10.0, 1.0), share=1e-320)
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
    assert (budget.participations, budget.affords(700), budget.affords(1000)) == (None, True, False)


def test_schedules_are_equal_whatever_their_floor() -> None:
    assert Budget(1.0, 0.04).key == Budget(1.0, 0.04, 0.01).key != Budget(1.0, 0.05).key


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


if TYPE_CHECKING:
    from fractions import Fraction


@dataclass(frozen=True)
class Record(Bounded):
    rate: Positive = 1.0
    share: Share | None = None
    counts: tuple[Count, ...] = ()
    clusters: Count | Mapping[str, int] = 1
    falling: Annotated[float, Lt(0)] = -1.0
    start: Finite = 0.0
    cap: float = math.inf
    kind: Literal["one", "other"] = "one"


@pytest.mark.parametrize(
    ("name", "value", "must"),
    [
        *(("rate", value, "a finite number, above 0") for value in (0.0, math.inf, math.nan)),
        *(("share", value, "a finite number, at least 0 and at most 1") for value in (-0.1, 1.1)),
        ("clusters", 0, "at least 1"),
        ("falling", 0.0, "a finite number, below 0"),
        ("start", -math.inf, "a finite number"),
        ("clusters", np.int64(0), "at least 1"),
        ("rate", np.float32("nan"), "a finite number, above 0"),
    ],
)
def test_a_number_beyond_its_bounds_is_named(name: str, value: Any, must: str) -> None:
    with pytest.raises(ValueError) as refused:
        Record(**{name: value})
    assert str(refused.value) == f"{name} = {value}: must be {must}"


def test_each_value_of_a_tuple_and_a_literal_are_checked() -> None:
    with pytest.raises(ValueError, match=r"^counts = 0: must be at least 1$"):
        Record(counts=(2, 0))
    with pytest.raises(ValueError, match=r"^kind = 'third': must be one of one, other$"):
        Record(kind="third")  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize(
    "sound", [{"share": 0.0}, {"share": 1.0}, {"clusters": {"a": 0}}, {"counts": (1, 9)}, {"cap": math.inf}]
)
def test_what_lies_within_or_has_no_bounds_is_taken(sound: dict[str, Any]) -> None:
    Record(**sound)


@dataclass(frozen=True)
class OwnRecord(Record):
    """A user's record. The type of its field is imported for type checkers only."""

    own: "Fraction | None" = None


def test_a_record_with_a_name_for_type_checkers_alone_has_the_bounds_of_its_base() -> None:
    assert OwnRecord(rate=2.0).own is None
    with pytest.raises(ValueError, match=r"^rate = 0\.0"):
        OwnRecord(rate=0.0)
