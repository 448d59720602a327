"""A training method of your own: momentum, and weight decay of weights but not of biases.

Run it: pausefl run examples/training_method/experiment.toml
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from pausefl_client.training.method import TrainingMethod
from pausefl_client.training.trainer import TrainingSettings


@dataclass
class DecayedWeights(TrainingMethod):
    """SGD with momentum. Weight decay shrinks matrices and kernels; vectors, such as biases, keep their size."""

    momentum: float = 0.9
    weight_decay: float = 1e-3
    restart: bool = True
    """Whether each round begins without momentum, since the server's model has moved meanwhile."""

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum = {self.momentum}: must be at least 0 and below 1")
        self._optimizer: torch.optim.Optimizer | None = None

    def optimizer(self, model: nn.Module, settings: TrainingSettings) -> torch.optim.Optimizer:
        """The optimizer of all rounds: two groups of parameters, which differ in weight decay."""
        matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
        vectors = [parameter for parameter in model.parameters() if parameter.ndim <= 1]
        groups: list[dict[str, Any]] = [{"params": matrices, "weight_decay": self.weight_decay}, {"params": vectors}]
        self._optimizer = torch.optim.SGD(groups, lr=settings.learning_rate, momentum=self.momentum)
        return self._optimizer

    def begin_round(self, model: nn.Module, round: int) -> None:
        """Forget the momentum, if asked to."""
        if self.restart and self._optimizer is not None:
            self._optimizer.state.clear()
