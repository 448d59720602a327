"""Makes the random draws of a model's training depend on a seed alone, although the generators are global."""

import pickle
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn

from pausefl_client.training.image_network import ImageNetwork
from pausefl_process.global_generators import seeded_generators

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

    def __init__(self, model: nn.Module, device: torch.device, *trained_by: object) -> None:
        """`trained_by`: the objects by which the model trains, such as its optimizer."""
        self._device = device
        self.draw_nothing = not _may_draw(model, trained_by)
        """Whether training is known to draw no random numbers. A user's own code never is."""
        self._draws: bool | None = None  # not known yet

    @contextmanager
    def seeded(self, seed: int) -> Iterator[None]:
        """Make the model's draws within the block depend on `seed` alone.

        Unknown code whose last training drew nothing may train beside another; if it does, it is not seeded.
        """
        if self.draw_nothing:
            yield
            return
        with seeded_generators(seed, waits=self._draws is not False) as is_seeded:
            if is_seeded and self._device.type == "cuda":
                torch.cuda.manual_seed(seed)
            before = b"" if self._draws else self._states()
            yield
            if is_seeded:
                self._draws = self._draws or before != self._states()

    def _states(self) -> bytes:
        """The states of all generators that training on this device draws from, to be compared."""
        of_torch = [torch.default_generator.get_state()]
        if self._device.type == "cuda":
            of_torch.append(torch.cuda.get_rng_state(self._device))
        of_numpy = np.random.get_state()  # noqa: NPY002  # users' code may draw from it
        return pickle.dumps([random.getstate(), of_numpy, *(state.numpy() for state in of_torch)])


def has_hooks(model: nn.Module) -> bool:
    """Whether the model has hooks, or layers with a `forward` of their own, which are unknown code."""
    of_layers = ("forward", "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    of_parameters = ("_backward_hooks", "_post_accumulate_grad_hooks")
    return any(vars(layer).get(code) for layer in model.modules() for code in of_layers) or any(
        getattr(parameter, hooks) for parameter in model.parameters() for hooks in of_parameters
    )


def _may_draw(model: nn.Module, trained_by: Sequence[object]) -> bool:
    """Whether the layers, or the objects by which they train, may draw random numbers. Unknown code may."""
    are_ours = all(type(part).__module__.startswith("pausefl_client.") for part in trained_by)
    layers = [layer for layer in model.modules() if type(layer) is not ImageNetwork]
    are_torchs = all(type(layer).__module__.startswith("torch.nn.modules.") for layer in layers)
    known_to_draw = any(isinstance(layer, _MAY_DRAW) for layer in model.modules())
    return known_to_draw or not (are_ours and are_torchs) or has_hooks(model)
