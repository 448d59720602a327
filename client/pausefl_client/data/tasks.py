"""A model's task: the loss it is trained with, and the score it is evaluated with."""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # a client with a synthetic model needs no torch
    import torch


class LearningTask(Protocol):
    """The task of a data set. `pausefl_client.training.tasks` has classification and regression."""

    @property
    def metric(self) -> str:
        """The mean score's name in reports: "accuracy", "R²"."""

    def loss(self, outputs: "torch.Tensor", targets: "torch.Tensor") -> "torch.Tensor":
        """The mean loss of a batch, a scalar to be differentiated."""

    def score(self, outputs: "torch.Tensor", targets: "torch.Tensor") -> "torch.Tensor":
        """(k,) a value for each thing predicted, an example or a token; the greater, the better.

        Their mean over a split, brought into [0, 1], is what reports show as `metric`.
        """
