"""Training steps that are recorded once and replayed, for one or several clients; and arrays on a device."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from pausefl_client.batched.captured import CapturedSteps
from pausefl_client.batched.host import BatchedHost
from pausefl_client.batched.replays import Pass, Replays, Step, recorder_for
from pausefl_client.batched.stack import ModelStack
from pausefl_client.training.device_copies import off_device, on_device
from pausefl_client.training.model_vector import ModelVector
from pausefl_client.training.models import build_model
from pausefl_client.training.torch_trainer import TorchTrainer
from pausefl_client.training.trainer import Trainer, TrainingSettings
from pausefl_client.training.withdrawal import Withdrawal, Withdrawn, withdrawable
from rigs.batched import ADAM, CPU, IMAGE, SGD, assert_same, expecting, network, played_together, theta_of, trainers_of

on_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
CUDA = pytest.param("cuda", marks=on_cuda)
Repeat = Callable[[], torch.Tensor]


class Repeating:
    """Stands for a GPU's recorder: repeats a pass and a step. With `stack`, asserts that its tensors stay in place."""

    def __init__(self) -> None:
        self.stack: ModelStack | None = None
        self.shapes: list[tuple[int, ...]] = []
        """(models, examples) of each recording."""
        self.repeated = 0

    def places(self) -> list[int]:
        if not (stack := self.stack):
            return []
        remembered = [stack._optimizer.state[row] for row in stack._rows if row.grad is not None]
        states = [value for state in remembered for value in state.values() if isinstance(value, torch.Tensor)]
        tensors = *stack._leaves, stack.values, stack._gradients, *states
        return [tensor.data_ptr() for tensor in tensors]

    def __call__(self, one_pass: Pass, inputs: torch.Tensor, targets: torch.Tensor, step: Step) -> Repeat:
        self.shapes.append(tuple(inputs.shape[:2]))
        recorded = self.places()

        def repeat() -> torch.Tensor:
            assert self.places() == recorded
            self.repeated += 1
            losses = one_pass(inputs, targets)
            step()
            return losses

        return repeat


def captured_by(recorder: Repeating) -> CapturedSteps:
    return CapturedSteps(lambda _: recorder)


@pytest.mark.parametrize("settings", [SGD, ADAM], ids=["sgd", "adam"])
def test_clients_in_turn_train_as_they_would_without(settings: TrainingSettings) -> None:
    """All clients use what one of them recorded. Each keeps its own optimizer state, which a restart restores."""
    recorder, plain, own = Repeating(), trainers_of(settings), trainers_of(settings)
    steps = captured_by(recorder)
    captured = [steps.admit(trainer) for trainer in own]
    for t in (1, 2, 3):
        for trainer, other in zip(plain, captured, strict=True):
            theta = theta_of(trainer, t)
            assert_same(other.train(theta, round=t), trainer.train(theta, round=t))
            if t == 2:
                other.restore(other.state())
    assert (len(recorder.shapes), recorder.repeated) == (1, 3 * (3 + 2 + 4) - 1)


def test_what_was_prepared_is_not_recorded_again() -> None:
    recorder, (first, second) = Repeating(), trainers_of(sizes=(16, 40))
    steps = captured_by(recorder)
    steps.prepare(first, theta_of(first), at_once=2)
    assert len(recorder.shapes) == 2
    assert not first.optimizer_states()
    inside: list[Trainer] = [steps.admit(second)]
    with steps.stack_for(second):  # another client is training
        inside[0].train(theta_of(second), round=1)
    assert len(recorder.shapes) == 2


def test_a_withdrawn_job_ends_and_what_was_recorded_stays() -> None:
    recorder, (plain,), (own,) = Repeating(), trainers_of(sizes=(40,)), trainers_of(sizes=(40,))
    trainer = captured_by(recorder).admit(own)

    class Job(Withdrawal):
        asked = 0

        def is_set(self) -> bool:
            self.asked += 1
            return self.asked > 3

    with pytest.raises(Withdrawn), withdrawable(Job()):
        trainer.train(theta_of(own), round=1)
    assert recorder.repeated == 2
    assert_same(trainer.train(theta_of(own, 2), round=2), plain.train(theta_of(plain, 2), round=2))
    assert len(recorder.shapes) == 1


def test_a_client_whose_steps_do_not_fit_trains_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    def full(*_: object, **__: object) -> Repeat:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB.")

    (plain,), (own,) = trainers_of(sizes=(20,)), trainers_of(sizes=(20,))
    steps = CapturedSteps(lambda _: full)
    steps.prepare(own, theta_of(own), at_once=1)
    trainer = steps.admit(own)
    for t in (1, 2, 3):
        theta = theta_of(plain, t)
        assert np.array_equal(trainer.train(theta, round=t).update, plain.train(theta, round=t).update)
    said = "steps are not captured as CUDA graphs, which is slower: CUDA out of memory. Tried to allocate 2.00 MiB."
    assert caplog.messages == [said] * 2


def test_errors_of_training_stay_errors() -> None:
    def broken(*_: object, **__: object) -> Repeat:
        raise ValueError("no such round")

    (own,) = trainers_of(sizes=(20,))
    with pytest.raises(ValueError, match="no such round"):
        CapturedSteps(lambda _: broken).admit(own).train(theta_of(own), round=1)


def test_a_stack_in_which_something_failed_is_not_lent_again() -> None:
    (trainer,) = trainers_of(sizes=(20,))
    steps = captured_by(Repeating())
    with pytest.raises(RuntimeError, match="out of memory"), steps.stack_for(trainer) as broken:
        raise RuntimeError("out of memory")
    with steps.stack_for(trainer) as stack:
        assert stack is not broken


def test_clients_that_train_at_once_have_stacks_of_their_own() -> None:
    trainers, both = trainers_of(sizes=(20, 20)), threading.Barrier(2)
    steps = captured_by(Repeating())

    def used(trainer: TorchTrainer) -> ModelStack:
        with steps.stack_for(trainer) as stack:
            both.wait(timeout=60)
        return stack

    with ThreadPoolExecutor(2) as threads:
        one, other = threads.map(used, trainers)
    assert one is not other


def test_models_that_draw_train_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    dropping = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 10))
    (trainer,) = trainers_of(model=lambda: dropping, sizes=(20,))
    assert CapturedSteps().admit(trainer) is trainer
    assert not CapturedSteps().prepare(trainer, theta_of(trainer), at_once=1)
    assert "steps are not captured as CUDA graphs, which is slower: the" in caplog.text


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


@on_cuda
@pytest.mark.parametrize("name", ["mlp", "cnn3"])
def test_cuda_replays_recordings(name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # kernels depend on shapes, which differ here
    shape, cuda = IMAGE.get(name, (3, 32, 32)), torch.device("cuda")
    called, replayed = (
        trainers_of(ADAM, model=lambda: build_model(name, shape, 10, 1), shape=shape, device=cuda) for _ in range(2)
    )
    stack = ModelStack(called[0].model, ADAM, len(called), recorder_for(cuda))
    for t in (1, 2, 3):
        theta = ModelVector(called[0].model).values()
        outcomes = played_together(replayed, theta, t, stack)
        for one, other in zip(outcomes, played_together(called, theta, t), strict=True):
            assert_same(one, other)
    assert not caplog.records


@pytest.mark.parametrize("model", [network, lambda: build_model("mlp", (1, 8, 8), 10, 1)], ids=["autograd", "mlp"])
def test_passes_are_recorded_once_a_shape_and_models_stay_in_place(model: Callable[[], nn.Module]) -> None:
    repeating, alone, together = Repeating(), trainers_of(model=model), trainers_of(model=model)
    stack = repeating.stack = ModelStack(alone[0].model, ADAM, len(alone), repeating)
    for t in (1, 2, 3):
        theta = theta_of(alone[0], t)
        for trainer, outcome in zip(alone, played_together(together, theta, t, stack), strict=True):
            assert_same(outcome, trainer.train(theta, round=t))
    # Shapes: three, two and one clients, 8 examples each; padding fills the last step.
    # In round 1 only the shape of three clients is seen twice. From round 2 on, all passes are replayed.
    assert (repeating.shapes, repeating.repeated) == ([(3, 8), (2, 8), (1, 8)], 1 + 2 * 4)


@pytest.mark.parametrize("settings", [SGD, ADAM], ids=["sgd", "adam"])
def test_what_is_recorded_with_some_clients_serves_others(settings: TrainingSettings) -> None:
    """The others' optimizers have other states or none, and the learning rate changes from round to round."""
    repeating, settings = Repeating(), replace(settings, schedule={"kind": "exponential", "gamma": 0.5})
    alone, together = ([trainers_of(settings) for _ in range(2)] for _ in range(2))
    stack = repeating.stack = ModelStack(alone[0][0].model, settings, len(alone[0]), repeating)
    for t, cohort in enumerate((0, 0, 1, 0, 1), start=1):
        theta = theta_of(alone[cohort][0], t)
        played = played_together(together[cohort], theta, t, stack)
        for trainer, other, outcome in zip(alone[cohort], together[cohort], played, strict=True):
            assert_same(outcome, trainer.train(theta, round=t))
            for name, value in trainer.optimizer_states().items():
                torch.testing.assert_close(other.optimizer_states()[name], value, rtol=1e-3, atol=1e-4)
    assert repeating.repeated == 1 + 4 * 4


def test_a_recording_for_which_memory_is_not_enough_is_none_that_is_refused() -> None:
    def recorder(*_: object, **__: object) -> Repeat:
        try:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB.")
        finally:
            raise RuntimeError("the capture ended without a graph")  # as PyTorch raises when a failed capture ends

    replays = Replays(recorder)
    for call in (1, 2):
        with nullcontext() if call == 1 else pytest.raises(RuntimeError, match="ended without a graph"):
            replays.call(lambda x, y: x + y, torch.ones(2), torch.ones(2), lambda: None)


def test_a_pass_that_cannot_be_recorded_is_called_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(*_: object, **__: object) -> Repeat:
        raise RuntimeError("operation not permitted when stream is capturing\nCUDA kernel errors might ...")

    alone, together = trainers_of(), trainers_of()
    stack = ModelStack(alone[0].model, ADAM, len(alone), refuse)
    for t in (1, 2):
        theta = theta_of(alone[0], t)
        for trainer, outcome in zip(alone, played_together(together, theta, t, stack), strict=True):
            assert_same(outcome, trainer.train(theta, round=t))
    said = "steps are not captured as CUDA graphs, which is slower: operation not permitted when stream is capturing"
    assert caplog.messages == [said]


def test_shapes_beyond_the_most_graphs_are_called_as_they_are() -> None:
    recorder, steps = Repeating(), list[int]()
    replays = Replays(recorder)
    for i, n in enumerate([*range(1, 21)] * 3):
        made = replays.call(lambda x, y: x + y, torch.full((n,), 2.0), torch.ones(n), lambda: steps.append(n))  # noqa: B023 - called at once
        assert made.tolist() == [3.0] * n
        assert len(steps) == i + 1
    assert recorder.shapes == [(n,) for n in range(1, 17)]


@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_values_come_back_as_they_went(device: str) -> None:
    values, rows = np.linspace(-1, 1, 100_000, dtype=np.float32), np.arange(12).reshape(3, 4)
    values.flags.writeable = False
    back, back_rows = off_device(on_device(values, torch.device(device)), on_device(rows, torch.device(device)))
    assert np.array_equal(back, values)
    assert np.array_equal(back_rows, rows)
    assert (back.dtype, back_rows.dtype, off_device()) == (values.dtype, rows.dtype, ())


@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_a_tensor_on_the_device_is_not_the_array(device: str) -> None:
    """The array may be changed at once, even while it is being copied."""
    values = np.ones(1_000_000, np.float32)
    tensor = on_device(values, torch.device(device))
    values[:] = 2
    (back,) = off_device(tensor)
    assert np.all(back == 1)
    tensor.zero_()
    assert np.all(values == 2)


@on_cuda
def test_cuda_copies_use_page_locked_memory_again() -> None:
    device, values = torch.device("cuda"), np.ones(1_000_000, np.float32)

    def reserved_bytes() -> int:
        return int(torch.cuda.host_memory_stats()["allocated_bytes.current"])

    for _ in range(3):
        off_device(on_device(values, device))
    before = reserved_bytes()
    for _ in range(100):
        off_device(on_device(values, device))
    assert reserved_bytes() <= before


CLIENTS = 8


@on_cuda
def test_cuda_trains_as_many_together_as_fit_and_loses_no_round(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    settings, shape, cuda = TrainingSettings("sgd", 0.05, batch_size=1000), (3, 32, 32), torch.device("cuda")

    def made() -> list[TorchTrainer]:
        sizes = [settings.batch_size] * CLIENTS
        return trainers_of(
            settings, model=lambda: build_model("cnn3", shape, 10, 1), sizes=sizes, shape=shape, device=cuda
        )

    alone, theta = made(), ModelVector(build_model("cnn3", shape, 10, 1)).values()
    expected = [[trainer.train(theta, round=t).update for trainer in alone] for t in (1, 2, 3)]
    host = BatchedHost()
    clients = [host.outermost(f"c{i}", host.admit(f"c{i}", trainer)) for i, trainer in enumerate(made())]
    torch.cuda.empty_cache()
    # Less memory than the clients need together, and more than one client needs.
    torch.cuda.set_per_process_memory_fraction(2e9 / torch.cuda.get_device_properties(cuda).total_memory)
    try:
        for t, updates in enumerate(expected, start=1):
            with expecting(host, CLIENTS, t, "a"):
                for client, update in zip(clients, updates, strict=True):
                    difference = client.train(theta, round=t).update - update
                    assert np.linalg.norm(difference) <= 0.05 * np.linalg.norm(update)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert f"the device's memory does not hold {CLIENTS} clients together: 4 at once from now on" in caplog.messages
