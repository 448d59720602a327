"""Training methods: how one client trains in a round, with its optimizer, its loss and its loop."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType, NoneType
from typing import Any, ClassVar, NamedTuple

import torch
from torch import nn

from pausefl_client.data.tasks import LearningTask
from pausefl_client.training.model_vector import trained_parameters
from pausefl_client.training.optimizers import make_optimizer
from pausefl_client.training.trainer import TrainingSettings
from pausefl_proto.errors import ConfigError

_KEY = "workload.training"
# Types that torch reads back without running code. Only these exact types: a subclass would need code of its own.
_PLAIN = {int, float, str, bool, bytes, NoneType, torch.Size, torch.dtype, torch.device}


class Batch(NamedTuple):
    """Examples of one training step, on the client's device."""

    inputs: torch.Tensor
    """Images are float32 in [−1, 1], tokens int64. Features are as in the data set."""
    targets: torch.Tensor


@dataclass(frozen=True)
class Batches:
    """The batches of one round, in order. Each loop over them goes through all of them again."""

    make: Callable[[], Iterator[Batch]]
    steps: int

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[Batch]:
        return self.make()


class TrainingMethod:
    """The plain method, and the base class of all methods: the task's loss, [workload]'s optimizer, a step per batch.

    A subclass overrides what it does differently. Every client has its own object, which may remember values from round
    to round; `state` and `restore` let them survive a restart. Clipping, noise and the ledger come after training.
    """

    has_control: ClassVar[bool] = False
    """Whether a control variate is sent with the model, and its change with the update. True only for the methods in
    `pausefl_client.registries.WITH_CONTROL`."""

    def optimizer(self, model: nn.Module, settings: TrainingSettings) -> torch.optim.Optimizer:
        """Make the optimizer. It is made once for all rounds, and its state survives a restart."""
        return make_optimizer(settings, list(trained_parameters(model).values()))

    def take_control(self, control: Mapping[str, torch.Tensor]) -> None:
        """Receive the server's control variate, by the names of the model's tensors. Called before `begin_round`."""

    def begin_round(self, model: nn.Module, round: int) -> None:
        """Prepare for a round. `model` holds θ, the server's model."""

    def loss(self, model: nn.Module, batch: Batch, task: LearningTask) -> torch.Tensor:
        """The loss of a batch, a scalar to differentiate."""
        return task.loss(model(batch.inputs), batch.targets)

    def change_gradients(self, model: nn.Module) -> None:
        """Change the gradients between the backward pass and the optimizer's step."""

    def local_steps(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, batches: Batches, task: LearningTask
    ) -> list[torch.Tensor]:
        """Train on the round's batches and return the loss of each step, detached."""
        return [self.step(model, optimizer, batch, task) for batch in batches]

    def step(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch, task: LearningTask
    ) -> torch.Tensor:
        """Take one step and return its loss, detached."""
        loss = _checked_loss(self.loss(model, batch, task), self, task)
        # The same as `zero_grad`, without its record for the profiler, which takes ten times as long.
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None
        loss.backward()  # type: ignore[no-untyped-call]  # torch's own
        if type(self).change_gradients is not TrainingMethod.change_gradients:
            _make_dense(optimizer)
        self.change_gradients(model)
        optimizer.step()
        return loss.detach()

    def end_round(self, model: nn.Module) -> None:
        """Remember what the next round needs. `model` holds the trained values, from which the update is made."""

    def control_change(self) -> Mapping[str, torch.Tensor]:
        """This client's change of the control variate, by the same names. Missing names count as 0."""
        return {}

    def state(self) -> Mapping[str, Any]:
        """What the method remembers from round to round: tensors, numbers, texts, and lists and dicts of them."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Replace what the method remembers by `state`. An empty one resets it to its start."""


class RememberingMethod(TrainingMethod):
    """Base of the methods that remember tensors by name from round to round, none at their start."""

    remembered: Mapping[str, torch.Tensor] = MappingProxyType({})
    remembered_as: ClassVar[str]
    """The name of these tensors in a saved state."""

    def state(self) -> Mapping[str, Any]:
        return {self.remembered_as: dict(self.remembered)} if self.remembered else {}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.remembered = state.get(self.remembered_as, {})


def copies(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The present values of tensors, by name."""
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def _make_dense(optimizer: torch.optim.Optimizer) -> None:
    """Make sparse gradients (such as an embedding's) dense, so that a method can change them like all others."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None and parameter.grad.is_sparse:
                parameter.grad = parameter.grad.to_dense()


def _checked_loss(loss: object, method: TrainingMethod, task: LearningTask) -> torch.Tensor:
    """`loss` itself. ConfigError unless it is a tensor of one value that depends on parameters."""
    if isinstance(loss, torch.Tensor) and loss.numel() == 1 and loss.requires_grad:
        return loss
    if not isinstance(loss, torch.Tensor):
        found = type(loss).__name__
    elif loss.numel() != 1:
        found = f"one of shape {tuple(loss.shape)}"
    else:
        found = "one that depends on no parameter of the model"
    part = f"loss, with {type(task).__name__}.loss of the data set's task,"
    raise _wrong(method, part, "a scalar tensor to differentiate", found)


def new_optimizer(method: TrainingMethod, model: nn.Module, settings: TrainingSettings) -> torch.optim.Optimizer:
    """The optimizer that the method makes. ConfigError unless it is one of torch's class."""
    optimizer: object = method.optimizer(model, settings)
    if isinstance(optimizer, torch.optim.Optimizer):
        return optimizer
    raise _wrong(method, "optimizer", "one torch.optim.Optimizer (and may keep more itself)", type(optimizer).__name__)


def checked_losses(losses: object, method: TrainingMethod) -> list[torch.Tensor]:
    """`losses` itself. ConfigError unless it is a non-empty list of tensors."""
    if isinstance(losses, list) and losses and all(isinstance(loss, torch.Tensor) for loss in losses):
        return losses
    found = "a list of others" if losses else "an empty list"
    if not isinstance(losses, list):
        found = type(losses).__name__
    raise _wrong(method, "local_steps", "a list of tensors, the loss of each step", found)


def checked_state(method: TrainingMethod) -> dict[str, Any]:
    """The method's state. ConfigError if it holds a value that a file cannot give back."""
    state: object = method.state()
    if not isinstance(state, Mapping):
        raise _wrong(method, "state()", "a dict", type(state).__name__)
    if (odd := _odd_type(dict(state))) is not None:
        may_hold = f"{type(method).__name__}.state() may hold tensors, numbers, texts, lists and dicts"
        raise ConfigError(f"{_KEY}: {may_hold}; it holds {odd.__name__}")
    return dict(state)


def _wrong(method: TrainingMethod, part: str, due: str, found: str) -> ConfigError:
    return ConfigError(f"{_KEY}: {type(method).__name__}.{part} must return {due}; returned {found}")


def _odd_type(value: object) -> type | None:
    """The first type inside `value` that a file cannot give back, or None."""
    if isinstance(value, torch.Tensor) or type(value) in _PLAIN:
        return None
    if type(value) in {dict, OrderedDict} and isinstance(value, dict):
        parts = [*value.keys(), *value.values()]
    elif type(value) in {list, tuple, set} and isinstance(value, list | tuple | set):
        parts = [*value]
    else:
        return type(value)
    return next((odd for part in parts if (odd := _odd_type(part)) is not None), None)
