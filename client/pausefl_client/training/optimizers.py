"""A client's optimizer and its learning-rate schedule, as `[workload]` names them."""

import inspect
import math
from collections.abc import Callable, Mapping
from functools import cache
from types import MethodType
from typing import Any

import torch
from torch import nn

from pausefl_client.registries import OPTIMIZERS, SCHEDULES
from pausefl_client.training.trainer import TrainingSettings
from pausefl_process.plugins import OWN_CODE_ERRORS, with_place
from pausefl_proto.errors import ConfigError, PauseflError

# Optimizers with a fused kernel, one for all parameters. torch's others lack one for the CPU or for a GPU.
_FUSED = {"sgd", "adam", "adamw"}
_NOT_FUSED = {"fused", "foreach", "differentiable"}  # options that ask for other kernels


def laid_out(tensor: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """A parameter's gradient or state, in the parameter's order in memory: fused kernels pair values by their place."""
    return torch.empty_like(parameter, dtype=tensor.dtype).copy_(tensor)


@cache
def _without_compiler(optimizer: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """The optimizer's class without the wrappers that import torch's compiler at the first step: 800 modules, 1 s."""
    own_step = inspect.unwrap(optimizer.step)

    def step(self: torch.optim.Optimizer, *args: Any, **options: Any) -> Any:
        with torch.set_grad_enabled(self.defaults["differentiable"]):
            try:
                for group in self.param_groups:
                    for parameter in group["params"] if group.get("fused") else ():
                        if (gradient := parameter.grad) is not None and gradient.stride() != parameter.stride():
                            parameter.grad = laid_out(gradient, parameter)  # an error if it is sparse
                    if group.get("fused") and group.get("momentum"):  # fused SGD takes it for all or none
                        trained = [parameter for parameter in group["params"] if parameter.grad is not None]
                        group["fused"] = len({"momentum_buffer" in self.state.get(each, ()) for each in trained}) < 2
                return own_step(self, *args, **options)
            except RuntimeError as error:
                if "sparse" not in str(error) or not any(group.get("fused") for group in self.param_groups):
                    raise
            for group in self.param_groups:
                group["fused"] = False
            return own_step(self, *args, **options)

    wrapped = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")
    return type(
        optimizer.__name__, (optimizer,), {"step": step, **{n: inspect.unwrap(getattr(optimizer, n)) for n in wrapped}}
    )


def make_optimizer(settings: TrainingSettings, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """A new optimizer of these parameters. ConfigError if it does not accept `workload.optimizer_options`."""
    options = {"lr": settings.learning_rate, **settings.optimizer_options}
    if settings.optimizer in _FUSED and all(map(_can_be_fused, parameters)) and not _NOT_FUSED & options.keys():
        options["fused"] = True
    factory = OPTIMIZERS.find(settings.optimizer, "workload.optimizer")
    if settings.optimizer in OPTIMIZERS:  # torch's own
        factory = _without_compiler(factory)
    optimizer: torch.optim.Optimizer = _made(factory, parameters, options, "workload.optimizer_options")
    return optimizer


def _can_be_fused(parameter: nn.Parameter) -> bool:
    """Whether fused kernels train it right. They change what lies between the values of a part of a larger tensor, such
    as its first columns, and on a CPU they take wrong steps in half precision (torch 2.13)."""
    is_whole = parameter.stride() == torch.empty_like(parameter).stride()
    return is_whole and parameter.dtype.itemsize >= 4


class LearningRates:
    """The learning rate of each round t: that of the schedule after t − 1 steps, however often a client took part."""

    def __init__(self, settings: TrainingSettings) -> None:
        """ConfigError if the schedule does not accept the keys of `workload.schedule`, or if its first step fails."""
        parameters = dict(settings.schedule)
        kind = parameters.pop("kind", "")
        factory = SCHEDULES.find(kind, "workload.schedule.kind")
        self._optimizer = make_optimizer(settings, [nn.Parameter(torch.zeros(1, 1))])  # Muon takes matrices alone
        self.base: float | None = self._optimizer.param_groups[0].get("lr")
        """The rate before the schedule changes it. None, which no schedule takes, if the optimizer has none."""
        vars(self._optimizer)["step"] = MethodType(lambda _: None, self._optimizer)  # its own may need a gradient
        self._schedule = _made(factory, self._optimizer, parameters, "workload.schedule")
        if not isinstance(self._schedule, torch.optim.lr_scheduler.LRScheduler):
            returned = f"must return a torch.optim.lr_scheduler.LRScheduler; returned {type(self._schedule).__name__}"
            raise ConfigError(f'workload.schedule.kind = "{kind}": {returned}')
        self._rates: list[float] = []
        self._unusable: int | None = None  # the first round whose rate cannot be trained with
        try:
            self.at(2)
        except PauseflError:
            raise
        except OWN_CODE_ERRORS as error:
            raise ConfigError(f"workload.schedule: its first step failed: {with_place(error)}") from error

    def at(self, round: int) -> float:
        """The rate of a round, counted from 1. ConfigError if a rate up to then is negative or not finite."""
        while len(self._rates) < max(round, 1):
            if self._rates:
                self._optimizer.step()  # torch wants an optimizer step before each schedule step
                self._schedule.step()
            rate = float(self._optimizer.param_groups[0]["lr"])
            self._rates.append(rate)
            if self._unusable is None and not 0 <= rate < math.inf:
                self._unusable = len(self._rates)
        if (first := self._unusable) is not None and first <= max(round, 1):
            wrong = f"the learning rate of round {first} is {self._rates[first - 1]:g}: must be finite and at least 0"
            raise ConfigError(f"workload.schedule: {wrong}")
        return self._rates[max(round, 1) - 1]


def _made(factory: Callable[..., Any], subject: object, options: Mapping[str, Any], key: str) -> Any:
    try:
        return factory(subject, **options)
    except (TypeError, ValueError, AssertionError, RuntimeError) as error:
        raise ConfigError(f"{key}: {with_place(error)}") from error
