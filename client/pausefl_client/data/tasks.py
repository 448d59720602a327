"""The interface of a learning task: the loss for training, and the score for evaluation."""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # a client with a synthetic model needs no torch
    import torch


class LearningTask(Protocol):
    """The task of a data set. `pausefl_client.training.tasks` has classification and regression."""

    @property
    def metric(self) -> str:
        """The name of the mean score in reports, such as "accuracy" or "R²"."""

    def loss(self, outputs: "torch.Tensor", targets: "torch.Tensor") -> "torch.Tensor":
        """The mean loss of a batch, a scalar to differentiate."""

    def score(self, outputs: "torch.Tensor", targets: "torch.Tensor") -> "torch.Tensor":
        """(k,) a score for each prediction, of an example or a token. Greater is better.

        Reports show the mean over a split, clamped to [0, 1], under the name `metric`.
        """
