"""What an optimizer and a training method remember, as bytes which give it back without running code."""

import io
import marshal
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from pausefl_proto.errors import PauseflError

_LENGTH_BYTES = 8
# How a file of torch.save begins, which the whole of a state was before.
_ZIP = b"PK\x03\x04"


class StateWriter:
    """Writes a description, as torch.save does, and behind it the optimizer's tensors.

    For a small model torch.save takes as long as a step of training, so a description that is as it was the last time
    is not written anew.
    """

    def __init__(self) -> None:
        self._known: bytes | None = None  # the description last written, to compare with
        self._written = b""

    def written(self, optimizer: Mapping[str, Any], of_method: Mapping[str, Any]) -> bytes:
        """The bytes of an optimizer's `state_dict()` and of what a method remembers."""
        states, by_dtype = _without_tensors(optimizer["state"])
        places = {dtype: [place for place, _ in tensors] for dtype, tensors in by_dtype.items()}
        described = {**optimizer, "state": states, "tensors": places, "method": dict(of_method)}
        known = _comparable(described)
        if known is None or known != self._known:
            buffer = io.BytesIO()
            torch.save(described, buffer)
            self._known, self._written = known, buffer.getvalue()
        flat = (torch.cat([tensor.reshape(-1).cpu() for _, tensor in tensors]) for tensors in by_dtype.values())
        length = len(self._written).to_bytes(_LENGTH_BYTES, "little")
        return b"".join((length, self._written, *(values.view(torch.uint8).numpy().data for values in flat)))


def read_states(written: bytes, device: torch.device) -> tuple[dict[str, Any], dict[str, Any]]:
    """What `optimizer.load_state_dict` takes, and what the method remembers, of what a `StateWriter` wrote.

    PauseflError for what an earlier version wrote.
    """
    if written.startswith(_ZIP):
        raise PauseflError("what its trainer remembers was written by an earlier version of pausefl: go on with that")
    start = _LENGTH_BYTES + int.from_bytes(written[:_LENGTH_BYTES], "little")
    # Read as tensors and numbers alone: no code is run, whatever the file holds.
    saved = torch.load(io.BytesIO(written[_LENGTH_BYTES:start]), device, weights_only=True)
    for name, places in saved.pop("tensors").items():
        sizes = [math.prod(shape) for *_, shape in places]
        dtype: torch.dtype = getattr(torch, name)
        end = start + sum(sizes) * dtype.itemsize
        values = torch.from_numpy(np.asarray(bytearray(written[start:end]), np.uint8)).view(dtype).to(device)
        start = end
        for (key, of_key, shape), part in zip(places, torch.split(values, sizes), strict=True):
            saved["state"][key][of_key] = part.view(shape)
    return saved, saved.pop("method")


_Tensors = dict[str, list[tuple[tuple[Any, str, list[int]], torch.Tensor]]]


def _without_tensors(states: Mapping[Any, Mapping[str, Any]]) -> tuple[dict[Any, dict[str, Any]], _Tensors]:
    """An optimizer's states by parameter, and the tensors that were in them, by dtype, each with its place."""
    rest: dict[Any, dict[str, Any]] = {}
    tensors: _Tensors = {}
    for key, state in states.items():
        rest[key] = {}
        for name, value in state.items():
            if isinstance(value, torch.Tensor):
                place = key, name, list(value.shape)
                tensors.setdefault(str(value.dtype).removeprefix("torch."), []).append((place, value))
            else:
                rest[key][name] = value
    return rest, tensors


def _comparable(described: Any) -> bytes | None:
    """Equal for equal descriptions; None where one holds more than numbers, texts and collections of them."""
    try:
        return marshal.dumps(described, 2)  # later versions also say which parts are one object
    except ValueError:
        return None
