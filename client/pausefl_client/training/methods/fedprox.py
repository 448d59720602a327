"""FedProx (Li, Sahu, Zaheer, Sanjabi, Talwalkar and Smith, MLSys 2020)."""

from dataclasses import dataclass

import torch
from torch import nn

from pausefl_client.training.method import TrainingMethod
from pausefl_client.training.model_vector import trained_parameters
from pausefl_proto.number_types import Bounded, NonNegative


@dataclass
class FedProx(Bounded, TrainingMethod):
    """Adds μ/2 ‖w − θ‖² to the loss, which pulls a client towards the round's model θ (Li et al., MLSys 2020)."""

    mu: NonNegative
    """μ, the weight of the distance to the round's model."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._anchors: list[torch.Tensor] = []

    def begin_round(self, model: nn.Module, round: int) -> None:
        self._anchors = [parameter.detach().clone() for parameter in trained_parameters(model).values()]

    def change_gradients(self, model: nn.Module) -> None:
        """Add μ (w − θ)."""
        for parameter, anchor in zip(trained_parameters(model).values(), self._anchors, strict=True):
            if parameter.grad is not None:
                parameter.grad.add_(parameter.detach() - anchor, alpha=self.mu)
