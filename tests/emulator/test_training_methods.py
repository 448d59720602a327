"""Ways to train: any torch optimizer and schedule, tasks besides classification, and methods with a state."""

import math
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from pausefl.experiment.client_records import method_of
from pausefl.experiment.experiment import parse_experiment
from pausefl.runtime.client.plan import client_plan
from pausefl.runtime.client.torch_trainers import make_torch_trainers
from pausefl_client.data.datasets import Dataset, Examples, load_dataset
from pausefl_client.data.partition import PARTITIONERS, Dealt, partition
from pausefl_client.data.tasks import LearningTask
from pausefl_client.registries import OPTIMIZERS, SCHEDULES, TRAINING_METHODS, WITH_CONTROL
from pausefl_client.training.method import Batch, TrainingMethod
from pausefl_client.training.methods.fedprox import FedProx
from pausefl_client.training.model_vector import ModelVector
from pausefl_client.training.models import build_model
from pausefl_client.training.optimizers import LearningRates
from pausefl_client.training.tasks import Classification, Regression
from pausefl_client.training.torch_trainer import LocalData, TorchTrainer
from pausefl_client.training.trainer import TrainingSettings
from pausefl_proto.errors import ConfigError
from pausefl_proto.wire import Vector
from rigs.own_models import evaluator_of

CPU = torch.device("cpu")
torch.set_num_threads(1)  # as in clients
EXAMPLES = load_dataset("digits", seed=1).train.take(np.arange(90))


def network() -> nn.Module:
    """A network with normalisation, which FedBN needs. Weights are a transposed matrix, and columns of one."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 10))
    model[1].weight = nn.Parameter((torch.randn(64, 32) / 8).t())
    model[4].weight = nn.Parameter((torch.randn(10, 40) / 6)[:, :32])
    vars(model)["kept"] = {"features": [model(torch.zeros(1, 64))]}  # as a pass leaves them in models of some users
    return model


def trainer_of(settings: TrainingSettings, method: TrainingMethod | None = None) -> TorchTrainer:
    return TorchTrainer(network(), LocalData(EXAMPLES), settings, device=CPU, seed=1, client_id="a", method=method)


def theta_of(trainer: TorchTrainer) -> Vector:
    """The network's values, followed by zeros if the trainer has a control variate."""
    theta = ModelVector(network()).values()
    return np.pad(theta, (0, trainer.manifest.size - theta.size))


def updates(trainer: TorchTrainer, rounds: int, first: int = 1) -> list[Vector]:
    theta = theta_of(trainer)
    return [trainer.train(theta, round=t).update for t in range(first, first + rounds)]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_trains_and_goes_on_after_a_restart(name: str) -> None:
    options = {} if name == "rprop" else {"weight_decay": 0.01}
    settings = TrainingSettings(name, learning_rate=0.01, optimizer_options=options)
    whole = updates(trainer_of(settings), 3)
    assert all(np.isfinite(update).all() and update.any() for update in whole)
    first = trainer_of(settings)
    updates(first, 2)
    restarted = trainer_of(settings)
    restarted.restore(first.state())
    assert np.array_equal(updates(restarted, 1, first=3)[0], whole[2])


PARAMETERS: Mapping[str, dict[str, Any]] = {
    "constant": {"factor": 0.5, "total_iters": 2},
    "linear": {"start_factor": 1.0, "end_factor": 0.1, "total_iters": 10},
    "step": {"step_size": 2, "gamma": 0.5},
    "multi-step": {"milestones": [2, 5], "gamma": 0.1},
    "exponential": {"gamma": 0.5},
    "polynomial": {"total_iters": 10},
    "cosine": {"T_max": 10},
    "warm-restarts": {"T_0": 4},
}


@pytest.mark.parametrize("kind", SCHEDULES)
def test_every_schedule_depends_on_the_round_alone(kind: str) -> None:
    settings = TrainingSettings("sgd", 0.1, schedule={"kind": kind, **PARAMETERS[kind]})
    rates = [LearningRates(settings).at(t) for t in range(1, 9)]
    assert len(set(rates)) > 1
    assert LearningRates(settings).at(8) == rates[7]
    updates(trainer_of(settings), 7)
    assert np.array_equal(updates(trainer_of(settings), 1, first=8)[0], updates(trainer_of(settings), 8)[7])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimizer": "adamx"}, 'workload.optimizer = "adamx": did you mean'),
        ({"optimizer": "torch.nn:Linear"}, "must be a subclass of torch.optim.Optimizer"),
        ({"optimizer_options": {"momentun": 0.9}}, "workload.optimizer_options: TypeError: .*'momentun'"),
        ({"optimizer": "sgd", "optimizer_options": {"momentum": -1.0}}, "workload.optimizer_options: ValueError: .*-1"),
        ({"optimizer_options": {"fused": True, "foreach": True}}, "optimizer_options: RuntimeError: .*`foreach`"),
        ({"schedule": {"kind": "cosin"}}, 'workload.schedule.kind = "cosin": did you mean cosine'),
        ({"schedule": {"T_max": 3}}, 'workload.schedule.kind = "": must be one of constant, linear'),
        ({"schedule": {"kind": "cosine", "T_max": 0}}, "workload.schedule: its first step failed: ZeroDivisionError"),
        ({"schedule": {"kind": "cosine", "t_max": 3}}, "workload.schedule: TypeError: .*'t_max'"),
        ({"schedule": {"kind": "cosine", "T_max": 1, "eta_min": -0.5}}, "rate of round 2 is -0.5: must be finite and"),
        ({"schedule": {"kind": "torch:is_tensor"}}, 'kind = "torch:is_tensor": must return a .*; returned bool$'),
    ],
)
def test_a_wrong_setting_is_one_line(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        trainer_of(TrainingSettings(**settings))
    assert "\n" not in str(caught.value)


def test_a_schedule_is_that_of_torch_and_a_learning_rate_that_no_round_can_have_is_told_with_its_round() -> None:
    halved = LearningRates(TrainingSettings("adamw", 0.1, schedule={"kind": "step", "step_size": 2, "gamma": 0.5}))
    assert [halved.at(t) for t in (1, 2, 3, 5)] == pytest.approx([0.1, 0.1, 0.05, 0.025])
    rates = LearningRates(TrainingSettings("sgd", 0.1, schedule={"kind": "cosine", "T_max": 4, "eta_min": -0.09}))
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"learning rate of round 4 is -0\.06.*: must be finite and at least 0$"):
            rates.at(5)
    assert rates.at(1) == 0.1
    still = TrainingSettings("sgd", optimizer_options={"lr": 0.0}, schedule={"kind": "constant"})
    assert not updates(trainer_of(still), 1)[0].any()


class Named(FedProx):
    """A user's method, named by its module. Of the others, SCAFFOLD and FedDyn keep a state."""


METHODS: Mapping[str, dict[str, Any]] = {name: {} for name in TRAINING_METHODS} | {
    "fedprox": {"mu": 0.5},
    "feddyn": {"alpha": 0.1},
    "moon": {"mu": 1.0},
    f"{__name__}:Named": {"mu": 0.2},
}


def made(kind: str) -> TrainingMethod:
    found: TrainingMethod = TRAINING_METHODS.find(kind, "workload.training")(**METHODS[kind])
    return found


def test_registry_and_methods_agree_on_control_variates_and_an_experiment_names_its_method() -> None:
    assert {kind for kind in METHODS if made(kind).has_control} == WITH_CONTROL
    own = parse_experiment("[workload]\ntraining = 'pausefl_client.training.methods.scaffold:Scaffold'").workload
    with pytest.raises(ConfigError, match=r"^workload.training: Scaffold.has_control must be False; .* \"scaffold\""):
        method_of(own)
    experiment = parse_experiment(f'[workload]\ntraining = {{ kind = "{__name__}:Named", mu = 0.3 }}')
    first, second = method_of(experiment.workload), method_of(experiment.workload)
    assert isinstance(first, Named)
    assert first.mu == 0.3
    assert first is not second  # each client has its own
    assert type(method_of(parse_experiment("[workload]\nproximal_mu = 0.5").workload)).__name__ == "FedProx"


@pytest.mark.parametrize("kind", METHODS)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_every_method_repeats_goes_on_after_a_restart_and_begins_anew(kind: str, optimizer: str) -> None:
    settings = TrainingSettings(optimizer, 0.05)
    whole = updates(trainer_of(settings, made(kind)), 4)
    first = trainer_of(settings, made(kind))
    assert all(np.array_equal(a, b) for a, b in zip(updates(first, 2), whole, strict=False))
    restarted = trainer_of(settings, made(kind))
    restarted.restore(first.state())
    assert all(np.array_equal(a, b) for a, b in zip(updates(restarted, 2, first=3), whole[2:], strict=True))
    restarted.restore(b"")
    assert np.array_equal(updates(restarted, 1)[0], whole[0])


@pytest.mark.parametrize("kind", METHODS)
def test_every_method_leaves_theta_alone_and_learns(kind: str) -> None:
    trainer = trainer_of(TrainingSettings(), made(kind))
    theta, losses = theta_of(trainer), []
    theta.flags.writeable = False
    for t in range(1, 8):
        outcome = trainer.train(theta, round=t)
        theta = theta + outcome.update
        losses.append(outcome.loss)
    assert losses[-1] < losses[0]


def test_a_method_of_ones_own_replaces_loss_and_optimizer_whose_rates_stay_in_proportion() -> None:
    class Doubled(TrainingMethod):
        def optimizer(self, model: nn.Module, settings: TrainingSettings) -> torch.optim.Optimizer:
            first, *others = model.parameters()
            groups: list[dict[str, Any]] = [{"params": [first], "lr": 3 * settings.learning_rate}, {"params": others}]
            return torch.optim.SGD(groups, lr=settings.learning_rate)

        def loss(self, model: nn.Module, batch: Batch, task: LearningTask) -> torch.Tensor:
            return 2 * super().loss(model, batch, task)

    one_step = TrainingSettings("sgd", 0.1, batch_size=len(EXAMPLES))
    halving = replace(one_step, schedule={"kind": "constant", "factor": 0.5})
    (own,), (plain,) = updates(trainer_of(halving, Doubled()), 1), updates(trainer_of(one_step), 1)
    np.testing.assert_allclose(own, np.where(np.arange(own.size) < 64 * 32, 3, 1) * plain, atol=1e-6)


class Slower(torch.optim.SGD):
    """Steps that grow shorter. It counts them, and remembers no tensor."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, lr)
        self.param_groups[0]["steps"] = 0
        self.register_step_post_hook(lambda *_: self.shorten())

    def shorten(self) -> None:
        (group,) = self.param_groups
        assert all(parameter.grad is not None for parameter in group["params"])
        group["steps"] += 1
        group["lr"] = np.float64(self.defaults["lr"]) / group["steps"]


class Counting(Slower):
    """Counts in a state of all parameters, under a name of its own."""

    state: Any

    def shorten(self) -> None:
        self.param_groups[0]["steps"] = int(self.state["k"]) if self.state else 0
        super().shorten()
        self.state["k"] = torch.tensor(self.param_groups[0].pop("steps"))

    def state_dict(self) -> dict[str, Any]:
        saved = super().state_dict()
        return {"all": saved.pop("state"), **saved}

    def load_state_dict(self, state_dict: Any) -> None:
        super().load_state_dict({"state": state_dict["all"], "param_groups": state_dict["param_groups"]})


@pytest.mark.parametrize("schedule", [{}, {"kind": "exponential", "gamma": 0.5}])
@pytest.mark.parametrize("kind", ["Slower", "Counting"])
def test_what_an_optimizer_of_ones_own_counts_survives_a_restart(kind: str, schedule: dict[str, Any]) -> None:
    settings = TrainingSettings(f"{__name__}:{kind}", 0.1, schedule=schedule)
    first, restarted = trainer_of(settings), trainer_of(settings)
    assert first.state() == b""
    whole = updates(first, 2)
    restarted.restore(first.state())
    assert np.array_equal(updates(restarted, 1, first=3)[0], updates(first, 1, first=3)[0])
    restarted.restore(b"")
    assert np.array_equal(updates(restarted, 1)[0], whole[0])
    scheduled = trainer_of(TrainingSettings("sgd", 0.1, schedule=schedule))
    updates(scheduled, 3)
    assert scheduled.state() == b""


class Curved(torch.optim.SGD):
    """Descent whose settings hold a function, which no file can give back."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, lr)
        self.param_groups[0]["curve"] = lambda step: lr / step


def test_an_optimizer_whose_settings_hold_a_function_leaves_no_state() -> None:
    trainer = trainer_of(TrainingSettings(f"{__name__}:Curved", 0.1))
    updates(trainer, 1)
    assert trainer.state() == b""


class Twice(TrainingMethod):
    """Goes through a round's batches twice, as FedRep does for its two parts of a model."""

    def local_steps(self, model: nn.Module, optimizer: Any, batches: Any, task: Any) -> list[torch.Tensor]:
        first, again = [*batches], [*batches]
        assert len(batches) == len(first) == len(again) == 30
        assert all(torch.equal(a, b) for pair in zip(first, again, strict=True) for a, b in zip(*pair, strict=True))
        return super().local_steps(model, optimizer, batches, task)


def test_a_method_may_go_through_its_batches_again() -> None:
    settings = TrainingSettings("sgd", batch_size=3)
    (twice,), (plain,) = updates(trainer_of(settings, Twice()), 1), updates(trainer_of(settings), 1)
    assert np.array_equal(twice, plain)


class Returning(TrainingMethod):
    """A method that returns these in place of valid values."""

    def __init__(self, **returned: object) -> None:
        for name, value in returned.items():
            setattr(self, name, lambda *_, value=value: value)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ({"loss": None}, r"Returning.loss, .* must return a scalar tensor to differentiate; returned NoneType"),
        ({"loss": torch.ones(3)}, r"Returning.loss, .* returned one of shape \(3,\)"),
        ({"loss": torch.ones(())}, r"Returning.loss, .* returned one that depends on no parameter of the model"),
        ({"local_steps": None}, r"Returning.local_steps must return a list of tensors, .*; returned NoneType"),
        ({"local_steps": []}, r"Returning.local_steps must return a list of tensors, .*; returned an empty list"),
        ({"local_steps": [0.5]}, r"Returning.local_steps must return a list of tensors, .*; returned a list of others"),
        ({"optimizer": (None, None)}, r"Returning.optimizer must return one torch.optim.Optimizer .*; returned tuple"),
        ({"state": None}, r"Returning.state\(\) must return a dict; returned NoneType"),
        ({"state": {"x": [object()]}}, r"state\(\) may hold tensors, numbers, texts, lists and dicts; it holds object"),
        ({"state": {"x": np.float64(1)}}, r"state\(\) may hold .*; it holds float64"),
    ],
)
def test_what_a_method_should_return_is_said_in_one_line(returned: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=rf"^workload.training: .*{message}$") as raised:
        trainer = trainer_of(TrainingSettings("sgd"), Returning(**returned))
        trainer.train(theta_of(trainer), round=1)
        trainer.state()
    assert "\n" not in str(raised.value)


def test_what_a_method_may_remember_is_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    state = {"a": torch.ones(2), "b": [1, 0.5, "x", None, True, (b"y",)], "c": {1: OrderedDict(d={2})}}
    kept: list[Mapping[str, Any]] = []
    trainer = trainer_of(TrainingSettings("sgd"), Returning(state=state))
    monkeypatch.setattr(trainer.method, "restore", kept.append)
    trainer.restore(trainer.state())
    assert str(kept[0]) == str(state)


def test_tokens_are_classified_one_by_one_and_a_regression_is_scored_by_its_share_of_the_variance() -> None:
    outputs, targets = torch.tensor([[[9.0, 0.0], [0.0, 9.0], [0.0, 9.0]]]), torch.tensor([[0, 0, -1]])
    task = Classification()
    assert task.score(outputs, targets).tolist() == [1.0, 0.0]
    assert float(task.loss(outputs, targets)) == pytest.approx(4.5, abs=1e-3)
    assert torch.equal(task.loss(outputs.mT, targets), task.loss(outputs, targets))  # classes may be second
    assert torch.equal(task.score(outputs.mT, targets), task.score(outputs, targets))
    values = torch.tensor([0.0, 1.0, 2.0, 3.0])
    regression = Regression(variance=float(values.var(correction=0)))
    assert float(regression.score(values[:, None], values).mean()) == 1
    assert float(regression.score(torch.full((4, 1), 1.5), values).mean()) == pytest.approx(0, abs=1e-6)
    assert float(regression.loss(values[:, None] + 2, values)) == 4
    with pytest.raises(ValueError, match="variance = 0"):
        Regression(0.0)


def regression_set(seed: int) -> Dataset:
    inputs = np.random.default_rng(seed).standard_normal((300, 4), np.float32)
    examples = Examples(inputs, (inputs @ np.array([1, -2, 3, 0.5], np.float32)).astype(np.float32))
    train, validation, test = (examples.take(rows) for rows in np.split(np.arange(300), [200, 250]))
    return Dataset("plane", train, validation, test, classes=1, task=Regression(14.0))


def test_a_regression_is_trained_and_evaluated() -> None:
    evaluator = evaluator_of(f"{__name__}:regression_set")
    settings = TrainingSettings("adam", 0.02, epochs=40, max_steps=None)
    evaluator.rehearse(settings)
    data = regression_set(1)
    model, local = build_model("mlp", (4,), 1, 1), LocalData(data.train, task=data.task)
    trainer = TorchTrainer(model, local, settings, device=CPU, seed=1, client_id="a")
    assert trainer.label_counts == {}
    theta = evaluator.initial.theta_0
    models = theta, theta + trainer.train(theta, round=1).update
    before, after = (evaluator.evaluate(each, ["test"], subset=False).evaluations[0] for each in models)
    assert before.metric == "R²"
    assert before.accuracy < 0.3
    assert 0.8 < after.accuracy <= 1
    assert after.loss < before.loss
    changes = {"clients.count": 2, "selection.m": 1, "workload.dataset": f"{__name__}:regression_set"}
    plan = client_plan(parse_experiment("", changes)).training
    one, other = (vars(trainer)["task"] for trainer in make_torch_trainers(plan, plan.client_ids).values())
    assert one == other is not one  # a task may remember what a client has seen
    vars(data.task)["lock"] = threading.Lock()  # cannot be copied
    assert TorchTrainer(model, local, settings, device=CPU, seed=1, client_id="a").task is data.task


class Pairwise(TrainingMethod):
    """Takes two batches for each of its steps, as Per-FedAvg does."""

    def local_steps(self, model: nn.Module, optimizer: Any, batches: Any, task: Any) -> list[torch.Tensor]:
        every = list(batches)
        return [self.step(model, optimizer, second, task) for _, second in zip(every[::2], every[1::2], strict=False)]


def test_a_method_that_takes_several_batches_a_step_is_rehearsed_with_some() -> None:
    assert evaluator_of(f"{__name__}:regression_set").rehearse(TrainingSettings(), Pairwise()) == ""
    with pytest.raises(ConfigError, match="returned an empty list"):  # as each client will
        evaluator_of(f"{__name__}:regression_set").rehearse(TrainingSettings(max_steps=1), Pairwise())


def partly_labelled(seed: int) -> Dataset:
    """Digits, of which some do not count. The last batch that is evaluated has no others."""
    examples = load_dataset("digits", seed=seed).train.take(np.arange(501))
    examples.labels[::4] = -1
    return Dataset("partly", examples, examples, examples, classes=10, task=Classification())


def test_examples_that_do_not_count_are_left_out() -> None:
    evaluator = evaluator_of(f"{__name__}:partly_labelled")
    evaluator.rehearse(TrainingSettings())
    (found,) = evaluator.evaluate(evaluator.initial.theta_0, ["test"], subset=False).evaluations
    assert math.isfinite(found.loss)
    with pytest.raises(ConfigError, match="deals out by class"):
        partition(PARTITIONERS["shards"](), Dealt(partly_labelled(1).train.labels, 10, 5), seed=1)


def test_targets_without_a_task_or_classes_are_refused_in_one_line() -> None:
    data = regression_set(1)
    with pytest.raises(ConfigError, match="needs a task"):
        Dataset("plane", data.train, data.validation, data.test, classes=1)
    dealt = Dealt(data.train.labels, classes=1, clients=5)
    assert len(partition(PARTITIONERS["iid"](), dealt, seed=1)) == 5
    for kind in set(PARTITIONERS) - {"iid", "by-client"}:
        with pytest.raises(ConfigError, match="deals out by class"):
            partition(PARTITIONERS[kind](), dealt, seed=1)
