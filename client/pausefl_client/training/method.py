"""How one client trains in a round: its optimizer, its loss and its loop."""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from torch import nn

from pausefl_client.data.tasks import LearningTask
from pausefl_client.training.optimizers import make_optimizer
from pausefl_client.training.trainer import TrainingSettings


class Batch(NamedTuple):
    """Some of a client's examples, on its device."""

    inputs: torch.Tensor
    """Images as float32 in [−1, 1], features and tokens as the data set has them."""
    targets: torch.Tensor


class TrainingMethod:
    """The default, and the base of all: the task's loss, the optimizer of [workload], one step for each batch.

    A subclass overrides what it does differently. Every client has an object of its own, which may remember things from
    round to round; `state` and `restore` let them survive a restart. Clipping, noise and ledger come after it.
    """

    has_control: ClassVar[bool] = False
    """Whether a control variate travels with the model, and its change with the update: for the methods that
    `pausefl_client.registries.WITH_CONTROL` names."""

    def optimizer(self, model: nn.Module, settings: TrainingSettings) -> torch.optim.Optimizer:
        """Make the optimizer, once for all rounds; its state survives a restart as well."""
        return make_optimizer(settings, list(model.parameters()))

    def take_control(self, control: Mapping[str, torch.Tensor]) -> None:
        """Take the server's control variate, by the names of the model's tensors; comes before `begin_round`."""

    def begin_round(self, model: nn.Module, round: int) -> None:
        """Prepare for a round; `model` holds θ, the server's model."""

    def loss(self, model: nn.Module, batch: Batch, task: LearningTask) -> torch.Tensor:
        """The loss to be differentiated."""
        return task.loss(model(batch.inputs), batch.targets)

    def change_gradients(self, model: nn.Module) -> None:
        """Change the gradients between the backward pass and the optimizer's step."""

    def local_steps(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterable[Batch], task: LearningTask
    ) -> list[torch.Tensor]:
        """Train on the round's batches and return the loss of each step, detached."""
        return [self.step(model, optimizer, batch, task) for batch in batches]

    def step(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch, task: LearningTask
    ) -> torch.Tensor:
        """Take one step and return its loss, detached."""
        loss = self.loss(model, batch, task)
        # What `zero_grad` does, but for the profiler's record of it, which takes ten times as long.
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None
        loss.backward()  # type: ignore[no-untyped-call]
        self.change_gradients(model)
        optimizer.step()
        return loss.detach()

    def end_round(self, model: nn.Module) -> None:
        """Remember what the next round needs; `model` holds what was trained, and leaves as the update."""

    def control_change(self) -> Mapping[str, torch.Tensor]:
        """What this client changes of the control variate, by the same names; 0 for those it leaves out."""
        return {}

    def state(self) -> Mapping[str, Any]:
        """What it remembers from round to round: tensors, numbers, texts, and lists and dicts of them."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Remember this and nothing else; empty: be as at the start."""
