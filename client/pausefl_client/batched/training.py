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

from pausefl_client.batched.batches import RoundBatches
from pausefl_client.batched.layers import NotStackable, StackedNetwork
from pausefl_client.batched.stack import ModelStack
from pausefl_client.data.tasks import LearningTask
from pausefl_client.registries import OPTIMIZERS
from pausefl_client.training.device_copies import off_device, on_device
from pausefl_client.training.joined_states import JoinedStates
from pausefl_client.training.method import TrainingMethod
from pausefl_client.training.tasks import Classification
from pausefl_client.training.torch_trainer import TorchTrainer, use_one_thread
from pausefl_client.training.trainer import TrainingOutcome
from pausefl_client.training.withdrawal import stop_if_withdrawn
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
    least = batches.size if can_be_replayed and stack.replays.are_recorded else 0
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
    losses = functional.cross_entropy(outputs.flatten(0, -2), classes, ignore_index=-1, reduction="none")
    return losses.view(len(sizes), -1).sum(1) / (targets >= 0).flatten(1).sum(1)
