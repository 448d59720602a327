"""The batches of a round's clients, side by side. One tensor holds the batches of all clients for several steps."""

from collections.abc import Sequence

import numpy as np
import torch

from pausefl_client.training.device_copies import gathered_bytes, on_device
from pausefl_client.training.method import Batch
from pausefl_client.training.torch_trainer import TorchTrainer, normalise
from pausefl_proto.arrays import IntArray


class RoundBatches:
    """Each learner's batches in each step of a round, drawn as if it trained alone; learners with most steps first."""

    def __init__(self, learners: Sequence[TorchTrainer], round: int) -> None:
        self.size = max(min(learner.settings.batch_size, learner.n_examples) for learner in learners)
        """The number of examples in a full batch."""
        self._learners = learners
        dealt = _dealt(learners, round, self.size)
        self._sizes = (dealt >= 0).sum(2)
        device, inputs, targets = learners[0].device, learners[0].inputs, learners[0].targets
        drawn = on_device(dealt, device)
        self._is_left_over = drawn < 0
        self._rows = drawn.clamp(min=0)  # unused places get an arbitrary example
        self._targets = targets.new_empty((*dealt.shape, *targets.shape[1:]))
        for learner, rows, place in zip(learners, self._rows, self._targets, strict=True):
            torch.index_select(learner.targets, 0, rows.flatten(), out=place.flatten(0, 1))
        self._targets[self._is_left_over] = -1
        of_step = len(learners) * self.size * inputs[:1].nbytes
        self._at_once = min(dealt.shape[1], max(1, gathered_bytes(device) // of_step))
        self._inputs = inputs.new_empty((len(learners), self._at_once, self.size, *inputs.shape[1:]))
        self._normalised = torch.empty_like(self._inputs[:, 0], dtype=torch.float32)

    def sizes(self, step: int, learning: int) -> list[int]:
        """The number of examples that each of the first `learning` learners has in a step."""
        sizes: list[int] = self._sizes[:learning, step].tolist()
        return sizes

    def at(self, step: int, sizes: Sequence[int], least: int) -> Batch:
        """The examples of the first k = len(sizes) learners in a step, (k, n, *shape), valid until the next call.

        n is max(sizes), or `least` if that is greater. Padding targets are −1, which does not count as a class.
        """
        learning, n, place = len(sizes), max(least, *sizes), step % self._at_once
        if place == 0:
            self._gather(step, learning)
        inputs = self._inputs[:learning, place, :n]
        if inputs.dtype == torch.uint8:
            inputs = normalise(inputs, self._normalised[:learning, :n])
        return Batch(inputs, self._targets[:learning, step, :n])

    def _gather(self, step: int, learning: int) -> None:
        """Gather the inputs of this step and of the next ones that fit."""
        rows = self._rows[:learning, step : step + self._at_once].flatten(1)
        for learner, of_one, place in zip(self._learners, rows, self._inputs.flatten(1, 2), strict=False):
            torch.index_select(learner.inputs, 0, of_one, out=place[: len(of_one)])
        if self._inputs.is_floating_point():  # padding that is NaN would spoil results although its loss is left out
            is_left_over = self._is_left_over[:learning, step : step + self._at_once]
            places = self._inputs[:learning, : is_left_over.shape[1]]
            places.masked_fill_(is_left_over.view(*is_left_over.shape, *[1] * (places.dim() - 3)), 0)


def _dealt(learners: Sequence[TorchTrainer], round: int, size: int) -> IntArray:
    """The rows of each learner's examples in each step, (k, steps, size). −1 means no example."""
    dealt = np.full((len(learners), learners[0].steps, size), -1)
    for of_one, learner in zip(dealt, learners, strict=True):
        places = of_one[: learner.steps].reshape(-1)
        of_epoch = -(-learner.n_examples // size) * size
        for start, order in zip(range(0, len(places), of_epoch), learner.orders(round)[1], strict=False):
            own = places[start : start + len(order)]
            own[:] = order[: len(own)]
    return dealt
