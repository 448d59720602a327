"""Makes the random draws of a model's training depend on a seed alone, although torch's generators are global."""

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
    """Seeds the draws of one trainer's training. In a process, trainings that draw run one at a time."""

    def __init__(self, model: nn.Module, method: TrainingMethod, task: LearningTask, device: torch.device) -> None:
        self._device = device
        self._draws = None if _may_draw(model, method, task) else False  # None: not known yet

    @property
    def draw_nothing(self) -> bool:
        """Whether training is known to draw no random numbers. For a user's own code, known only after a training."""
        return self._draws is False

    @contextmanager
    def seeded(self, seed: int) -> Iterator[None]:
        """Make the model's draws within the block depend on `seed` alone.

        If unknown code drew nothing in its whole first training, it is assumed never to draw.
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
    """Whether layers, method or task may draw random numbers. Unknown code may."""
    layers = [module for module in model.modules() if not isinstance(module, nn.Sequential)]
    if any(isinstance(layer, _MAY_DRAW) or layer._forward_hooks or layer._forward_pre_hooks for layer in layers):
        return True
    if not all(type(part).__module__.startswith("pausefl_client.") for part in (method, task)):
        return True
    return any(not type(layer).__module__.startswith("torch.nn.modules.") for layer in layers)


def _seed(seed: int, device: torch.device) -> None:
    """Seed the generators that training on this device draws from.

    `torch.manual_seed` would seed every device. If CUDA is not in use, torch then records each call with its stack for
    later. That takes longer than a step of a small model, and the records are never freed.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


def _states(device: torch.device) -> list[torch.Tensor]:
    states = [torch.default_generator.get_state()]
    return [*states, torch.cuda.get_rng_state(device)] if device.type == "cuda" else states
