"""Types of numbers with bounds, for the fields of records, and the check of these bounds."""

import math
import operator
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from numbers import Integral, Real
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt

Finite = Annotated[float, math.isfinite]  # pydantic ignores `isfinite`; numbers of experiments are finite anyway
Positive = Annotated[float, Gt(0)]
NonNegative = Annotated[float, Ge(0)]
Share = Annotated[float, Ge(0), Le(1)]
PositiveShare = Annotated[float, Gt(0), Le(1)]
Whole = Annotated[int, Ge(0)]
Count = Annotated[int, Ge(1)]
# Each client takes memory before further checks. A mistyped number must not exhaust it.
ClientCount = Annotated[int, Ge(1), Le(1_000_000)]
Port = Annotated[int, Ge(0), Le(65_535)]

_BOUNDS: dict[type, tuple[Callable[..., bool], str]] = {
    Ge: (operator.ge, "at least"),
    Gt: (operator.gt, "above"),
    Le: (operator.le, "at most"),
    Lt: (operator.lt, "below"),
}


class Bounded:
    """Base of dataclasses that check their fields' bounds also if they are made in Python, not read from a TOML table.

    Raises ValueError for the first field that is out of its bounds, has bounds and is not finite, or is none of its
    literals. The bounds hold for each value of a tuple.
    """

    def __post_init__(self) -> None:
        record: Any = self.__class__  # mypy considers classes unhashable, but `_rules` is cached
        for name, choices, limits in _rules(record):
            value = getattr(self, name)
            if choices and value not in choices:
                raise ValueError(f"{name} = {value!r}: must be one of {', '.join(choices)}")
            for number in value if isinstance(value, tuple) else (value,):
                if limits is not None and isinstance(number, Real):  # also NumPy's numbers
                    _check(name, number, limits)


_Limits = list[tuple[Callable[..., bool], str, Any]]


def _check(name: str, number: Any, limits: _Limits) -> None:
    if not (-math.inf < number < math.inf and all(holds(number, limit) for holds, _, limit in limits)):
        kind = [] if isinstance(number, Integral) else ["a finite number"]
        in_words = " and ".join(f"{words} {limit}" for _, words, limit in limits)
        raise ValueError(f"{name} = {number}: must be {', '.join([*kind, in_words] if limits else kind)}")


@cache
def _rules(record: type) -> list[tuple[str, tuple[str, ...], _Limits | None]]:
    """(name, literals, limits) of each field with such rules. Empty limits: the number must only be finite."""
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
    """The annotations of a class. Only its bases' if its own use names that are imported for type checkers only."""
    try:
        return get_type_hints(record, include_extras=True)
    except NameError:
        return {name: hint for base in reversed(record.__bases__) for name, hint in _hints(base).items()}
