"""Keeps apart what models draw while they train: torch's generators belong to the whole process."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from pausefl_client.data.tasks import LearningTask
from pausefl_client.training.method import TrainingMethod

_GENERATORS = threading.Lock()
_MAY_DRAW = (
    nn.modules.dropout._DropoutNd,
    nn.RNNBase,
    nn.MultiheadAttention,
    nn.RReLU,
    nn.TransformerEncoderLayer,
    nn.TransformerDecoderLayer,
    nn.FractionalMaxPool2d,
    nn.FractionalMaxPool3d,
)


class RandomLayers:
    """Of one trainer. Trainings that draw go one at a time in a process; all others go side by side."""

    def __init__(self, model: nn.Module, method: TrainingMethod, task: LearningTask, device: torch.device) -> None:
        self._device = device
        self._draws = None if _may_draw(model, method, task) else False  # None: not known yet

    @property
    def draw_nothing(self) -> bool:
        """Whether training is known to draw nothing; of layers, methods and tasks of one's own, after a training."""
        return self._draws is False

    @contextmanager
    def seeded(self, seed: int) -> Iterator[None]:
        """During the block, what the model draws depends on `seed` alone.

        A model of unknown layers that drew nothing in the whole of its first training is taken never to draw.
        """
        if self.draw_nothing:
            yield
            return
        with _GENERATORS:
            _seed(seed, self._device)
            before = _states(self._device)
            yield
            if self._draws is None:
                self._draws = not all(map(torch.equal, before, _states(self._device)))


def _may_draw(model: nn.Module, method: TrainingMethod, task: LearningTask) -> bool:
    """Whether layers, method or task are not known to draw nothing."""
    layers = [module for module in model.modules() if not isinstance(module, nn.Sequential)]
    if any(isinstance(layer, _MAY_DRAW) or layer._forward_hooks or layer._forward_pre_hooks for layer in layers):
        return True
    if not all(type(part).__module__.startswith("pausefl_client.") for part in (method, task)):
        return True
    return any(not type(layer).__module__.startswith("torch.nn.modules.") for layer in layers)


def _seed(seed: int, device: torch.device) -> None:
    """Seed what draws on this device.

    `torch.manual_seed` seeds every device; where CUDA is not in use it notes each call, with the stack, for the time
    when it may be, which takes longer than a step of a small model and is never freed.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


def _states(device: torch.device) -> list[torch.Tensor]:
    states = [torch.default_generator.get_state()]
    return [*states, torch.cuda.get_rng_state(device)] if device.type == "cuda" else states
