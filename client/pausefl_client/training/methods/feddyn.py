"""FedDyn (Acar, Zhao, Matas Navarro, Mattina, Whatmough and Saligrama, ICLR 2021)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from pausefl_client.training.method import TrainingMethod
from pausefl_client.training.model_vector import trained_parameters
from pausefl_proto.number_types import Bounded, Positive


@dataclass
class FedDyn(Bounded, TrainingMethod):
    """Adds − ⟨h_i, w⟩ + α/2 ‖w − θ‖² to the loss; after the round h_i ← h_i − α (w − θ) (Algorithm 1).

    h_i starts at 0. After a round it equals ∇L_i at the client's last model, if that model is a minimum. The method
    needs the server's part, `aggregation.optimizer = "feddyn"`.
    """

    alpha: Positive
    """α, the weight of the distance to the round's model."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._start: dict[str, torch.Tensor] = {}  # θ
        self._gradient: dict[str, torch.Tensor] = {}  # h_i; empty means 0

    def begin_round(self, model: nn.Module, round: int) -> None:
        self._start = {name: parameter.detach().clone() for name, parameter in trained_parameters(model).items()}

    def change_gradients(self, model: nn.Module) -> None:
        """Add α (w − θ) − h_i."""
        for name, parameter in trained_parameters(model).items():
            if parameter.grad is not None:
                parameter.grad.add_(parameter.detach() - self._start[name], alpha=self.alpha)
                if self._gradient:
                    parameter.grad.sub_(self._gradient[name])

    def end_round(self, model: nn.Module) -> None:
        """h_i ← h_i − α (w − θ)."""
        before = self._gradient
        self._gradient = {
            name: before.get(name, 0) - self.alpha * (parameter.detach() - self._start[name])
            for name, parameter in trained_parameters(model).items()
        }

    def state(self) -> Mapping[str, Any]:
        return {"gradient": self._gradient} if self._gradient else {}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._gradient = dict(state.get("gradient", {}))
