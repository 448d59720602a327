"""FedDyn (Acar, Zhao, Matas Navarro, Mattina, Whatmough and Saligrama, ICLR 2021)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from pausefl_client.training.method import RememberingMethod, copies
from pausefl_client.training.model_vector import trained_parameters
from pausefl_proto.number_types import Bounded, Positive


@dataclass
class FedDyn(Bounded, RememberingMethod):
    """Adds − ⟨h_i, w⟩ + α/2 ‖w − θ‖² to the loss; after the round h_i ← h_i − α (w − θ) (Algorithm 1).

    h_i starts at 0. After a round it equals ∇L_i at the client's last model, if that model is a minimum. The method
    needs the server's part, `aggregation.optimizer = "feddyn"`.
    """

    remembered_as: ClassVar[str] = "gradient"  # h_i; empty means 0

    alpha: Positive
    """α, the weight of the distance to the round's model."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._start: dict[str, torch.Tensor] = {}  # θ

    def begin_round(self, model: nn.Module, round: int) -> None:
        self._start = copies(trained_parameters(model))

    def change_gradients(self, model: nn.Module) -> None:
        """Add α (w − θ) − h_i."""
        for name, parameter in trained_parameters(model).items():
            if parameter.grad is not None:
                parameter.grad.add_(parameter.detach() - self._start[name], alpha=self.alpha)
                if self.remembered:
                    parameter.grad.sub_(self.remembered[name])

    def end_round(self, model: nn.Module) -> None:
        """h_i ← h_i − α (w − θ)."""
        before = self.remembered
        self.remembered = {
            name: before.get(name, 0) - self.alpha * (parameter.detach() - self._start[name])
            for name, parameter in trained_parameters(model).items()
        }
