"""The memory of an optimizer and a training method, as bytes which give it back without running code."""

import io
import marshal
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from pausefl_client.training.device_copies import off_device

_LENGTH_BYTES = 8
_DTYPES = {
    str(dtype): dtype
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64, torch.bool)
}


class StateWriter:
    """Writes a description, as torch.save does, and behind it the optimizer's tensors.

    For a small model torch.save takes as long as a step of training, so a description that is as it was the last time
    is not written anew. Those of clients with tensors of their own, and of rates that change, are.
    """

    def __init__(self) -> None:
        self._known: bytes | None = None  # the description last written, to compare with
        self._written = b""  # what was written of it

    def written(self, optimizer: Mapping[str, Any], of_client: Mapping[str, Any]) -> bytes:
        """The bytes of an optimizer's `state_dict()` and of what else the client remembers."""
        states, tensors = _parted(optimizer["state"])
        places = {dtype: [place for place, _ in of_dtype] for dtype, of_dtype in tensors.items()}
        described = {**of_client, "optimizer": {**optimizer, "state": states}, "tensors": places}
        flats = off_device(*(_as_bytes([tensor for _, tensor in of_dtype]) for of_dtype in tensors.values()))
        description = self._description(described)
        length = len(description).to_bytes(_LENGTH_BYTES, "little")
        return b"".join((length, description, *(flat.data for flat in flats)))

    def _description(self, described: dict[str, Any]) -> bytes:
        known = _comparable(described)
        if known is not None and known == self._known:
            return self._written
        buffer = io.BytesIO()
        torch.save(described, buffer)
        if known is not None:
            self._known, self._written = known, buffer.getvalue()
        return buffer.getvalue()


def read_states(written: bytes, device: torch.device) -> tuple[dict[str, Any], dict[str, Any]]:
    """The optimizer's state and the client's other memory, of the bytes that a `StateWriter` wrote."""
    start = _LENGTH_BYTES + int.from_bytes(written[:_LENGTH_BYTES], "little")
    # Tensors, numbers and collections alone: no code is run, whatever the bytes are.
    saved: dict[str, Any] = torch.load(io.BytesIO(written[_LENGTH_BYTES:start]), device, weights_only=True)
    optimizer = saved.pop("optimizer")
    for name, places in saved.pop("tensors").items():
        dtype = _DTYPES[name]
        end = start + dtype.itemsize * sum(math.prod(shape) for *_, shape in places)
        values = torch.from_numpy(np.asarray(bytearray(written[start:end]), np.uint8)).view(dtype)
        _put_back(values, places, optimizer["state"])  # `load_state_dict` takes to the device what belongs there
        start = end
    return optimizer, saved


_Place = tuple[Any, str, list[int]]
"""A parameter, the name of one of its states, and the shape of that."""


def _parted(
    states: Mapping[Any, Mapping[str, Any]],
) -> tuple[dict[Any, dict[str, Any]], dict[str, list[tuple[_Place, torch.Tensor]]]]:
    """An optimizer's states by parameter, without their plain tensors; and these by dtype, each with its place."""
    rest: dict[Any, dict[str, Any]] = {}
    tensors: dict[str, list[tuple[_Place, torch.Tensor]]] = {}
    for key, state in states.items():
        rest[key] = {}
        for name, value in state.items():
            if _is_plain(value):
                tensors.setdefault(str(value.dtype), []).append(((key, name, list(value.shape)), value))
            else:
                rest[key][name] = value
    return rest, tensors


def _as_bytes(tensors: list[torch.Tensor]) -> torch.Tensor:
    """The bytes of tensors of one dtype, on their device, or on the processor where they lie on several."""
    if len({tensor.device for tensor in tensors}) > 1:
        tensors = [tensor.cpu() for tensor in tensors]
    return torch.cat([tensor.reshape(-1) for tensor in tensors]).view(torch.uint8)


def _is_plain(value: object) -> bool:
    """Whether a value is a tensor that its dtype, shape and numbers say all of."""
    return (
        type(value) is torch.Tensor
        and value.layout is torch.strided
        and not value.requires_grad
        and str(value.dtype) in _DTYPES
    )


def _put_back(values: torch.Tensor, places: list[_Place], states: dict[Any, dict[str, Any]]) -> None:
    """Part `values`, (n,), into the tensors that were at these places."""
    parts = torch.split(values, [math.prod(shape) for *_, shape in places])
    for (key, name, shape), part in zip(places, parts, strict=True):
        states[key][name] = part.view(shape)


def _comparable(described: Any) -> bytes | None:
    """Equal for descriptions that torch reads back as equal values; None where one holds tensors."""
    try:
        return marshal.dumps(described, 2)  # later versions also say which parts are one object
    except ValueError:
        return None
