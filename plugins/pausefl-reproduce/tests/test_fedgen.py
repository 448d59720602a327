"""FedGen against the gradients of its paper's losses."""

import numpy as np
import pytest
import torch
from torch import nn

from pausefl_client.data.datasets import Examples
from pausefl_client.data.tasks import LearningTask
from pausefl_client.training.method import Batch
from pausefl_client.training.tasks import Classification, Regression
from pausefl_client.training.torch_trainer import LocalData, TorchTrainer
from pausefl_client.training.trainer import TrainingSettings
from pausefl_proto.errors import ConfigError
from pausefl_reproduce.fedgen import FedGen, generated


def test_fedgen_descends_the_papers_losses_with_a_generator_that_all_clients_share() -> None:
    rng, theta = np.random.default_rng(6), np.array([1, -1, 0.5, 1, -1, 0], np.float32)
    trainers = [
        TorchTrainer(
            nn.Linear(2, 3, bias=False),
            LocalData(Examples(rng.standard_normal((12, 2)).astype(np.float32), rng.integers(3, size=12)), 3),
            TrainingSettings("sgd", 0.05, batch_size=12),
            device=torch.device("cpu"),
            seed=1,
            client_id=name,
            method=FedGen(),
        )
        for name in "ab"
    ]
    taken: list[torch.Tensor] = []  # all inputs of the last layer; at last those that the generator made for client b
    trainers[1].model.register_forward_hook(lambda *call: taken.append(call[1][0].detach()))
    for t in range(1, 31):
        update = [trainer.train(theta, round=t).update for trainer in trainers][1]
    w, same = (trainer.method.state()["generator"] for trainer in trainers)
    made = nn.Sequential(nn.Linear(35, 256), nn.ReLU(), nn.Linear(256, 2))
    made.load_state_dict(w)
    assert all(torch.equal(w[name], same[name]) for name in w)
    head, y = torch.from_numpy(theta).reshape(3, 2).requires_grad_(), torch.arange(3).repeat(200)
    assert ((generated(made, y, 3, torch.randn(600, 32)) @ head.T).argmax(1) == y).float().mean() > 0.95
    given = [(trainers[1].inputs, trainers[1].targets), (taken[-1], (taken[-1] @ head.T).argmax(1))]
    loss = torch.stack([nn.functional.cross_entropy(x @ head.T, y) for x, y in given]).sum()
    (gradient,) = torch.autograd.grad(loss, head)
    np.testing.assert_allclose(update, -0.05 * gradient.flatten(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("model", "task", "message"),
    [
        (nn.Linear(2, 1), Regression(1.0), "needs a class for each example, from a last linear layer"),
        (nn.Sequential(nn.Unflatten(1, (2, 1)), nn.Linear(1, 3)), Classification(), "needs a class for each example"),
        (nn.Sequential(nn.Unflatten(1, (1, 2)), nn.Conv1d(1, 3, 2), nn.Flatten()), Classification(), "no linear layer"),
    ],
)
def test_what_fedgen_cannot_train_is_refused(model: nn.Module, task: LearningTask, message: str) -> None:
    method = FedGen()
    method.begin_round(model, 1)
    with pytest.raises(ConfigError, match=f'^workload.training = "FedGen": .*{message}'):
        method.loss(model, Batch(torch.zeros(4, 2), torch.zeros(4)), task)
