"""Numbers with their bounds, as the annotations of a record's fields say them: what reads a record checks them."""

import math
import operator
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from numbers import Integral, Real
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt

Finite = Annotated[float, math.isfinite]  # which pydantic passes over: an experiment has no other numbers
Positive = Annotated[float, Gt(0)]
NonNegative = Annotated[float, Ge(0)]
Share = Annotated[float, Ge(0), Le(1)]
PositiveShare = Annotated[float, Gt(0), Le(1)]
Whole = Annotated[int, Ge(0)]
Count = Annotated[int, Ge(1)]
# Each client costs memory before anything is checked further: a slip of the key must not take all of it.
ClientCount = Annotated[int, Ge(1), Le(1_000_000)]
Port = Annotated[int, Ge(0), Le(65_535)]

_BOUNDS: dict[type, tuple[Callable[..., bool], str]] = {
    Ge: (operator.ge, "at least"),
    Gt: (operator.gt, "above"),
    Le: (operator.le, "at most"),
    Lt: (operator.lt, "below"),
}


class Bounded:
    """Base of dataclasses whose values made in Python are checked as a table's are.

    ValueError for the first field that is beyond its bounds, not finite where it has some, or none of its literals.
    Each value of a tuple is held to the bounds.
    """

    def __post_init__(self) -> None:
        record: Any = self.__class__  # mypy takes a class for none that can be hashed
        for name, choices, limits in _rules(record):
            value = getattr(self, name)
            if choices and value not in choices:
                raise ValueError(f"{name} = {value!r}: must be one of {', '.join(choices)}")
            for number in value if isinstance(value, tuple) else (value,):
                if limits is not None and isinstance(number, Real):  # NumPy's too
                    _check(name, number, limits)


_Limits = list[tuple[Callable[..., bool], str, Any]]


def _check(name: str, number: Any, limits: _Limits) -> None:
    if not (math.isfinite(number) and all(holds(number, limit) for holds, _, limit in limits)):
        kind = [] if isinstance(number, Integral) else ["a finite number"]
        in_words = " and ".join(f"{words} {limit}" for _, words, limit in limits)
        raise ValueError(f"{name} = {number}: must be {', '.join([*kind, in_words] if limits else kind)}")


@cache
def _rules(record: type) -> list[tuple[str, tuple[str, ...], _Limits | None]]:
    """By field of a dataclass that has any: its literals, and its limits, an empty list where it must be finite."""
    hints = _hints(record)
    rules = []
    for name in (each.name for each in fields(record) if each.name in hints):
        said = [b for part in (hints[name], *get_args(hints[name])) for b in getattr(part, "__metadata__", ())]
        limits = [(*_BOUNDS[type(b)], getattr(b, type(b).__name__.lower())) for b in said if type(b) in _BOUNDS]
        choices = get_args(hints[name]) if get_origin(hints[name]) is Literal else ()
        if choices or said:
            rules.append((name, choices, limits if limits or math.isfinite in said else None))
    return rules


def _hints(record: type) -> dict[str, Any]:
    """The annotations of a class; those of its bases where its own name what is imported for type checkers alone."""
    try:
        return get_type_hints(record, include_extras=True)
    except NameError:
        return {name: hint for base in reversed(record.__bases__) for name, hint in _hints(base).items()}
