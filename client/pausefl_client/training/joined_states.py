"""An optimizer's memory of a model's parameters, joined as if these were one, and parted again."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

JoinedStates = Mapping[str, Any]
"""By name: tensors of the parameters' shapes as one, (d,); all else, such as Adam's count of steps, as of each."""


def joined(states: Sequence[Mapping[str, Any]], shapes: Sequence[torch.Size]) -> JoinedStates:
    """The states of parameters of these shapes, in one; empty where an optimizer remembers nothing."""
    return {
        name: torch.cat([state[name].reshape(-1) for state in states]) if _has_shape(value, shapes[0]) else value
        for name, value in states[0].items()
    }


def parted(states: JoinedStates, shapes: Sequence[torch.Size]) -> list[dict[str, Any]]:
    """The other way round; the parts of a tensor share its memory, all else is each parameter's own."""
    sizes = [math.prod(shape) for shape in shapes]
    of_each: list[dict[str, Any]] = [{} for _ in shapes]
    for name, value in states.items():
        if _has_shape(value, (sum(sizes),)):
            parts = [part.view(shape) for part, shape in zip(torch.split(value, sizes), shapes, strict=True)]
        else:
            parts = [copied(value) for _ in shapes]
        for state, part in zip(of_each, parts, strict=True):
            state[name] = part
    return of_each


def copied(value: Any) -> Any:
    """A value that can be changed without changing this one."""
    return value.clone() if isinstance(value, torch.Tensor) else value


def _has_shape(value: Any, shape: Sequence[int]) -> bool:
    return isinstance(value, torch.Tensor) and value.shape == torch.Size(shape)
