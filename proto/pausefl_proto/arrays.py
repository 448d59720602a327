"""Types of numpy arrays, under one name each, and views that nothing is written through."""

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

_Array = TypeVar("_Array", bound=npt.NDArray[Any])


def read_only(values: _Array) -> _Array:
    """A view of the same memory that cannot be written through: what a user's own code is given to read."""
    view = values.view()
    view.flags.writeable = False
    return view
