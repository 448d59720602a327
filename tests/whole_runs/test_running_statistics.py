"""Running statistics of batch normalisation: averaged beside the update, or each client's own."""

import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from pausefl.experiment.loading import parse_experiment
from pausefl.experiment.population.behaviours import GaussianUpdate, ScaledUpdate
from pausefl.runtime.evaluator.model import Evaluator
from pausefl_client.privacy.ledger import Ledger, ReleaseKey
from pausefl_client.privacy.mechanism import Mechanism, NumpyLaplace
from pausefl_client.privacy.release import ReleasePrivacy, Releaser
from pausefl_client.training.models import build_model
from pausefl_client.training.torch_trainer import TorchTrainer
from pausefl_client.training.trainer import StatisticsAt, TrainingSettings
from pausefl_proto.budget import Budget
from pausefl_proto.encoding import ENCODINGS, Encoding, TopShare
from pausefl_proto.errors import ConfigError, WireError
from pausefl_proto.wire import Manifest, TensorSpec
from pausefl_server.connections.answer_limits import AnswerLimits
from pausefl_server.model.aggregation import Aggregation
from pausefl_server.model.global_model import GlobalModel
from pausefl_server.model.optimizers import ServerOptimizer
from pausefl_server.model.staleness import Asynchronous
from pausefl_server.rounds.aggregation import WeightedUpdate, discounted
from rigs import own_models
from rigs.own_models import DIGITS, RUN, played, trainer_of


@pytest.fixture(autouse=True)
def _its_models_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "own", own_models)


def norm_trainer(statistics: StatisticsAt) -> TorchTrainer:
    settings = TrainingSettings("sgd", 0.1, batch_size=20, statistics=statistics)
    return trainer_of(build_model("own:batch_norm", (1, 8, 8), 10, seed=1), settings)


def test_averaged_statistics_travel_as_they_are_behind_the_change_of_the_parameters() -> None:
    trainer = norm_trainer("average")
    d, manifest = 1_242, trainer.manifest
    assert (manifest.size, manifest.model_size, manifest.charged.size) == (d + 32, d, d)
    theta = trainer.vector.values()
    update = trainer.train(theta, round=1).update
    state = trainer.model.state_dict()
    assert np.array_equal(update[d:], torch.cat((state["2.running_mean"], state["2.running_var"])).numpy())
    assert state["2.num_batches_tracked"] == 0
    assert trainer.state() == b""
    assert np.array_equal(trainer.train(theta, round=1).update, update)  # it begins with the server's


def test_local_statistics_stay_and_survive_a_restart() -> None:
    trainer, restarted = norm_trainer("local"), norm_trainer("local")
    theta = trainer.vector.values()
    assert trainer.manifest.size == theta.size == 1_242
    fresh = {name: tensor.clone() for name, tensor in trainer.vector.statistics.items()}
    trainer.train(theta, round=1)
    kept = {name: tensor.clone() for name, tensor in trainer.vector.statistics.items()}
    restarted.restore(trainer.state())
    for name, statistic in restarted.vector.statistics.items():
        assert torch.equal(statistic, kept[name])
        assert not torch.equal(statistic, fresh[name])
    restarted.restore(b"")
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
    identity = {"unit": "coordinate", "examples": "e", "noise": "fresh"}
    with closing(Ledger(tmp_path / "a.db", budget, **identity)) as ledger:
        rng = np.random.default_rng(1)
        privacy = ReleasePrivacy(Mechanism("coordinate", 0.02), ledger, lambda _: NumpyLaplace(rng))
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
    late = WeightedUpdate("a", np.array([4, 4, 3], np.float32), 7.0, staleness=3)
    model = GlobalModel.start(np.zeros(3, np.float32), ServerOptimizer(), model_size=2, statistics_size=1)
    assert discounted(late, Asynchronous(), model).vector == pytest.approx([2, 2, 3])


def test_a_negative_variance_is_rejected() -> None:
    manifest = Manifest((TensorSpec("w", (2,)),)).with_statistics({"running_mean": (1,), "running_var": (1,)})
    limits = AnswerLimits(4, statistics=manifest.statistics)
    limits.check(np.array([-1, -1, -1, 0], np.float32), 0.0)
    with pytest.raises(WireError, match="a negative variance in statistics/running_var"):
        limits.check(np.array([1, 1, 1, -1e-9], np.float32), 0.0)


def accuracy_of(file: Path) -> float:
    """On the test set, of a model that torch alone has read."""
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
        {"privacy.epsilon_budget": 1e6, "privacy.clip": 0.1},
        {
            "privacy.epsilon_budget": 1e6,
            "privacy.clip": 0.1,
            "workload.statistics": "average",
            "privacy.disclose": ["statistics"],
        },
    ],
)
def test_the_file_holds_the_statistics_the_model_was_evaluated_with(tmp_path: Path, changes: dict[str, Any]) -> None:
    summary = played(tmp_path, "batch_norm", **changes, **{"workload.max_steps": 20, "experiment.rounds": 4})
    for file, key in (("model", "final_accuracy"), ("best_model", "best_accuracy")):
        assert accuracy_of(tmp_path / f"{file}.safetensors") == pytest.approx(summary[key])
    assert summary["final_accuracy"] > 0.3
    assert summary["model_size"] == (2 if changes.get("workload.training") == "scaffold" else 1) * 1_242


def test_a_model_that_diverged_leaves_no_trace_in_the_next_ones_statistics() -> None:
    evaluator = Evaluator("digits", "own:batch_norm", seed=1, statistics="local")
    theta = evaluator.initial.theta_0
    before = evaluator.evaluate(theta, ["test"], subset=True)
    evaluator.evaluate(np.full_like(theta, np.nan), ["test"], subset=True)
    after = evaluator.evaluate(theta.copy(), ["test"], subset=True)
    assert after.evaluations == before.evaluations
    assert np.array_equal(after.statistics, before.statistics)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"workload.statistics": "average"}, r'add privacy\.disclose = \["statistics"\], or set "local"'),
        (
            {"workload.statistics": "average", "workload.training": "fedbn", "privacy.enabled": False},
            r'goes without workload\.training = "fedbn"',
        ),
    ],
)
def test_statistics_are_averaged_only_where_that_was_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=rf'workload\.statistics = "average": .*{message}'):
        parse_experiment("", {**RUN, **changes})
