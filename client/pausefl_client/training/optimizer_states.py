"""An optimizer's states: joined as if all parameters were one, and written as bytes with a client's other states.

The bytes are read back without running code.
"""

import io
import marshal
import math
import re
from collections.abc import Mapping, Sequence
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch

from pausefl_client.training.device_copies import off_device
from pausefl_client.training.model_vector import STORED, views
from pausefl_proto.errors import ConfigError

JoinedStates = Mapping[str, Any]
"""Joined states by name. Tensors of the parameters' shapes are joined, (d,); others (Adam's step count) occur once."""

_LENGTH_BYTES = 8
_DTYPES = {str(dtype): dtype for dtype in STORED}
# What numpy's numbers are read back by: a schedule of one's own that uses numpy sets such rates.
_NUMPYS: list[Any] = [np.float64().__reduce__()[0], np.dtype, *{type(np.dtype(code)) for code in "?ilfd"}]
torch.serialization.add_safe_globals(_NUMPYS)


def joined(states: Sequence[Mapping[str, Any]], shapes: Sequence[torch.Size]) -> JoinedStates:
    """Join the states of parameters of these shapes. Empty if the optimizer has no states."""
    return {
        name: torch.cat([state[name].reshape(-1) for state in states]) if _has_shape(value, shapes[0]) else value
        for name, value in states[0].items()
    }


def parted(states: JoinedStates, shapes: Sequence[torch.Size]) -> list[dict[str, Any]]:
    """Split joined states into those of each parameter. Parts of a tensor share its memory; other values are copied."""
    d = sum(shape.numel() for shape in shapes)
    of_each: list[dict[str, Any]] = [{} for _ in shapes]
    for name, value in states.items():
        parts = views(value, shapes) if _has_shape(value, (d,)) else [copied(value) for _ in shapes]
        for state, part in zip(of_each, parts, strict=True):
            state[name] = part
    return of_each


def copied(value: Any) -> Any:
    """A copy of a tensor; any other value itself."""
    return value.clone() if isinstance(value, torch.Tensor) else value


def _has_shape(value: Any, shape: Sequence[int]) -> bool:
    return isinstance(value, torch.Tensor) and value.shape == torch.Size(shape)


class StateWriter:
    """Writes a description of the states by torch.save, followed by the optimizer's tensors as raw bytes.

    For a small model torch.save takes as long as a training step. So an unchanged description is not written anew. It
    changes if the learning rate does; one that holds tensors of the client is always written anew.
    """

    def __init__(self) -> None:
        self._known: bytes | None = None  # the last description, as `comparable` returns it
        self._written = b""  # the last description, as torch.save wrote it

    def written(self, optimizer: Mapping[str, Any], of_client: Mapping[str, Any]) -> bytes:
        """The bytes of an optimizer's `state_dict()` and of `of_client`, the client's other states."""
        states, tensors = _parted(optimizer.get("state", {}))  # a user's own optimizer may name its states otherwise
        places = {dtype: [place for place, _ in of_dtype] for dtype, of_dtype in tensors.items()}
        described = {**of_client, "optimizer": {**optimizer, "state": states}, "tensors": places}
        known = comparable(described)
        if known is None or known != self._known:
            buffer = io.BytesIO()
            torch.save(described, buffer)
            self._known, self._written = known, buffer.getvalue()
        parts = (tensor.reshape(-1).view(torch.uint8) for of_dtype in tensors.values() for _, tensor in of_dtype)
        length = len(self._written).to_bytes(_LENGTH_BYTES, "little")
        return b"".join((length, self._written, *(part.data for part in off_device(*parts))))


def read_states(written: bytes, device: torch.device) -> tuple[dict[str, Any], dict[str, Any]]:
    """The optimizer's state and the client's other states, of a `StateWriter`. ConfigError if they hold objects."""
    start = _LENGTH_BYTES + int.from_bytes(written[:_LENGTH_BYTES], "little")
    # weights_only: torch reads tensors, numbers and collections only, and runs no code, whatever the bytes are.
    try:
        saved: dict[str, Any] = torch.load(io.BytesIO(written[_LENGTH_BYTES:start]), device, weights_only=True)
    except UnpicklingError as error:
        held = "tensors, numbers, texts, lists and dicts; it holds", *re.findall(r"GLOBAL (\S+)", str(error))[:1]
        raise ConfigError(f"workload.optimizer: its state_dict() may hold {' '.join(held)}") from error
    optimizer = saved.pop("optimizer")
    for name, places in saved.pop("tensors").items():
        dtype = _DTYPES[name]
        sizes = [math.prod(shape) for *_, shape in places]
        end = start + dtype.itemsize * sum(sizes)
        values = torch.from_numpy(np.asarray(bytearray(written[start:end]), np.uint8)).view(dtype)
        for (key, state, shape), part in zip(places, torch.split(values, sizes), strict=True):
            optimizer["state"][key][state] = part.view(shape)  # on the CPU: `load_state_dict` moves it to the device
        start = end
    return optimizer, saved


_Place = tuple[Any, str, list[int]]
"""(parameter, name, shape) of one of the parameter's states."""


def _parted(states: Mapping[Any, Any]) -> tuple[dict[Any, Any], dict[str, list[tuple[_Place, torch.Tensor]]]]:
    """Split an optimizer's states into those without plain tensors, by parameter, and the plain tensors, by dtype."""
    rest: dict[Any, Any] = {}
    tensors: dict[str, list[tuple[_Place, torch.Tensor]]] = {}
    for key, state in states.items():
        is_of_all = not isinstance(state, Mapping)  # one value for all parameters
        rest[key] = state if is_of_all else {}
        for name, value in () if is_of_all else state.items():
            if _is_plain(value):
                tensors.setdefault(str(value.dtype), []).append(((key, name, list(value.shape)), value))
            else:
                rest[key][name] = value
    return rest, tensors


def _is_plain(value: object) -> bool:
    """Whether a value is a tensor that is fully described by its dtype, shape and numbers."""
    return (
        type(value) is torch.Tensor
        and value.layout is torch.strided
        and not value.requires_grad
        and str(value.dtype) in _DTYPES
    )


def comparable(described: Any) -> bytes | None:
    """Bytes that are equal for equal descriptions. None if a description holds tensors."""
    try:
        return marshal.dumps(described, 2)  # later formats also record which parts are the same object
    except ValueError:
        return None
