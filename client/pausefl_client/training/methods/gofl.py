"""Normalised gradients, after GOFL (Lian, Cao, Zhu, Zhou and Liu, IEEE Internet of Things Journal 11(7), 2024)."""

import torch
from torch import nn

from pausefl_client.training.method import TrainingMethod


class Gofl(TrainingMethod):
    """Replaces every gradient g by g/‖g‖, over all parameters, so that all clients' steps are equally long."""

    def change_gradients(self, model: nn.Module) -> None:
        """Divide the gradients by their common L2 norm. A gradient of 0 stays 0."""
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(gradient) for gradient in gradients]))
        divisor = torch.where(norm > 0, norm, 1.0)  # not `if norm > 0`, which would wait for a GPU
        for gradient in gradients:
            gradient.div_(divisor)
