"""Which parts of a user's model are sent, noised and charged, and which stay; running statistics."""

import math
import sys
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.parametrizations import spectral_norm

import pausefl
from pausefl.experiment.experiment import parse_experiment
from pausefl.experiment.population.behaviours import GaussianUpdate, ScaledUpdate
from pausefl.runtime.evaluator.preflight import try_out
from pausefl_client.privacy.ledger import Ledger, ReleaseKey
from pausefl_client.privacy.mechanism import Mechanism, NumpyLaplace
from pausefl_client.privacy.release import ReleasePrivacy, Releaser
from pausefl_client.training.model_vector import ModelVector
from pausefl_client.training.models import build_model
from pausefl_client.training.optimizers import make_optimizer
from pausefl_client.training.torch_trainer import TorchTrainer
from pausefl_client.training.trainer import StatisticsAt, TrainingSettings
from pausefl_proto.budget import Budget
from pausefl_proto.encoding import ENCODINGS, Encoding, TopShare
from pausefl_proto.errors import ConfigError, WireError
from pausefl_proto.wire import Manifest, TensorSpec
from pausefl_server.connections.exchange import update_of
from pausefl_server.model.aggregation import Aggregation
from pausefl_server.model.global_model import GlobalModel
from pausefl_server.model.optimizers import ServerOptimizer
from pausefl_server.model.staleness import Asynchronous
from rigs import own_models
from rigs.own_models import DIGITS, FROZEN_NORM, RUN, evaluator_of, played, tokens, trainer_of
from rigs.settings import server_settings


@pytest.fixture(autouse=True)
def _this_module_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "own", own_models)


@pytest.mark.parametrize(
    ("model", "size", "same"),
    [
        ("bool_mask", 1_434, ["mask"]),
        ("inf_mask", 1_434, ["mask"]),
        ("Positions", 911, ["position_ids", "table"]),
        ("frozen_backbone", 650, ["1.weight", "1.bias"]),
        ("tied_layers", 4_874, []),
        ("Mixed", 1_482, []),
        ("FrozenNorm", 170, FROZEN_NORM),
    ],
)
def test_what_does_not_train_is_neither_noised_nor_charged_and_stands_in_the_file(
    tmp_path: Path, model: str, size: int, same: list[str]
) -> None:
    summary = played(tmp_path, model)
    assert summary["model_size"] == size
    assert summary["vector_epsilon_max"] == pytest.approx(size * summary["max_epsilon_spent"])
    made = build_model(f"own:{model}", (1, 8, 8), 10, seed=1)
    before = {name: tensor.clone() for name, tensor in made.state_dict().items()}
    for name in ("model", "best_model"):
        state = safetensors.torch.load_file(tmp_path / f"{name}.safetensors")
        made.load_state_dict(state)
        for key, tensor in made.state_dict().items():
            assert torch.equal(tensor, before[key]) == (key in same)
            assert key not in same or state[key].dtype == before[key].dtype
    of_run = pausefl.Run(tmp_path).model()
    assert all(np.array_equal(of_run[key], before[key].float().numpy()) for key in same)


def test_models_of_equal_tensors_differ_where_what_does_not_train_differs() -> None:
    """Two hosts have different weights of the same backbone. The server must see two different models."""
    model, other = (build_model("own:frozen_backbone", (1, 8, 8), 10, seed=1) for _ in range(2))
    assert ModelVector(model).manifest == ModelVector(other).manifest
    with torch.no_grad():
        other.get_parameter("1.weight")[0, 0] += 1
    ours, theirs = ModelVector(model).manifest, ModelVector(other).manifest
    assert ours.tensors == theirs.tensors
    assert ours != theirs


def test_sparse_gradients_train_as_torchs_own_optimizer_trains_them(tmp_path: Path) -> None:
    model, same = (build_model("own:Bag", (8,), 3, seed=1, has_tokens=False) for _ in range(2))
    data = tokens(1).train.take(np.arange(10))
    trainer = trainer_of(model, TrainingSettings("sgd", 0.5, batch_size=10), data)
    theta = trainer.vector.values()
    update = trainer.train(theta, round=1).update
    functional.cross_entropy(same(torch.tensor(data.inputs).long()), torch.tensor(data.labels)).backward()  # type: ignore[no-untyped-call]  # untyped there
    torch.optim.SGD(same.parameters(), 0.5).step()
    np.testing.assert_allclose(update, ModelVector(same).values() - theta, atol=1e-6)
    changes = {"workload.dataset": "own:tokens", "workload.optimizer": "sgd"}
    for training in ("plain", "scaffold"):  # scaffold changes gradients
        assert played(tmp_path / training, "Bag", **changes, **{"workload.training": training})["rounds"] == 2


def test_parameters_may_get_gradients_later_than_others() -> None:
    """As those of a mixture's experts. torch's fused SGD takes no momentum for some parameters alone."""
    of_a_group, first, later = parameters = [nn.Parameter(torch.zeros(1)) for _ in range(3)]
    optimizer = make_optimizer(TrainingSettings("sgd", 1.0, optimizer_options={"momentum": 0.5}), parameters[:1])
    optimizer.add_param_group({"params": [first, later]})
    of_a_group.grad = torch.ones(1)
    for parameter in (first, later):
        parameter.grad = torch.ones(1)
        optimizer.step()
    assert [parameter.item() for parameter in parameters] == [-2.5, -2.5, -1.0]
    trainer = trainer_of(Odd(""), TrainingSettings())
    trainer.model.late = nn.Parameter(torch.zeros(10))
    with pytest.raises(ConfigError, match="late came, went, was exchanged"):
        trainer.train(trainer.vector.values(), round=3)


def test_half_precision_takes_torchs_own_steps_and_what_is_unused_does_not_move(tmp_path: Path) -> None:
    parameter = nn.Parameter(torch.zeros(16, dtype=torch.bfloat16))
    parameter.grad = torch.arange(16).bfloat16()
    make_optimizer(TrainingSettings("sgd", 1.0), [parameter]).step()
    assert parameter.tolist() == [-gradient for gradient in range(16)]
    model = build_model("own:Mixed", (1, 8, 8), 10, seed=1)
    trainer = trainer_of(model.requires_grad_(), TrainingSettings("sgd", 1e-30))
    theta = trainer.vector.values() + np.float32(1e-4)  # a value that bfloat16 does not have
    assert np.abs(trainer.train(theta, round=1).update).max() < 1e-9
    assert played(tmp_path, "Mixed", **{"workload.training": "scaffold", "workload.optimizer": "sgd"})["rounds"] == 2


class Odd(nn.Module):
    """A model with one feature that a run cannot carry."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what
        self.out: nn.Module = nn.Linear(64, 10)
        if what == "parameter":
            self.phase = nn.Parameter(torch.ones(2, dtype=torch.complex64))
        if what == "buffer":
            self.register_buffer("phase", torch.ones(2, dtype=torch.complex64))
        if what == "lazy":
            self.out = nn.LazyLinear(10)
        if what == "spectral":
            self.out = spectral_norm(self.out)
        if what == "NaN":
            self.scale = nn.Parameter(torch.tensor([1.0, math.nan]))
        if what == "aliased":
            self.tied = nn.Parameter(self.out.get_parameter("weight").t())
        if what == "unseeded":
            self.register_buffer("table", torch.tensor(np.random.default_rng().random(2)))
        if what in {"teacher", "unfrozen"}:
            self.shift = nn.Parameter(torch.zeros(10), requires_grad=False)

    def get_extra_state(self) -> Any:
        return {"steps": 3} if self.what == "extra" else torch.ones(1)

    def set_extra_state(self, state: Any) -> None: ...

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and self.what == "teacher":
            self.shift.data.add_(1)
        if self.what == "unfrozen":
            self.shift.requires_grad_()
        scores: torch.Tensor = self.out(x.flatten(1))
        return scores.detach().requires_grad_() if self.what == "detached" else scores


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("parameter", r"the parameter phase is complex64; must be real and dense"),
        ("buffer", r"phase is complex64, which no model file holds; register the buffer with persistent=False"),
        ("lazy", r"out\.weight has no shape yet; call model\(torch\.zeros\(1, \*input_shape\)\) in the factory"),
        ("extra", r"_extra_state, of get_extra_state, is a dict; must be a tensor"),
        ("spectral", r"the buffer out\.parametrizations\.weight\.0\._u \(float32\) changes while the model trains"),
        ("NaN", r"scale holds values that are not finite before any training"),
        ("aliased", r"tied and out\.weight share memory"),
        ("unseeded", r"table is another each time the model is made; draw from torch's generator"),
        ("teacher", r"shift, which is frozen, changes while the model trains"),
        ("unfrozen", r"shift came, went, was exchanged or unfrozen in a training step"),
        ("detached", r"one training step gives no parameter a gradient"),
    ],
)
def test_what_cannot_be_carried_is_refused_by_name(what: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_models, "odd", lambda *_: Odd(what), raising=False)
    experiment = parse_experiment("", {**RUN, "workload.model": "own:odd"})
    with pytest.raises(ConfigError, match=rf"workload\.model.*{message}"):
        try_out(experiment, print)


def test_extra_state_that_is_a_tensor_stands_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_models, "odd", lambda *_: Odd(""), raising=False)
    played(tmp_path, "odd")
    assert torch.equal(safetensors.torch.load_file(tmp_path / "model.safetensors")["_extra_state"], torch.ones(1))


@pytest.mark.slow
def test_a_model_that_torch_compiles_is_trained_and_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled(*_: object) -> nn.Module:
        (model := Odd("")).compile(backend="eager")
        return model

    monkeypatch.setattr(own_models, "compiled", compiled, raising=False)
    evaluator_of("digits", "own:compiled").rehearse(TrainingSettings())


def test_validate_counts_what_travels(capsys: pytest.CaptureFixture[str]) -> None:
    local: dict[str, Any] = {"workload.statistics": "local"}
    average = {"workload.statistics": "average", "privacy.disclose": ["statistics"], "experiment.rounds": 4}
    for model, keys, said in (
        ("frozen_backbone", local, "650 trained values travel, 4,160 constants stay"),
        ("frozen_backbone", {"workload.training": "scaffold"}, "1,300 trained values and control variates travel"),
        ("batch_norm", local, "1,242 trained values travel, 1 constants stay"),
        ("batch_norm", local, "32 are estimated on held-out data; a link below 0.0079 Mbit/s needs a greater"),
        ("batch_norm", average, "32 are averaged"),
        ("batch_norm", average, "0.51 times the clip bound in a client's release 1, and 0.53 times in release 2"),
    ):
        assert said in " ".join(try_out(parse_experiment("", {**RUN, "workload.model": f"own:{model}", **keys}), print))
    assert not capsys.readouterr().out


def norm_trainer(statistics: StatisticsAt) -> TorchTrainer:
    settings = TrainingSettings("sgd", 0.1, batch_size=20, statistics=statistics)
    model = build_model("own:batch_norm", (1, 8, 8), 10, seed=1)
    model.register_buffer("own", torch.zeros(2), persistent=False)
    return trainer_of(model, settings)


def test_averaged_statistics_travel_as_they_are_behind_the_change_of_the_parameters() -> None:
    trainer = norm_trainer("average")
    d, manifest = 1_242, trainer.manifest
    assert (manifest.size, manifest.model_size, manifest.charged.size) == (d + 32, d, d)
    theta = trainer.vector.values()
    update = trainer.train(theta, round=1).update
    state = trainer.model.state_dict()
    assert np.array_equal(update[d:], torch.cat((state["2.running_mean"], state["2.running_var"])).numpy())
    assert (int(state["2.num_batches_tracked"]), trainer.state()) == (0, b"")
    assert np.array_equal(trainer.train(theta, round=1).update, update)  # it starts from the server's statistics


def test_local_statistics_stay_and_survive_a_restart() -> None:
    trainer, restarted = norm_trainer("local"), norm_trainer("local")
    theta = trainer.vector.values()
    assert trainer.manifest.size == theta.size == 1_242
    fresh = {name: tensor.clone() for name, tensor in trainer.vector.statistics.items()}
    trainer.train(theta, round=1)
    kept = {name: tensor.clone() for name, tensor in trainer.vector.statistics.items()}
    trainer.model.own = torch.ones(3)  # as a pass may leave it
    restarted.restore(trainer.state())
    assert restarted.model.get_buffer("own").tolist() == [1, 1, 1]
    for name, statistic in restarted.vector.statistics.items():
        assert torch.equal(statistic, kept[name])
        assert not torch.equal(statistic, fresh[name])
    count = restarted.model.get_buffer("2.num_batches_tracked").add_(3)  # as a training that is broken off leaves it
    restarted.restore(b"")
    assert (int(count), restarted.model.get_buffer("own").tolist()) == (0, [0, 0])
    assert all(torch.equal(statistic, fresh[name]) for name, statistic in restarted.vector.statistics.items())


@pytest.mark.parametrize("behaviour", [GaussianUpdate(), ScaledUpdate(-10.0)])
def test_a_poisoned_update_has_statistics_that_can_be(behaviour: GaussianUpdate | ScaledUpdate) -> None:
    honest = norm_trainer("average")
    theta = honest.vector.values()
    update = honest.train(theta, round=1).update
    poisoned = behaviour.trainer(norm_trainer("average"), np.random.default_rng).train(theta, round=1).update
    assert np.array_equal(poisoned[1_242:], update[1_242:])
    assert not np.array_equal(poisoned[:1_242], update[:1_242])


@pytest.mark.parametrize("encoding", [*ENCODINGS.values(), TopShare(0.01, ENCODINGS["int8"])])
def test_a_release_leaves_statistics_bare_and_whole(tmp_path: Path, encoding: Encoding) -> None:
    budget, update = Budget(100.0, 0.04), np.ones(1_000, np.float32)
    with closing(Ledger(tmp_path / "a.db", budget, unit="coordinate", examples="e", noise="fresh")) as ledger:
        noise = NumpyLaplace(np.random.default_rng(1))
        privacy = ReleasePrivacy(Mechanism("coordinate", 0.02), ledger, lambda _: noise)
        released = Releaser(privacy, encoding, 10).release(update, ReleaseKey("run", 1, 1, ""))
        arrived = encoding.beside(10).decode(released.vector.tobytes(), 1_000)
        assert np.array_equal(arrived[-10:], update[-10:])
        assert np.abs(arrived[:-10]).max() < 0.5


def test_the_server_averages_statistics_plainly_whatever_its_optimizer_does() -> None:
    theta, optimizer = np.array([1, 1, 5, 9], np.float32), ServerOptimizer("fedadam", learning_rate=10.0)
    model = GlobalModel.start(theta, optimizer, model_size=2, statistics_size=2)
    updates = [np.array([0.1, 0.1, 1, 0], np.float32), np.array([0.1, 0.1, 4, 0], np.float32)]
    moved = model.updated(updates, np.array([10.0, 20.0]), Aggregation("krum"), optimizer)
    assert moved.theta[2:] == pytest.approx([3, 0])
    assert moved.theta[3] >= 0
    assert moved.optimizer_state.size == 4


def test_a_late_update_is_discounted_but_for_its_statistics() -> None:
    late, discounts = np.array([4, 4, 3], np.float32), np.array([Asynchronous().weight(3)])
    model = GlobalModel.start(np.zeros(3, np.float32), ServerOptimizer(), model_size=2, statistics_size=1)
    moved = model.updated([late], np.array([7.0]), Aggregation(), ServerOptimizer(), discounts=discounts)
    assert moved.theta == pytest.approx([2, 2, 3])


def test_a_negative_variance_is_rejected() -> None:
    manifest = Manifest((TensorSpec("w", (2,)),)).with_statistics({"running_mean": (1,), "running_var": (1,)})
    settings = server_settings(2, manifest=manifest)
    frames = Mock(**{"finish.side_effect": [np.array([-1, -1, -1, v], np.float32) for v in (0, -1e-9)]})
    assert update_of(frames, 0.0, settings).tolist() == [-1, -1, -1, 0]
    with pytest.raises(WireError, match="a negative variance in statistics/running_var"):
        update_of(frames, 0.0, settings)


PRIVATE: dict[str, Any] = {"privacy.epsilon_budget": 1e6, "privacy.clip": 0.1}


def accuracy_of(file: Path) -> float:
    """Accuracy on the test set of a model that torch alone has loaded."""
    model = build_model("own:batch_norm", (1, 8, 8), 10, seed=9).eval()
    model.load_state_dict(safetensors.torch.load_file(file))
    right = model(torch.tensor(DIGITS.test.inputs) / 127.5 - 1).argmax(1) == torch.tensor(DIGITS.test.labels)
    return float(right.double().mean())


@pytest.mark.parametrize(
    "changes",
    [
        {"privacy.enabled": False},
        {"privacy.enabled": False, "workload.statistics": "local"},
        {"privacy.enabled": False, "workload.training": "fedbn"},
        {"privacy.enabled": False, "workload.training": "scaffold", "workload.optimizer": "sgd"},
        PRIVATE,
        {**PRIVATE, "workload.statistics": "average", "privacy.disclose": ["statistics"]},
    ],
)
def test_the_file_holds_the_statistics_the_model_was_evaluated_with(tmp_path: Path, changes: dict[str, Any]) -> None:
    summary = played(tmp_path, "batch_norm", **changes, **{"workload.max_steps": 20, "experiment.rounds": 4})
    for file, key in (("model", "final_accuracy"), ("best_model", "best_accuracy")):
        assert accuracy_of(tmp_path / f"{file}.safetensors") == pytest.approx(summary[key])
    assert summary["final_accuracy"] > 0.3
    assert summary["model_size"] == (2 if changes.get("workload.training") == "scaffold" else 1) * 1_242


def test_a_model_that_diverged_leaves_no_trace_in_the_next_ones_statistics() -> None:
    evaluator = evaluator_of("digits", "own:batch_norm", statistics="local")
    theta = evaluator.initial.theta_0
    before = evaluator.evaluate(theta, ["test"], subset=True)
    evaluator.evaluate(np.full_like(theta, np.nan), ["test"], subset=True)
    after = evaluator.evaluate(theta.copy(), ["test"], subset=True)
    assert after.evaluations == before.evaluations
    assert np.array_equal(after.statistics, before.statistics)  # type: ignore[arg-type]  # None would fail
