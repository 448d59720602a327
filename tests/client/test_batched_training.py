"""Clients trained together learn what each learns alone, on the same batches, up to rounding."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from pausefl_client.batched import host as batched_host
from pausefl_client.batched import training as batched_training
from pausefl_client.batched.host import BatchedHost
from pausefl_client.batched.stack import ModelStack
from pausefl_client.batched.training import RoundBatches, check_stackable, train_together
from pausefl_client.data.datasets import Examples
from pausefl_client.registries import MODELS, OPTIMIZERS, TRAINING_METHODS
from pausefl_client.training.method import TrainingMethod
from pausefl_client.training.model_vector import ModelVector
from pausefl_client.training.models import build_model
from pausefl_client.training.tasks import Regression
from pausefl_client.training.torch_trainer import LocalData, TorchTrainer
from pausefl_client.training.trainer import Trainer, TrainingOutcome, TrainingSettings, WrappedTrainer
from pausefl_proto.wire import Vector
from rigs.batched import (
    ADAM,
    CPU,
    IMAGE,
    RAGGED,
    SGD,
    assert_same,
    expecting,
    played_together,
    theta_of,
    trained_at_once,
    trainers_of,
)


def check_rounds(make: Callable[[], list[TorchTrainer]]) -> None:
    """Compare training together with training alone, for three rounds in which optimizer states carry over."""
    alone, together = make(), make()
    check_stackable(together[0])
    for t in (1, 2, 3):
        theta = theta_of(alone[0], t)
        for trainer, outcome in zip(alone, played_together(together, theta, t), strict=True):
            assert_same(outcome, trainer.train(theta, round=t))
            assert outcome.update.any()


NOT_BATCHED = {"fedts_agnews", "cnn3_batch", "cnn3_running", "fedts_fashion_batch"}


@pytest.mark.parametrize("name", [name for name in MODELS if name not in NOT_BATCHED])
def test_every_bundled_model_learns_together_what_it_learns_alone(name: str) -> None:
    """One step on batches of 20, 13 and 31. In later steps, rounding changes the choices of ReLU and max-pool."""
    shape = IMAGE.get(name, (3, 32, 32))

    def model() -> nn.Module:
        return build_model(name, shape, 10, 1)

    settings = TrainingSettings("sgd", 0.05, batch_size=max(RAGGED))
    alone, together = (trainers_of(settings, model=model, shape=shape) for _ in range(2))
    check_stackable(together[0])
    theta = ModelVector(model()).values()
    for trainer, outcome in zip(alone, played_together(together, theta, 1), strict=True):
        assert_same(outcome, trainer.train(theta, round=1), share=1e-4)


def every_layer() -> nn.Module:
    """A network of every supported layer, also without biases or parameters, and with a nested Sequential."""
    torch.manual_seed(1)
    first = nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.GroupNorm(2, 4, affine=False), nn.SiLU(), nn.AvgPool2d(2)
    second = nn.Conv2d(4, 8, 3, stride=2, padding=1, groups=2), nn.GroupNorm(4, 8), nn.Tanh(), nn.Identity()
    rows = nn.Flatten(1, 2), nn.MaxPool2d(3, 1, 1), nn.Flatten(), nn.LayerNorm(32, elementwise_affine=False)
    flat = *rows, nn.GELU(), nn.Softplus(), nn.ELU(), nn.LeakyReLU()
    head = nn.Sequential(nn.Linear(32, 8, bias=False), nn.LayerNorm(8, bias=False), nn.Sigmoid(), nn.Linear(8, 10))
    return nn.Sequential(*first, *second, *flat, head)


def test_every_known_layer_treats_models_apart() -> None:
    check_rounds(lambda: trainers_of(SGD, model=every_layer))


def test_images_as_bytes_and_as_numbers_train_apart(calls: list[int]) -> None:
    """A user's behaviour may give one client float32 inputs while the others keep bytes."""
    host, alone, trainers = BatchedHost(), trainers_of(), trainers_of()
    for trainer in (alone[1], trainers[1]):
        trainer.inputs = trainer.inputs.float() / 127.5 - 1
    clients = hosted(host, trainers)
    theta = theta_of(alone[0])
    with expecting(host, 3, 1, "a"):
        for client, trainer in zip(clients, alone, strict=True):
            assert_same(client.train(theta, round=1), trainer.train(theta, round=1))
    assert calls == [2]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_goes_on_from_round_to_round(name: str) -> None:
    options = {} if name == "rprop" else {"weight_decay": 0.01}
    settings = TrainingSettings(name, 0.01, batch_size=8, optimizer_options=options)
    check_rounds(lambda: trainers_of(settings))


@pytest.mark.parametrize("kind", [kind for kind in TRAINING_METHODS if kind != "moon"])
@pytest.mark.parametrize("settings", [SGD, ADAM], ids=["sgd", "adam"])
def test_every_method_but_moon_can_be_batched(kind: str, settings: TrainingSettings) -> None:
    parameters: Mapping[str, dict[str, Any]] = {"fedprox": {"mu": 0.5}, "feddyn": {"alpha": 0.1}}
    found = TRAINING_METHODS[kind]
    check_rounds(lambda: trainers_of(settings, lambda: found(**parameters.get(kind, {}))))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", ["mlp", "cnn3"])
def test_cuda_trains_together_as_the_cpu_does_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    shape = IMAGE.get(name, (3, 32, 32))

    def made(device: torch.device) -> list[TorchTrainer]:
        settings = TrainingSettings("sgd", 0.05, batch_size=max(RAGGED))
        return trainers_of(settings, model=lambda: build_model(name, shape, 10, 1), shape=shape, device=device)

    alone, together = made(CPU), made(torch.device("cuda"))
    theta = ModelVector(alone[0].model).values()
    for trainer, outcome in zip(alone, played_together(together, theta, 1), strict=True):
        expected = trainer.train(theta, round=1)
        # The norm is compared, not each value: of two nearly equal pixels, max-pool may choose the other one.
        assert np.linalg.norm(outcome.update - expected.update) <= 1e-3 * np.linalg.norm(expected.update)
        assert outcome.loss == pytest.approx(expected.loss, rel=1e-4)


def test_a_learning_rate_that_changes_with_the_round_does_so_together() -> None:
    schedule = {"kind": "step", "step_size": 1, "gamma": 0.5}
    check_rounds(lambda: trainers_of(TrainingSettings("adam", 0.02, batch_size=8, schedule=schedule)))


@pytest.mark.parametrize("at_once", [1, 2, 3, 100])
def test_epochs_may_differ_and_steps_be_bounded(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches are gathered for `at_once` steps together."""
    monkeypatch.setattr(batched_training, "gathered_bytes", lambda _: at_once * 3 * 8 * 64)  # 64 bytes an image
    settings = [TrainingSettings(batch_size=8, epochs=e, max_steps=s) for e, s in ((1, None), (4, None), (2, 5))]
    check_rounds(lambda: trainers_of(settings))


@pytest.mark.parametrize("settings", [SGD, ADAM], ids=["sgd", "adam"])
def test_one_client_after_another_joins_those_who_have_trained_before(settings: TrainingSettings) -> None:
    """Their optimizer states differ then: Adam counts different steps, and only some clients have momentum of SGD."""
    alone, together = trainers_of(settings), trainers_of(settings)
    for t, who in enumerate(([0], [1, 0], [0, 2], [2, 1, 0]), 1):
        theta = theta_of(alone[0], t)
        for i, outcome in zip(who, played_together([together[i] for i in who], theta, t), strict=True):
            assert_same(outcome, alone[i].train(theta, round=t))


def test_a_state_is_written_down_and_read_as_after_training_alone() -> None:
    alone, together = trainers_of(), trainers_of()
    theta = theta_of(alone[0])
    played_together(together, theta, 1)
    for trainer, other, fresh in zip(alone, together, trainers_of(), strict=True):
        trainer.train(theta, round=1)
        fresh.restore(other.state())
        assert len(fresh.state()) == len(trainer.state())
        assert_same(fresh.train(theta, round=2), trainer.train(theta, round=2))


def test_other_tasks_have_the_mean_loss_of_each_clients_own_examples() -> None:
    def made() -> list[TorchTrainer]:
        rng = np.random.default_rng(1)
        drawn = (rng.normal(size=(n, 5)).astype(np.float32) for n in RAGGED)
        data = (LocalData(Examples(row[:, 1:], row[:, 0]), task=Regression(1.0)) for row in drawn)
        return [
            TorchTrainer(build_model("mlp", (4,), 1, 1), own, ADAM, device=CPU, seed=1, client_id=str(i))
            for i, own in enumerate(data)
        ]

    check_rounds(made)


def test_pixels_are_classified_together_as_alone() -> None:
    def made() -> list[TorchTrainer]:
        trainers = trainers_of(model=lambda: build_model(f"{__name__}:pixels", (1, 8, 8), 3, 1))
        for trainer in trainers:
            trainer.targets = (trainer.inputs[:, 0] % 3).long()
        return trainers

    check_rounds(made)


def pixels(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Conv2d(shape[0], classes, 3, padding=1)


class Replacing(TrainingMethod):
    """Replaces each gradient with another tensor."""

    __module__ = "pausefl_client.training.methods.replacing"  # methods in this package are known to draw nothing

    def change_gradients(self, model: nn.Module) -> None:
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad = parameter.grad.sign() * 0.1


class Failing(Replacing):
    """Fails once, after it has replaced the gradients."""

    has_failed = False

    def change_gradients(self, model: nn.Module) -> None:
        super().change_gradients(model)
        if not Failing.has_failed:
            Failing.has_failed = True
            raise RuntimeError("once")


def test_the_round_after_one_that_broke_off_uses_its_own_gradients() -> None:
    alone, together = trainers_of(SGD, Replacing), trainers_of(SGD, Failing)
    stack, theta = ModelStack(alone[0].model, SGD, len(alone)), theta_of(alone[0], 2)
    with pytest.raises(RuntimeError, match="once"):
        played_together(together, theta_of(alone[0]), 1, stack)
    for trainer, outcome in zip(alone, played_together(together, theta, 2, stack), strict=True):
        assert_same(outcome, trainer.train(theta, round=2))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many clients trained in each call, as a growing list."""
    return trained_at_once(monkeypatch)


def hosted(host: BatchedHost, trainers: Sequence[TorchTrainer]) -> list[Trainer]:
    return [host.outermost(f"c{i}", host.admit(f"c{i}", trainer)) for i, trainer in enumerate(trainers)]


def test_the_first_that_is_due_trains_all_that_wait_for_its_job(calls: list[int]) -> None:
    host, alone = BatchedHost(), trainers_of()
    clients = hosted(host, trainers_of())
    for t in (1, 2):
        theta = theta_of(alone[0], t)
        with expecting(host, 3, t, f"digest {t}"):
            for client, trainer in zip(reversed(clients), reversed(alone), strict=True):
                assert_same(client.train(theta, round=t), trainer.train(theta, round=t))
    assert calls == [3, 3]


def test_who_waits_no_longer_has_not_trained(calls: list[int]) -> None:
    """Its result is dropped. Its next round continues from the state before the dropped one."""
    host, alone = BatchedHost(), trainers_of()
    clients = hosted(host, trainers_of())
    first, second = (theta_of(alone[0], t) for t in (1, 2))
    with host.expecting("c0", 1, "a"), host.expecting("c1", 1, "a"):
        assert_same(clients[0].train(first, round=1), alone[0].train(first, round=1))
    assert calls == [2]
    with host.expecting("c1", 2, "b"):
        assert_same(clients[1].train(second, round=2), alone[1].train(second, round=2))
    assert calls == [2]


def test_another_round_model_or_memory_than_foreseen_is_trained_alone(calls: list[int]) -> None:
    class Stale(WrappedTrainer):
        def train(self, theta: Vector, *, round: int) -> TrainingOutcome:
            return super().train(theta * 0 + 0.1, round=round)

    sizes = (*RAGGED, 20)
    host, alone, before = BatchedHost(), trainers_of(sizes=sizes), trainers_of(sizes=sizes)[2]
    inner = [host.admit(f"c{i}", trainer) for i, trainer in enumerate(trainers_of(sizes=sizes))]
    clients = [host.outermost(f"c{i}", Stale(t) if i == 1 else t) for i, t in enumerate(inner)]
    theta = theta_of(alone[0])
    before.train(theta, round=1)
    with expecting(host, 4, 1, "a"):
        clients[0].train(theta, round=1)
        assert_same(clients[1].train(theta, round=1), alone[1].train(theta * 0 + 0.1, round=1))
        for trainer in (clients[2], alone[2]):
            trainer.restore(before.state())  # as a restart does
        assert_same(clients[2].train(theta, round=1), alone[2].train(theta, round=1))
        assert_same(clients[3].train(theta, round=2), alone[3].train(theta, round=2))
    assert calls == [4]


def test_a_client_that_is_at_its_job_or_has_done_it_is_not_trained_with_one_that_comes_later(calls: list[int]) -> None:
    host, trainers = BatchedHost(), trainers_of()
    _, second, third = hosted(host, trainers)
    theta = theta_of(trainers[0])
    with host.expecting("c0", 1, "a"):
        with host.begin("c0", theta, 1), host.expecting("c1", 1, "a"):
            second.train(theta, round=1)
        with host.expecting("c2", 1, "a"):
            third.train(theta, round=1)
    assert calls == []


def test_clients_of_other_kinds_jobs_and_none_train_apart(calls: list[int]) -> None:
    host = BatchedHost()
    clients = hosted(host, [*trainers_of(), *trainers_of(SGD)[:1]])[:4]
    host.admit("c3", trainers_of(SGD)[0])
    with ExitStack() as waiting:
        for client_id, digest in (("c0", "a"), ("c1", "b"), ("c3", "a")):
            waiting.enter_context(host.expecting(client_id, 1, digest))
        for client in clients:
            client.train(theta_of(trainers_of()[0]), round=1)
    assert calls == []


def test_a_failure_together_is_told_by_the_client_that_fails_alone(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(TrainingMethod):
        __module__ = Replacing.__module__

        def begin_round(self, model: nn.Module, round: int) -> None:
            raise ValueError("no such round")

    host = BatchedHost()
    clients = hosted(host, trainers_of(method=Failing))
    with host.expecting("c0", 1, "a"), host.expecting("c1", 1, "a"), pytest.raises(ValueError, match="no such round"):
        clients[0].train(theta_of(trainers_of()[0]), round=1)
    assert "round 1: 2 clients train one by one: no such round" in caplog.text


def test_as_many_train_together_as_memory_holds(
    calls: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A device that holds two models stands for a full memory: no round is lost, and more are tried only once."""

    def fits_two(stack: Any, trainers: Any, theta: Any, *, round: int) -> Any:
        if len(trainers) > 2:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        calls.append(len(trainers))
        return train_together(stack, trainers, theta, round=round)

    monkeypatch.setattr(batched_host, "train_together", fits_two)
    sizes = (20, 13, 31, 9, 8)
    host, alone = BatchedHost(), trainers_of(sizes=sizes)
    clients = hosted(host, trainers_of(sizes=sizes))
    for t in (1, 2):
        theta = theta_of(alone[0], t)
        with expecting(host, len(sizes), t, "a"):
            for client, trainer in zip(clients, alone, strict=True):
                assert_same(client.train(theta, round=t), trainer.train(theta, round=t))
    assert calls == [2, 2, 1] * 2
    assert caplog.messages == ["the device's memory does not hold 5 clients together: 2 at once from now on"]


def test_batches_are_no_greater_than_the_clients_examples() -> None:
    def made() -> list[TorchTrainer]:
        return trainers_of(TrainingSettings(batch_size=1000, epochs=2), sizes=(5, 3))

    assert RoundBatches(made(), 1).size == 5
    check_rounds(made)


def test_numbers_are_left_as_they_are_and_targets_may_have_a_shape() -> None:
    learners = trainers_of(sizes=(11, 10))
    for learner in learners:
        learner.inputs = torch.randn(learner.n_examples, 5)
        learner.targets = torch.randn(learner.n_examples, 2)
    batches = RoundBatches(learners, 1)
    for step, rows in enumerate(itertools.islice(zip(*(of_one.drawn(1)[1] for of_one in learners), strict=True), 2)):
        inputs, targets = batches.at(step, batches.sizes(step, 2), 0)
        for learner, own, x, y in zip(learners, rows, inputs, targets, strict=True):
            np.testing.assert_array_equal(x[: len(own)], learner.inputs[own])
            np.testing.assert_array_equal(y[: len(own)], learner.targets[own])


def test_what_is_no_number_counts_only_where_it_was_drawn() -> None:
    learners = trainers_of(sizes=(11, 10))
    for learner in learners:
        learner.inputs = torch.full((learner.n_examples, 5), torch.nan)
    batches = RoundBatches(learners, 1)
    for step in range(learners[0].steps):
        sizes = batches.sizes(step, 2)
        inputs, _ = batches.at(step, sizes, batches.size)
    assert max(sizes) < batches.size
    for x, size in zip(inputs, sizes, strict=True):
        assert x[:size].isnan().all()
        assert (x[size:] == 0).all()
