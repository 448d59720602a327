"""An example of your own training method: SGD with momentum, and weight decay for weights but not for biases.

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
    """SGD with momentum. Weight decay applies to matrices and kernels, but not to vectors such as biases."""

    momentum: float = 0.9
    weight_decay: float = 1e-3
    restart: bool = True
    """Whether each round begins without momentum. The server's model has changed since the client trained last."""

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum = {self.momentum}: must be at least 0 and below 1")
        self._optimizer: torch.optim.Optimizer | None = None

    def optimizer(self, model: nn.Module, settings: TrainingSettings) -> torch.optim.Optimizer:
        """Returns the optimizer for all rounds. It has two groups of parameters, with and without weight decay."""
        matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
        vectors = [parameter for parameter in model.parameters() if parameter.ndim <= 1]
        groups: list[dict[str, Any]] = [{"params": matrices, "weight_decay": self.weight_decay}, {"params": vectors}]
        self._optimizer = torch.optim.SGD(groups, lr=settings.learning_rate, momentum=self.momentum)
        return self._optimizer

    def begin_round(self, model: nn.Module, round: int) -> None:
        """Clear the momentum if `restart` is set."""
        if self.restart and self._optimizer is not None:
            self._optimizer.state.clear()
