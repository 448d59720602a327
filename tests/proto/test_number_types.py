"""Bounds said by annotations: one check for the records of all kinds."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import pytest
from annotated_types import Lt

from pausefl_proto.number_types import Bounded, Count, Finite, Positive, Share

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
        Record(kind="third")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "sound", [{"share": 0.0}, {"share": 1.0}, {"clusters": {"a": 0}}, {"counts": (1, 9)}, {"cap": math.inf}]
)
def test_what_lies_within_or_has_no_bounds_is_taken(sound: dict[str, Any]) -> None:
    Record(**sound)


@dataclass(frozen=True)
class OwnRecord(Record):
    """Of a user whose imports for type checkers are no others'."""

    own: "Fraction | None" = None


def test_a_record_with_a_name_for_type_checkers_alone_has_the_bounds_of_its_base() -> None:
    assert OwnRecord(rate=2.0).own is None
    with pytest.raises(ValueError, match=r"^rate = 0\.0"):
        OwnRecord(rate=0.0)
