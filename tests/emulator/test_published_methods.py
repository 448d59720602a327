"""SCAFFOLD, FedDyn, FedBN, MOON and normalised gradients against plain numpy, and their states."""

from collections.abc import Callable
from pathlib import Path
from threading import Lock
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from safetensors.numpy import load_file
from torch import nn

from pausefl.experiment.experiment import parse_experiment
from pausefl.experiment.population.behaviours import GaussianUpdate
from pausefl.experiment.server_records import optimizer_of
from pausefl_client.data.datasets import Examples
from pausefl_client.training.method import TrainingMethod
from pausefl_client.training.methods.features import with_features
from pausefl_client.training.methods.fedbn import FedBN
from pausefl_client.training.methods.feddyn import FedDyn
from pausefl_client.training.methods.gofl import Gofl
from pausefl_client.training.methods.moon import Moon, contrast
from pausefl_client.training.methods.scaffold import Scaffold
from pausefl_client.training.model_vector import ModelVector
from pausefl_client.training.tasks import Regression
from pausefl_client.training.torch_trainer import LocalData, TorchTrainer
from pausefl_client.training.trainer import TrainingSettings
from pausefl_proto.draws import generator
from pausefl_proto.errors import ConfigError
from pausefl_server.model.aggregation import Aggregation
from pausefl_server.model.global_model import GlobalModel
from pausefl_server.model.optimizers import DynamicRegularizer, ServerOptimizer
from rigs.command import played, run, summary_of

Floats = npt.NDArray[np.float64]

torch.set_num_threads(1)  # as in clients
N, ETA, STEPS = 12, 0.05, 3
CLIENTS = 4  # of which two train in each round


class Client:
    """A client's linear regression: inputs, (N, 3), and targets, (N,)."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.x, self.y = rng.standard_normal((N, 3)), rng.standard_normal(N)

    def gradient(self, w: Floats) -> Floats:
        """The gradient of the mean squared error."""
        gradient: Floats = 2 / N * self.x.T @ (self.x @ w - self.y)
        return gradient

    def trainer(self, method: TrainingMethod, model: Callable[[], nn.Module] | None = None) -> TorchTrainer:
        """A trainer that takes STEPS steps of plain SGD per round on all examples."""
        return TorchTrainer(
            (model or linear)(),
            LocalData(Examples(self.x.astype(np.float32), self.y.astype(np.float32)), task=Regression(1.0)),
            TrainingSettings("sgd", ETA, batch_size=N, epochs=STEPS),
            device=torch.device("cpu"),
            seed=1,
            client_id="a",
            method=method,
        )


def linear() -> nn.Module:
    return nn.Linear(3, 1, bias=False)


class Energy(nn.Linear):
    """Takes a gradient of its outputs in each pass, in evaluation too, which frees their graph."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            energy = super().forward(x.requires_grad_())
            torch.autograd.grad(energy.sum(), x, create_graph=self.training)
        return energy


def two_layers() -> nn.Module:
    changes_inputs = nn.Hardtanh(-9, 9, inplace=True)
    return nn.Sequential(changes_inputs, Energy(3, 2, bias=False), nn.Linear(2, 1, bias=False))


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.ReLU(), nn.Linear(4, 1))


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


START = np.array([0.3, -0.2, 0.1], np.float32)


def test_scaffold_is_algorithm_1_with_option_2() -> None:
    clients = [Client(1), Client(2)]
    trainers = [client.trainer(Scaffold()) for client in clients]
    model = GlobalModel.start(np.concatenate((START, np.zeros(3, np.float32))), ServerOptimizer(), model_size=3)
    x, c, own = START.astype(np.float64), np.zeros(3), [np.zeros(3), np.zeros(3)]
    for t in (1, 2, 3):
        updates = [trainer.train(model.theta, round=t).update for trainer in trainers]
        model = model.updated(updates, np.ones(2), Aggregation(), ServerOptimizer(), clients=CLIENTS)
        moved, changed = [], []
        for i, client in enumerate(clients):
            y = x
            for _ in range(STEPS):
                y = y - ETA * (client.gradient(y) - own[i] + c)
            after = own[i] - c + (x - y) / (STEPS * ETA)
            moved.append(y - x)
            changed.append(after - own[i])
            own[i] = after
        x, c = x + np.mean(moved, axis=0), c + np.sum(changed, axis=0) / CLIENTS
        close(model.theta, np.concatenate((x, c)))
    assert np.abs(c).max() > 0.1


def test_feddyn_is_algorithm_1() -> None:
    alpha, clients = 0.5, [Client(1), Client(2)]
    optimizer = optimizer_of(parse_experiment('aggregation.optimizer = "feddyn"').aggregation.optimizer)
    assert isinstance(optimizer, DynamicRegularizer)
    trainers = [client.trainer(FedDyn(alpha)) for client in clients]
    model = GlobalModel.start(START, optimizer)
    theta, h, own = START.astype(np.float64), np.zeros(3), [np.zeros(3), np.zeros(3)]
    for t in (1, 2, 3):
        updates = [trainer.train(model.theta, round=t).update for trainer in trainers]
        model = model.updated(updates, np.ones(2), Aggregation(), optimizer, clients=CLIENTS)
        trained = []
        for i, client in enumerate(clients):
            w = theta
            for _ in range(STEPS):
                w = w - ETA * (client.gradient(w) - own[i] + alpha * (w - theta))
            own[i] = own[i] - alpha * (w - theta)
            trained.append(w)
        h = h - alpha / CLIENTS * sum(w - theta for w in trained)
        theta = np.mean(trained, axis=0) - h / alpha
        close(model.theta, theta)


def test_normalised_gradients_have_length_1() -> None:
    client, w = Client(1), START.astype(np.float64)
    for _ in range(STEPS):
        w = w - ETA * client.gradient(w) / np.linalg.norm(client.gradient(w))
    close(client.trainer(Gofl()).train(START, round=1).update, w - START)


def test_fedbn_trains_with_a_normalisation_of_its_own_and_sends_none() -> None:
    fedbn, plain = (Client(1).trainer(method, normalised) for method in (FedBN(), TrainingMethod()))
    theta = np.random.default_rng(3).standard_normal(fedbn.manifest.size).astype(np.float32)
    is_norm = np.concatenate([np.full(t.size, t.name.startswith("1.")) for t in fedbn.manifest.tensors])
    own = theta[is_norm]
    for t in (1, 2, 3):
        local = theta.copy()
        local[is_norm] = own
        trained = plain.train(local, round=t).update
        own = own + trained[is_norm]
        update = fedbn.train(theta, round=t).update
        close(update, np.where(is_norm, 0, trained))
        assert not update[is_norm].any()
        assert trained[is_norm].any()
        theta = theta + update


def moon_loss(client: Client, w: Floats, references: list[Floats], mu: float, temperature: float) -> float:
    """MOON's loss of two linear layers; the first layer's outputs are the features."""

    def features(v: Floats) -> Floats:
        z: Floats = client.x @ v[:6].reshape(2, 3).T
        return z

    def similarity(a: Floats, b: Floats) -> Floats:
        s: Floats = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
        return s

    z = features(w)
    near, far = (np.exp(similarity(z, features(v)) / temperature) for v in references)
    return float(np.mean((z @ w[6:] - client.y) ** 2) + mu * np.mean(-np.log(near / (near + far))))


def test_moon_descends_the_papers_loss() -> None:
    client, mu, temperature = Client(1), 2.0, 0.5
    trainer = client.trainer(Moon(mu, temperature), two_layers)
    plain = client.trainer(TrainingMethod(), two_layers)
    kept: list[torch.Tensor] = []  # a task may take what hooks keep, and a model give and take other names
    trainer.model.register_forward_hook(lambda *call: kept.append(call[2]))
    trainer.task = SimpleNamespace(metric="", loss=lambda _, y: Regression(1.0).loss(kept[-1], y), score=None)
    vars(trainer.model)["load_state_dict"] = None
    theta, later = (np.random.default_rng(k).standard_normal(8).astype(np.float32) for k in (4, 5))
    first = trainer.train(theta, round=1).update
    assert first.tobytes() == plain.train(theta, round=1).update.tobytes()  # there is no previous model yet
    last, server = (theta + first).astype(np.float64), later.astype(np.float64)

    def loss(at: Floats) -> float:
        return moon_loss(client, at, [server, last], mu, temperature)

    w = server
    for _ in range(STEPS):
        w = w - ETA * np.array([(loss(w + e) - loss(w - e)) / 2e-5 for e in 1e-5 * np.eye(8)])
    second = trainer.train(later, round=2).update
    np.testing.assert_allclose(second, w - server, rtol=1e-3, atol=1e-4)
    assert np.abs(second - plain.train(later, round=2).update).max() > 1e-3


class Backwards(nn.Sequential):
    """Calls its layers in another order than it has them in, and the last one not at all."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self[0](input=self[1](x))
        return outputs


def test_features_are_the_inputs_of_the_linear_layer_that_is_called_last() -> None:
    model, x = Backwards(nn.Linear(2, 1), nn.Linear(3, 2), nn.Linear(7, 7)), torch.randn(5, 3)
    outputs, features, head = with_features(model, x, "moon")
    assert head is model[0]
    assert torch.equal(features, model[1](x))
    assert torch.equal(outputs, model(x))


def test_the_contrastive_loss_of_equal_features_is_ln_2_and_layers_that_a_method_needs_are_asked_for() -> None:
    z = torch.randn(5, 4)
    assert float(contrast(z, z, z, 0.5)) == pytest.approx(np.log(2), abs=1e-6)
    with pytest.raises(ConfigError, match="has no normalisation layers"):
        Client(1).trainer(FedBN()).train(START, round=1)
    with pytest.raises(ConfigError, match="has no linear layer"):
        convolution = nn.Sequential(nn.Unflatten(1, (1, 3)), nn.Conv1d(1, 1, 3), nn.Flatten())
        Client(1).trainer(Moon(1.0), lambda: convolution).train(ModelVector(convolution).values(), round=1)
    vars(locked := linear())["lock"] = Lock()
    with pytest.raises(ConfigError, match=r"needs copies of workload\.model: cannot pickle .*lock"):
        Client(1).trainer(Moon(1.0), lambda: locked).train(START, round=1)


def test_poison_has_the_norm_of_each_part_of_an_honest_update() -> None:
    trainer = Client(1).trainer(Scaffold())
    theta = np.concatenate((START, np.zeros(3, np.float32)))
    poisoned = GaussianUpdate(2.0).trainer(Client(1).trainer(Scaffold()), lambda t: generator(1, "test", t))
    honest, poison = trainer.train(theta, round=1).update, poisoned.train(theta, round=1).update
    for part in (slice(3), slice(3, None)):
        assert np.linalg.norm(poison[part]) == pytest.approx(2 * np.linalg.norm(honest[part]), rel=1e-5)


SMALL = """
experiment.rounds = 3
clients.count = 3
selection = {{ policy = "{policy}", m = 2 }}
privacy = {{ enabled = {private}, unit = "vector", clip = 5.0, epsilon_budget = 1000.0 }}
latency.delay.kind = "none"
aggregation.optimizer = "{optimizer}"
evaluation.every = 1
[workload]
dataset = "digits"
model = "{model}"
optimizer = "sgd"
learning_rate = 0.05
training = {training}
"""


@pytest.mark.end_to_end
@pytest.mark.parametrize(
    ("training", "changes"),
    [
        ('"scaffold"', {"policy": "all"}),
        ('"scaffold"', {"private": "true"}),
        ('{ kind = "feddyn", alpha = 0.1 }', {"policy": "all", "optimizer": "feddyn"}),
        ('"fedbn"', {"model": "fedts_fashion"}),
        ('{ kind = "moon", mu = 1.0 }', {"policy": "pns"}),
        ('"pausefl_reproduce.fedgen:FedGen"', {"policy": "all"}),
        ('"gofl"', {}),
    ],
)
@pytest.mark.slow
def test_every_method_runs_and_goes_on_over_the_network(training: str, changes: dict[str, str], tmp_path: Path) -> None:
    defaults = {"policy": "random", "private": "false", "model": "mlp", "optimizer": "sgd"}
    (tmp_path / "small.toml").write_text(SMALL.format(training=training, **defaults | changes))
    played("run", tmp_path / "small.toml", "--run-dir", tmp_path / "run")
    summary = summary_of(tmp_path / "run")
    assert summary["rounds"] == 3
    assert not summary["failures"]
    model = load_file(tmp_path / "run/model.safetensors")
    size, has_control = sum(tensor.size for tensor in model.values()), training == '"scaffold"'
    assert not any(name.startswith("control/") for name in model)
    assert summary["model_size"] == size * (2 if has_control else 1)
    if changes.get("private"):
        assert summary["vector_epsilon_max"] == summary["max_epsilon_spent"] > 0
    if changes.get("policy") == "all":  # all states are restored, so round 3 gives the same model again
        again = run("run", "--resume", tmp_path / "run", "--back-to", "2")
        assert again.returncode == 0, again.stderr
        for name, tensor in load_file(tmp_path / "run/model.safetensors").items():
            assert np.array_equal(tensor, model[name]), name
