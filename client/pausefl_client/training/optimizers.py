"""A client's optimizer and its schedule, as `[workload]` names them."""

import inspect
import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from torch import nn

from pausefl_client.registries import OPTIMIZERS, SCHEDULES
from pausefl_client.training.trainer import TrainingSettings
from pausefl_process.plugins import OWN_CODE_ERRORS, with_place
from pausefl_proto.errors import ConfigError, PauseflError

# One kernel for all parameters. Others of torch's optimizers have none for the CPU, or for a GPU.
_FUSED = {"sgd", "adam", "adamw"}


@cache
def _without_compiler(optimizer: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """The optimizer less what makes torch import its compiler at the first step: 800 modules, and a second."""
    own_step = inspect.unwrap(optimizer.step)

    def step(self: torch.optim.Optimizer, *args: Any, **options: Any) -> Any:
        with torch.set_grad_enabled(self.defaults["differentiable"]):
            return own_step(self, *args, **options)

    wrapped = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")
    return type(
        optimizer.__name__, (optimizer,), {"step": step, **{n: inspect.unwrap(getattr(optimizer, n)) for n in wrapped}}
    )


def make_optimizer(settings: TrainingSettings, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """A fresh optimizer of these parameters; ConfigError where it does not take `workload.optimizer_options`."""
    options: dict[str, Any] = {"fused": True} if settings.optimizer in _FUSED else {}
    options |= {"lr": settings.learning_rate, **settings.optimizer_options}
    factory = OPTIMIZERS.find(settings.optimizer, "workload.optimizer")
    if settings.optimizer in OPTIMIZERS:  # torch's own
        factory = _without_compiler(factory)
    optimizer: torch.optim.Optimizer = _made(factory, parameters, options, "workload.optimizer_options")
    return optimizer


def take_step(optimizer: torch.optim.Optimizer) -> None:
    """Take a step; from the first sparse gradient on without a fused kernel, which takes none."""
    try:
        optimizer.step()
    except RuntimeError as error:
        if "sparse" not in str(error) or not any(group.get("fused") for group in optimizer.param_groups):
            raise
        for group in optimizer.param_groups:
            group["fused"] = False
        optimizer.step()


class LearningRates:
    """The learning rate of each round: round t has that of a schedule which was stepped t − 1 times.

    It depends on the round alone, not on how often a client took part.
    """

    def __init__(self, settings: TrainingSettings) -> None:
        """ConfigError where the schedule does not take the parameters of `workload.schedule`, or cannot go on."""
        parameters = dict(settings.schedule)
        kind = parameters.pop("kind", "")
        factory = SCHEDULES.find(kind, "workload.schedule.kind")
        self._optimizer = make_optimizer(settings, [nn.Parameter(torch.zeros(1))])
        self._schedule = _made(factory, self._optimizer, parameters, "workload.schedule")
        if not isinstance(self._schedule, torch.optim.lr_scheduler.LRScheduler):
            returned = f"must return a torch.optim.lr_scheduler.LRScheduler; returned {type(self._schedule).__name__}"
            raise ConfigError(f'workload.schedule.kind = "{kind}": {returned}')
        self._rates: list[float] = []
        self._unusable: int | None = None  # the first round whose rate cannot be trained with
        self._note()
        try:
            self.at(2)
        except PauseflError:
            raise
        except OWN_CODE_ERRORS as error:
            raise ConfigError(f"workload.schedule: its first step failed: {with_place(error)}") from error

    def at(self, round: int) -> float:
        """The rate of a round, from 1; ConfigError where that, or one before it, cannot be trained with."""
        while len(self._rates) < round:
            self._optimizer.step()  # of a parameter without a gradient; torch asks for one before each step
            self._schedule.step()
            self._note()
        if (first := self._unusable) is not None and first <= max(round, 1):
            wrong = f"the learning rate of round {first} is {self._rates[first - 1]:g}: must be finite and at least 0"
            raise ConfigError(f"workload.schedule: {wrong}")
        return self._rates[max(round, 1) - 1]

    def _note(self) -> None:
        """Keep the rate of the next round."""
        rate = float(self._optimizer.param_groups[0]["lr"])
        self._rates.append(rate)
        if self._unusable is None and not 0 <= rate < math.inf:
            self._unusable = len(self._rates)


def _made(factory: Callable[..., Any], subject: object, options: Mapping[str, Any], key: str) -> Any:
    try:
        return factory(subject, **options)
    except (TypeError, ValueError, AssertionError) as error:
        raise ConfigError(f"{key}: {with_place(error)}") from error
