"""Clients that train one by one with steps that are recorded."""

import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from pausefl_client.batched.captured import CapturedSteps
from pausefl_client.batched.replays import Pass, Step
from pausefl_client.training.models import build_model
from pausefl_client.training.torch_trainer import TorchTrainer
from pausefl_client.training.trainer import Trainer, TrainingSettings
from pausefl_client.training.withdrawal import LASTING, Withdrawn, withdrawable
from rigs.batched import ADAM, CPU, IMAGE, SGD, assert_same, network, theta_of, trainers_of

CUDA = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"))


class Counting:
    """Stands for a GPU, and counts recordings and repetitions."""

    def __init__(self) -> None:
        self.recorded = self.repeated = 0

    def __call__(
        self, one_pass: Pass, inputs: torch.Tensor, targets: torch.Tensor, step: Step
    ) -> Callable[[], torch.Tensor]:
        self.recorded += 1

        def repeat() -> torch.Tensor:
            self.repeated += 1
            losses = one_pass(inputs, targets)
            step()
            return losses

        return repeat


def captured_by(recorder: Counting) -> CapturedSteps:
    return CapturedSteps(lambda _: recorder)


def trainer_with(model: Callable[[], nn.Module]) -> TorchTrainer:
    return trainers_of(model=model, sizes=(20,))[0]


@pytest.mark.parametrize("settings", [SGD, ADAM], ids=["sgd", "adam"])
def test_clients_in_turn_train_as_they_would_without(settings: TrainingSettings) -> None:
    """All with what one of them recorded, and each with its own memory, which a restart gives back."""
    recorder, plain, own = Counting(), trainers_of(settings), trainers_of(settings)
    steps = captured_by(recorder)
    captured = [steps.admit(trainer) for trainer in own]
    for t in (1, 2, 3):
        for trainer, other in zip(plain, captured, strict=True):
            theta = theta_of(trainer, t)
            assert_same(other.train(theta, round=t), trainer.train(theta, round=t))
            if t == 2:
                other.restore(other.state())
    assert (recorder.recorded, recorder.repeated) == (1, 3 * (3 + 2 + 4) - 1)


def test_what_was_prepared_is_not_recorded_again() -> None:
    recorder, (first, second) = Counting(), trainers_of(sizes=(16, 40))
    steps = captured_by(recorder)
    steps.prepare(first, theta_of(first), at_once=2)
    assert recorder.recorded == 2
    assert not first.optimizer_states()
    inside: list[Trainer] = [steps.admit(second)]
    with steps.stack_for(second):  # another client trains meanwhile
        inside[0].train(theta_of(second), round=1)
    assert recorder.recorded == 2


def test_a_withdrawn_job_ends_and_what_was_recorded_stays() -> None:
    recorder, (plain,), (own,) = Counting(), trainers_of(sizes=(40,)), trainers_of(sizes=(40,))
    trainer = captured_by(recorder).admit(own)

    class Job:
        asked = 0

        def is_set(self) -> bool:
            self.asked += 1
            return self.asked > 3

        telling = LASTING.telling

    with pytest.raises(Withdrawn), withdrawable(Job()):
        trainer.train(theta_of(own), round=1)
    assert recorder.repeated == 2
    assert_same(trainer.train(theta_of(own, 2), round=2), plain.train(theta_of(plain, 2), round=2))
    assert recorder.recorded == 1


def test_a_client_whose_steps_do_not_fit_trains_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    def full(*_: object, **__: object) -> Callable[[], torch.Tensor]:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB.")

    (plain,), (own,) = trainers_of(sizes=(20,)), trainers_of(sizes=(20,))
    steps = CapturedSteps(lambda _: full)
    steps.prepare(own, theta_of(own), at_once=1)
    trainer = steps.admit(own)
    for t in (1, 2, 3):
        theta = theta_of(plain, t)
        assert np.array_equal(trainer.train(theta, round=t).update, plain.train(theta, round=t).update)
    said = "steps are not captured as CUDA graphs, which is slower: CUDA out of memory. Tried to allocate 2.00 MiB."
    assert [record.getMessage() for record in caplog.records] == [said] * 2


def test_errors_of_training_stay_errors() -> None:
    def broken(*_: object, **__: object) -> Callable[[], torch.Tensor]:
        raise ValueError("no such round")

    (own,) = trainers_of(sizes=(20,))
    with pytest.raises(ValueError, match="no such round"):
        CapturedSteps(lambda _: broken).admit(own).train(theta_of(own), round=1)


def test_a_stack_in_which_something_failed_is_not_lent_again() -> None:
    trainer = trainer_with(network)
    steps = captured_by(Counting())
    with pytest.raises(RuntimeError, match="out of memory"), steps.stack_for(trainer) as broken:
        raise RuntimeError("out of memory")
    with steps.stack_for(trainer) as stack:
        assert stack is not broken


def test_clients_that_train_at_once_have_stacks_of_their_own() -> None:
    trainers, both = trainers_of(sizes=(20, 20)), threading.Barrier(2)
    steps, used = captured_by(Counting()), []

    def use(trainer: TorchTrainer) -> None:
        with steps.stack_for(trainer) as stack:
            used.append(stack)
            both.wait(timeout=60)

    threads = [threading.Thread(target=use, args=(trainer,)) for trainer in trainers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert used[0] is not used[1]


def test_models_that_draw_train_as_they_are() -> None:
    trainer = trainer_with(lambda: nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 10)))
    assert CapturedSteps().admit(trainer) is trainer


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("name", ["mlp", "cnn3"])
def test_a_devices_captured_steps_are_those_of_a_processor(
    name: str, device: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    shape = IMAGE.get(name, (3, 32, 32))
    settings = TrainingSettings("sgd", 0.05, batch_size=16)
    (plain,), (own,) = (
        trainers_of(settings, model=lambda: build_model(name, shape, 10, 1), sizes=(60,), shape=shape, device=on)
        for on in (CPU, torch.device(device))
    )
    trainer = CapturedSteps().admit(own)
    for t in (1, 2):
        theta = theta_of(plain, t)
        update, expected = (one.train(theta, round=t).update for one in (trainer, plain))
        assert np.linalg.norm(update - expected) <= 0.01 * np.linalg.norm(expected)
    assert not caplog.records
