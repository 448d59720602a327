"""Joins an optimizer's states of all parameters, as if these were one parameter, and splits them again."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pausefl_client.training.model_vector import views

JoinedStates = Mapping[str, Any]
"""Joined states by name. Tensors of the parameters' shapes are joined, (d,); others (Adam's step count) occur once."""


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
