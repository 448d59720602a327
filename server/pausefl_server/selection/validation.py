"""Checks of what a policy returns, before it is used: the policy may be the user's own code."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from pausefl_proto.arrays import FloatArray, IntArray, form
from pausefl_proto.errors import PauseflError
from pausefl_server.selection.base import Context, Inspection, Selection


def checked(selection: Selection, context: Context, places: int | None = None) -> Selection:
    """`selection` if it is valid, else raises PauseflError. `places`: free places of an asynchronous run. O(m log n)"""
    try:
        if not isinstance(selection, Selection):
            raise ValueError(f"a {type(selection).__name__}: must be a pausefl_server.selection.Selection")
        ordered = _checked_rows(selection.rows, context.eligible)
        if places is not None and len(ordered) > places:
            raise ValueError(f"{len(ordered)} rows: must be at most its m, the {places} places that are free")
        if places is not None and selection.weights is not None:
            raise ValueError("weights: must be None in an asynchronous run, whose steps join several choices")
        if selection.weights is not None:
            _check_weights(selection.weights, len(ordered))
        elif (twice := ordered[1:][ordered[1:] == ordered[:-1]]).size:
            raise ValueError(f"row {twice[0]} twice: must have weights for that")
        _check_numbers(selection.details, "details")
        _check_number(selection.cluster_penalty_s, "cluster_penalty_s")
    except ValueError as error:
        raise PauseflError(f"selection.policy: in round {context.round} it chose {error}") from None
    return selection


def checked_inspection(inspection: Inspection, count: int, round: int) -> Inspection:
    """`inspection` if it is a valid one of `count` updates; else raises PauseflError."""
    try:
        if not isinstance(inspection, Inspection):
            raise ValueError(f"a {type(inspection).__name__}: must be a pausefl_server.selection.Inspection, or None")
        statistics, admitted = inspection.statistics, inspection.admitted
        if not isinstance(statistics, Sequence):
            raise ValueError(f"statistics as {form(statistics)}: must be a list of dicts, one for each update")
        if len(statistics) != count:
            raise ValueError(f"{len(statistics)} statistics: must be one for each of {count} updates")
        for of_update in statistics:
            _check_numbers(of_update, "statistics")
        if not (_is_column(admitted, np.bool_) and len(admitted) == count):
            raise ValueError(f"admitted as {form(admitted)}: must be a bool array of one for each of {count} updates")
    except ValueError as error:
        raise PauseflError(f"selection.policy: in round {round} its inspect returned {error}") from None
    return inspection


def _checked_rows(rows: IntArray, eligible: IntArray) -> IntArray:
    """The rows in ascending order. Raises ValueError unless all are eligible."""
    if not (_is_column(rows, np.int64) and len(rows)):
        raise ValueError(f"rows as {form(rows)}: must be an int64 array of one row or more")
    ordered = np.sort(rows)
    places = np.minimum(np.searchsorted(eligible, ordered), len(eligible) - 1)
    if (strangers := ordered[eligible[places] != ordered]).size:
        raise ValueError(f"row {strangers[0]}: must be one of context.eligible")
    return ordered


def _check_weights(weights: FloatArray, count: int) -> None:
    if not (_is_column(weights, np.float64) and len(weights) == count):
        raise ValueError(f"weights as {form(weights)}: must be a float64 array of one for each of {count} rows")
    if not (weights > 0).all() or not weights.sum() < np.inf:
        raise ValueError("weights that are not all finite and above 0, their sum too")


def _check_numbers(numbers: Mapping[str, float], what: str) -> None:
    """Raise ValueError unless the log can store these as JSON: without NaN and numpy integers, and with text keys."""
    if not isinstance(numbers, Mapping):
        raise ValueError(f"{what} as {form(numbers)}: must be a dict of numbers by name")
    for name, value in numbers.items():
        if not isinstance(name, str):
            raise ValueError(f"{what} with a name as {form(name)}: must be a text")
        _check_number(value, f"{what} with {name}")


def _check_number(value: float, what: str) -> None:
    if not isinstance(value, int | float):
        raise ValueError(f"{what} as {form(value)}: must be a float")
    if not -math.inf < value < math.inf:  # `isfinite` raises an error for integers too great for a float
        raise ValueError(f"{what} = {value}: must be finite")


def _is_column(array: object, dtype: npt.DTypeLike) -> bool:
    return isinstance(array, np.ndarray) and array.ndim == 1 and array.dtype == dtype
