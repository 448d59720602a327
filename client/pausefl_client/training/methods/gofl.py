"""Normalised gradients, after GOFL (Lian, Cao, Zhu, Zhou and Liu, IEEE Internet of Things Journal 11(7), 2024)."""

import torch
from torch import nn

from pausefl_client.training.method import TrainingMethod


class Gofl(TrainingMethod):
    """Every gradient g becomes g/‖g‖, over all parameters, so that no client's steps are longer than another's.

    This is what the Fed-TS paper says of GOFL, that it normalises gradients against drift; its other parts are left
    out.
    """

    def change_gradients(self, model: nn.Module) -> None:
        """Divide by the L2 norm; a gradient of 0 stays."""
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(gradient) for gradient in gradients]))
        divisor = torch.where(norm > 0, norm, 1.0)  # not read: that would wait for a GPU
        for gradient in gradients:
            gradient.div_(divisor)
