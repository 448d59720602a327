"""SCAFFOLD (Karimireddy, Kale, Mohri, Reddi, Stich and Suresh, ICML 2020)."""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import nn

from pausefl_client.training.method import RememberingMethod
from pausefl_client.training.model_vector import trained_parameters


class Scaffold(RememberingMethod):
    """Replaces every gradient g by g − c_i + c. c_i is the client's control variate, c the server's (Alg. 1, line 10).

    After the round, c_i⁺ is the mean of the gradients g of its steps. With plain SGD that equals option II of eq. (4),
    c_i − c + (x − y)/(K η), for K steps of rate η from x to y. Other optimizers have no such η. The client sends
    c_i⁺ − c_i with the update. The server adds Σ (c_i⁺ − c_i)/N to c, for N clients in all. All variates start at 0.
    """

    has_control: ClassVar[bool] = True
    remembered_as: ClassVar[str] = "control"  # c_i; empty means 0

    def __init__(self) -> None:
        self._server: Mapping[str, torch.Tensor] = {}  # c
        self._sum: dict[str, torch.Tensor] = {}  # the sum of the round's gradients
        self._steps = 0
        self._change: dict[str, torch.Tensor] = {}

    def take_control(self, control: Mapping[str, torch.Tensor]) -> None:
        self._server = control

    def begin_round(self, model: nn.Module, round: int) -> None:
        self._sum = {name: torch.zeros_like(parameter) for name, parameter in trained_parameters(model).items()}
        self._steps = 0

    def change_gradients(self, model: nn.Module) -> None:
        """Add g to the sum, then add c − c_i to g."""
        self._steps += 1
        for name, parameter in trained_parameters(model).items():
            if parameter.grad is not None:
                self._sum[name].add_(parameter.grad)
                parameter.grad.add_(self._server[name])
                if self.remembered:
                    parameter.grad.sub_(self.remembered[name])

    def end_round(self, model: nn.Module) -> None:
        """c_i ← c_i⁺."""
        before = self.remembered
        self.remembered = {name: total / max(self._steps, 1) for name, total in self._sum.items()}
        self._change = {name: after - before[name] if before else after for name, after in self.remembered.items()}

    def control_change(self) -> Mapping[str, torch.Tensor]:
        """c_i⁺ − c_i."""
        return self._change
