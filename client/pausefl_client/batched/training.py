"""Trains a round of several clients in one call. Each trains as it would alone, except that they share the passes.

A client's batches, gradients, method and optimizer state are its own. Forward and backward passes are those of stacked
models, so sums are rounded in another order.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from pausefl_client.batched.layers import NotStackable, StackedNetwork
from pausefl_client.batched.stack import ModelStack
from pausefl_client.data.tasks import LearningTask
from pausefl_client.registries import OPTIMIZERS
from pausefl_client.training.device_copies import gathered_bytes, off_device, on_device
from pausefl_client.training.method import Batch, TrainingMethod
from pausefl_client.training.optimizer_states import JoinedStates
from pausefl_client.training.tasks import Classification, by_prediction
from pausefl_client.training.torch_trainer import TorchTrainer, normalise, use_one_thread
from pausefl_client.training.trainer import TrainingOutcome
from pausefl_client.training.withdrawal import stop_if_withdrawn
from pausefl_proto.arrays import IntArray
from pausefl_proto.wire import Vector

# The parts of a method that a subclass must not override, because batched clients share them.
_SHARED = ("optimizer", "loss", "local_steps", "step")


@dataclass(frozen=True, eq=False)
class Trained:
    """The outcome of one client's round, and the states that its own trainer then takes over."""

    outcome: TrainingOutcome
    optimizer_states: JoinedStates
    method: TrainingMethod


def check_stackable(trainer: TorchTrainer) -> None:
    """Raise NotStackable, with the reason, if a client's training cannot be batched with that of other clients."""
    StackedNetwork(trainer.model)
    method = type(trainer.method)
    for part in _SHARED:
        if getattr(method, part) is not getattr(TrainingMethod, part):
            raise NotStackable(f"the training method {method.__name__} has its own `{part}`")
    if trainer.settings.optimizer not in OPTIMIZERS:
        raise NotStackable(f"the optimizer {trainer.settings.optimizer} is none of torch's")
    if not trainer.random_layers.draw_nothing:  # all clients of a call would draw from one generator
        task = type(trainer.task).__name__
        raise NotStackable(f"the training method {method.__name__} or the task {task} may draw at random")
    if trainer.settings.optimizer_options.get("dampening"):
        raise NotStackable("the optimizer has dampening, which spares a client's first step alone")


def kind_of(trainer: TorchTrainer) -> tuple[Any, ...]:
    """A key that is equal for trainers that one stack can serve. They may differ in data, epochs and states."""
    settings = replace(trainer.settings, epochs=1, max_steps=None)
    dtypes = trainer.inputs.dtype, trainer.targets.dtype
    return repr(trainer.model), settings, type(trainer.method), trainer.task, trainer.device, dtypes


def train_together(stack: ModelStack, trainers: Sequence[TorchTrainer], theta: Vector, *, round: int) -> list[Trained]:
    """Train all from θ, (d,) float32, and return the results in the same order. The trainers themselves do not change.

    The trainers are of one kind (`kind_of`). `stack` has models of that kind, at least one per trainer. Withdrawn is
    raised between two steps if the job at hand has been withdrawn.
    """
    use_one_thread()
    order = sorted(range(len(trainers)), key=lambda i: -trainers[i].steps)
    learners = [trainers[i] for i in order]
    start, control = learners[0].parted(theta)
    methods = [copy.deepcopy(learner.method) for learner in learners]
    theta_0 = on_device(start, learners[0].device)
    stack.begin(theta_0, [learner.optimizer_states() for learner in learners], learners[0].rate(round))
    for method, model in zip(methods, stack.models, strict=False):
        if method.has_control:
            method.take_control(control)
        method.begin_round(model, round)
    losses = _local_steps(stack, learners, methods, round)
    for method, model in zip(methods, stack.models, strict=False):
        method.end_round(model)
    values, mean_losses = off_device(stack.values[: len(learners)], losses)
    updates = values - start
    trained: dict[int, Trained] = {}
    for row, (i, method, loss) in enumerate(zip(order, methods, mean_losses.tolist(), strict=True)):
        outcome = TrainingOutcome(learners[row].with_control(updates[row], method), loss)
        trained[i] = Trained(outcome, stack.states(row), method)
    return [trained[i] for i in range(len(trainers))]


def _local_steps(
    stack: ModelStack, learners: Sequence[TorchTrainer], methods: Sequence[TrainingMethod], round: int
) -> torch.Tensor:
    """Train on the round's batches, and return the mean loss of each learner's steps. Most steps come first."""
    batches = RoundBatches(learners, round)
    steps, task = [learner.steps for learner in learners], learners[0].task
    learning = len(learners)
    changes_gradients = type(methods[0]).change_gradients is not TrainingMethod.change_gradients
    can_be_replayed = type(task) is Classification  # another task's loss may read values from the device, or draw
    # Batches are padded to full size: fewer shapes mean fewer recordings.
    least = batches.size if can_be_replayed and stack.replays.recorder else 0
    step_too = can_be_replayed and stack.steps_are_recorded and not changes_gradients
    recorded_step = stack.step if step_too else lambda: None
    total = torch.zeros(len(learners), device=learners[0].device)
    for step in range(steps[0]):
        if steps[learning - 1] <= step:
            learning = sum(count > step for count in steps)
            stack.learn(learning)
        stop_if_withdrawn()
        sizes = batches.sizes(step, learning)
        inputs, targets = batches.at(step, sizes, least)
        one_pass = partial(_pass, stack, task, sizes)
        if can_be_replayed:
            losses = stack.replays.call(one_pass, inputs, targets, recorded_step)
        else:
            losses = one_pass(inputs, targets)
        if changes_gradients:
            for method, model in zip(methods[:learning], stack.models, strict=False):
                method.change_gradients(model)
            stack.take_gradients(learning)
        if not step_too:
            stack.step()
        total[:learning].add_(losses)
    return total / on_device(np.array(steps, np.float32), total.device)


def _pass(
    stack: ModelStack, task: LearningTask, sizes: Sequence[int], inputs: torch.Tensor, targets: torch.Tensor
) -> torch.Tensor:
    """Return the losses of the learning models, and set their gradients."""
    if type(task) is Classification and (fast := stack.classify(inputs, targets)) is not None:
        return fast
    losses = _losses(task, stack.outputs(inputs), targets, sizes)
    stack.differentiate(losses.sum())
    return losses.detach()


def _losses(task: LearningTask, outputs: torch.Tensor, targets: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """The loss of each model's outputs, (k, n, ...), on its first `sizes[i]` examples."""
    if type(task) is not Classification:
        return torch.stack([task.loss(o[:n], t[:n]) for o, t, n in zip(outputs, targets, sizes, strict=True)])
    classes = targets.flatten().clamp(min=-1)
    logits = by_prediction(outputs.flatten(0, 1), targets.flatten(0, 1))
    losses = functional.cross_entropy(logits, classes, ignore_index=-1, reduction="none")
    return losses.view(len(sizes), -1).sum(1) / (targets >= 0).flatten(1).sum(1)


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
        # One tensor holds the batches of all learners for several steps.
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
