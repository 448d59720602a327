"""FedProx (Li, Sahu, Zaheer, Sanjabi, Talwalkar and Smith, MLSys 2020)."""

from dataclasses import dataclass

import torch
from torch import nn

from pausefl_client.training.method import TrainingMethod


@dataclass
class FedProx(TrainingMethod):
    """The loss gets + μ/2 ‖w − θ‖², which pulls a client towards the round's model (Li et al., MLSys 2020)."""

    mu: float
    """μ, the weight of the distance to the round's model."""

    def __post_init__(self) -> None:
        if not 0 <= self.mu < float("inf"):
            raise ValueError(f"mu = {self.mu}: must be a finite number, at least 0")
        self._anchors: list[torch.Tensor] = []

    def begin_round(self, model: nn.Module, round: int) -> None:  # noqa: ARG002
        """Keep θ."""
        self._anchors = [parameter.detach().clone() for parameter in model.parameters()]

    def change_gradients(self, model: nn.Module) -> None:
        """Add μ (w − θ)."""
        for parameter, anchor in zip(model.parameters(), self._anchors, strict=True):
            if parameter.grad is not None:
                parameter.grad.add_(parameter.detach() - anchor, alpha=self.mu)
