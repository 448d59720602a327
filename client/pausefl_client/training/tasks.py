"""The tasks that need no code of one's own: predict a class for each example or token, or numbers."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.nn import functional

from pausefl_proto.number_types import Bounded, Positive


@dataclass(frozen=True)
class Classification:
    """One class for each example, or for each token of a text; a class below 0 marks padding, which does not count.

    Outputs are (n, classes) logits with (n,) int64 targets, or (n, tokens, classes) with (n, tokens).
    """

    metric: ClassVar[str] = "accuracy"

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy."""
        return functional.cross_entropy(outputs.flatten(0, -2), targets.flatten().clamp(min=-1), ignore_index=-1)

    def score(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """1 for a right answer, else 0."""
        classes = targets.flatten()
        is_right = outputs.flatten(0, -2).argmax(1) == classes
        return is_right[classes >= 0].float()


@dataclass(frozen=True)
class Regression(Bounded):
    """A number, or several, for each example: (n, outputs) with (n,) or (n, outputs) float32 targets."""

    metric: ClassVar[str] = "R²"

    variance: Positive
    """Of the training targets, (target − mean)² on average: what the model is to explain."""

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Mean squared error."""
        return functional.mse_loss(outputs.reshape(targets.shape), targets)

    def score(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """1 − (output − target)² / variance, whose mean is R², the share of the variance explained."""
        return 1 - (outputs.reshape(targets.shape) - targets).square().flatten() / self.variance
