"""pfl-research: federated averaging in its simulator, in one process. Noise is from its local Laplace mechanism."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["PFL_PYTORCH_DEVICE"] = "cpu"

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from pfl.privacy.laplace_mechanism import LaplaceMechanism
from torch import nn
from torch.nn import functional

from benchmarks.systems.local_training import accuracy, first_model, model_of, scaled
from benchmarks.systems.task import ENDLESS, Task, progress, settings_of

# The scale of the noise does not change the time.
_CLIP, _EPSILON = 1.0, 1e6


class _Net(nn.Module):
    """The net, with the methods that pfl-research calls."""

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__()
        self.net = model_of(settings)

    def loss(self, inputs: torch.Tensor, labels: torch.Tensor, **_: Any) -> torch.Tensor:
        """The mean loss of a batch."""
        return functional.cross_entropy(self.net(inputs), labels)

    def metrics(self, *_: Any, **__: Any) -> dict[str, Any]:
        """Returns no metrics: only the rated model is evaluated."""
        return {}


class _Told(TrainingProcessCallback):
    """Reports the progress of the simulation."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def on_train_begin(self, **_: Any) -> Metrics:
        """Report that all clients are connected."""
        progress().ended(0)
        return Metrics()

    def after_central_iteration(self, _: Metrics, model: Any, *, central_iteration: int) -> tuple[bool, Metrics]:
        """Report that a round has ended. `central_iteration` counts from 0."""
        progress().ended(central_iteration + 1)
        if central_iteration + 1 == self._task.rated_round:
            values = nn.utils.parameters_to_vector(model.pytorch_model.parameters()).detach().numpy()
            progress().accuracy(accuracy(self._task, values))
        return False, Metrics()


def main() -> None:
    """Play rounds without end."""
    task = Task.given()
    settings = settings_of(task)
    torch.set_num_threads(os.cpu_count() or 1)  # only one process trains here
    net = _Net(settings)
    nn.utils.vector_to_parameters(torch.from_numpy(first_model(task)), net.parameters())
    model = PyTorchModel(
        net,
        local_optimizer_create=lambda parameters, lr: torch.optim.Adam(parameters, lr=lr, fused=True),
        central_optimizer=torch.optim.SGD(net.parameters(), lr=1.0),
    )
    rng = np.random.default_rng()
    clients = FederatedDataset(_examples(task), lambda: int(rng.integers(task.clients)))
    noise = [LaplaceMechanism(_CLIP, _EPSILON)] if task.has_noise else []
    FederatedAveraging().run(
        NNAlgorithmParams(ENDLESS, ENDLESS, train_cohort_size=task.per_round, val_cohort_size=0),
        SimulatedBackend(clients, clients, postprocessors=noise),
        model,
        NNTrainHyperParams(
            local_batch_size=settings["batch_size"],
            local_num_epochs=None,
            local_learning_rate=settings["learning_rate"],
            local_num_steps=settings["max_steps"],
        ),
        NNEvalHyperParams(local_batch_size=1000),
        [_Told(task)],
    )


def _examples(task: Task) -> Callable[[int], Dataset]:
    """A function from a client's number to its data set. All data sets are read once."""
    files = [np.load(Path(task.data) / f"client-{k}.npz") for k in range(task.clients)]
    parts = [(scaled(torch.from_numpy(file["inputs"])), torch.from_numpy(file["labels"])) for file in files]
    return lambda client: Dataset(parts[client], user_id=str(client))


if __name__ == "__main__":
    main()
