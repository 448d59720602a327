"""The built-in learning tasks: classification of examples or tokens, and regression."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.nn import functional

from pausefl_proto.number_types import Bounded, Positive


@dataclass(frozen=True)
class Classification:
    """Predicts one class for each example, token or pixel. A class below 0 marks padding, not counted.

    Outputs are (n, classes) logits with (n,) int64 targets, or (n, ..., classes) with (n, ...). Where that
    does not fit, classes may be second, as in torch's cross-entropy: (n, classes, h, w) with (n, h, w).
    """

    metric: ClassVar[str] = "accuracy"

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy."""
        return functional.cross_entropy(
            by_prediction(outputs, targets), targets.flatten().clamp(min=-1), ignore_index=-1
        )

    def score(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """1 for each right prediction, else 0. Padding is left out."""
        classes = targets.flatten()
        is_right = by_prediction(outputs, targets).argmax(1) == classes
        return is_right[classes >= 0].float()


def by_prediction(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A classifier's outputs as (predictions, classes), in the order of `targets.flatten()`."""
    if outputs.shape[:-1] != targets.shape and outputs.shape[:1] + outputs.shape[2:] == targets.shape:
        outputs = outputs.movedim(1, -1)
    return outputs.flatten(0, -2)


@dataclass(frozen=True)
class Regression(Bounded):
    """Predicts one or several numbers for each example: (n, outputs) for (n,) or (n, outputs) float32 targets."""

    metric: ClassVar[str] = "R²"

    variance: Positive
    """The variance of the training targets, the mean of (target − mean)². R² is the share of it that is explained."""

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Mean squared error."""
        return functional.mse_loss(outputs.reshape(targets.shape), targets)

    def score(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """1 − (output − target)² / variance, whose mean is R², the share of the variance explained."""
        return 1 - (outputs.reshape(targets.shape) - targets).square().flatten() / self.variance
