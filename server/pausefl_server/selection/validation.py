"""What a policy chose, checked before anything acts on it: a policy may be a user's own."""

import numpy as np
import numpy.typing as npt

from pausefl_proto.arrays import FloatArray, IntArray
from pausefl_proto.errors import ConfigError
from pausefl_server.selection.base import Context, Selection


def checked(selection: Selection, context: Context) -> Selection:
    """`selection`, if a round can be played with it; else ConfigError. O(m log n)."""
    try:
        if not isinstance(selection, Selection):
            raise ValueError(f"a {type(selection).__name__}: must be a pausefl_server.selection.Selection")
        ordered = _checked_rows(selection.rows, context.eligible)
        if selection.weights is not None:
            _check_weights(selection.weights, len(ordered))
        elif (twice := ordered[1:][ordered[1:] == ordered[:-1]]).size:
            raise ValueError(f"row {twice[0]} twice: must have weights for that")
        for name, value in selection.details.items():
            if not isinstance(value, int | float):  # the log is JSON, which knows no numpy integers
                raise ValueError(f"details with {name} {_form(value)}: must be a float")
    except ValueError as error:
        raise ConfigError(f"selection.policy: in round {context.round} it chose {error}") from None
    return selection


def _checked_rows(rows: IntArray, eligible: IntArray) -> IntArray:
    """The rows in ascending order."""
    if not (_is_column(rows, np.int64) and len(rows)):
        raise ValueError(f"rows {_form(rows)}: must be an int64 array of one row or more")
    ordered = np.sort(rows)
    places = np.minimum(np.searchsorted(eligible, ordered), len(eligible) - 1)
    if (strangers := ordered[eligible[places] != ordered]).size:
        raise ValueError(f"row {strangers[0]}: must be one of context.eligible")
    return ordered


def _check_weights(weights: FloatArray, count: int) -> None:
    if not (_is_column(weights, np.float64) and len(weights) == count):
        raise ValueError(f"weights {_form(weights)}: must be a float64 array of one for each of {count} rows")
    if not ((weights > 0) & (weights < np.inf)).all():
        raise ValueError("weights that are not all finite and above 0")


def _is_column(array: object, dtype: npt.DTypeLike) -> bool:
    return isinstance(array, np.ndarray) and array.ndim == 1 and array.dtype == dtype


def _form(array: object) -> str:
    """What it is, in a few words."""
    if isinstance(array, np.ndarray):
        return f"of shape {array.shape} and type {array.dtype}"
    return f"of type {type(array).__name__}"
