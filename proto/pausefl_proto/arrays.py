"""Names for types of numpy arrays, and read-only views."""

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
