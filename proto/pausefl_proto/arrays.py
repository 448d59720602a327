"""Names for types of numpy arrays, read-only views, descriptions, and the greatest values of an array."""

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

_Array = TypeVar("_Array", bound=npt.NDArray[Any])


def read_only(values: _Array) -> _Array:
    """A read-only view of the same memory, for code of the user that must not change the array."""
    view = values.view()
    view.flags.writeable = False
    return view


def form(found: object) -> str:
    """A short description of a value that a user's own code returned, for errors."""
    return f"{found.dtype} of shape {found.shape}" if isinstance(found, np.ndarray) else type(found).__name__


def are_greatest(values: npt.NDArray[np.floating[Any]], k: int) -> BoolArray:
    """(n,), whether each value is among the k greatest. Of equal values, the first are."""
    if not 0 < k < values.size:
        return np.full(values.size, k > 0)
    least = np.partition(values, values.size - k)[values.size - k]
    is_greatest: BoolArray = values > least
    as_great = np.flatnonzero(values == least)
    is_greatest[as_great[: k - np.count_nonzero(is_greatest)]] = True
    return is_greatest
