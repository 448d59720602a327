"""Passes of clients that train together, replayed for shapes that were recorded before."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch import nn

from pausefl_client.batched.replays import Pass, Replays, Step, recorder_for
from pausefl_client.batched.stack import ModelStack
from pausefl_client.training.model_vector import ModelVector
from pausefl_client.training.models import build_model
from pausefl_client.training.trainer import TrainingSettings
from rigs.batched import ADAM, IMAGE, SGD, assert_same, network, played_together, theta_of, trainers_of


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", ["mlp", "cnn3"])
def test_cuda_replays_recordings(name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # kernels differ by shape, and here shapes do
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


class Repeating:
    """Stands for a GPU: it repeats a pass and a step, and knows where they found the models."""

    def __init__(self) -> None:
        self.stack: ModelStack | None = None
        self.shapes: list[tuple[int, int]] = []
        self.repeated = 0

    def places(self) -> list[int]:
        assert self.stack
        stack = self.stack
        remembered = [stack._optimizer.state[row] for row in stack._rows if row.grad is not None]
        states = [value for state in remembered for value in state.values() if isinstance(value, torch.Tensor)]
        tensors = *stack._leaves, stack.values, stack._gradients, *states
        return [tensor.data_ptr() for tensor in tensors]

    def __call__(
        self, one_pass: Pass, inputs: torch.Tensor, targets: torch.Tensor, step: Step
    ) -> Callable[[], torch.Tensor]:
        self.shapes.append((inputs.shape[0], inputs.shape[1]))
        recorded = self.places()

        def repeat() -> torch.Tensor:
            assert self.places() == recorded
            self.repeated += 1
            losses = one_pass(inputs, targets)
            step()
            return losses

        return repeat


@pytest.mark.parametrize(
    "model", [network, lambda: build_model("mlp", (1, 8, 8), 10, 1)], ids=["autograd", "perceptron"]
)
def test_passes_are_recorded_once_a_shape_and_models_stay_in_place(model: Callable[[], nn.Module]) -> None:
    repeating, alone, together = Repeating(), trainers_of(model=model), trainers_of(model=model)
    stack = repeating.stack = ModelStack(alone[0].model, ADAM, len(alone), repeating)
    for t in (1, 2, 3):
        theta = theta_of(alone[0], t)
        for trainer, outcome in zip(alone, played_together(together, theta, t, stack), strict=True):
            assert_same(outcome, trainer.train(theta, round=t))
    # Of three clients, of two and of one, 8 each with padding, in the last step too.
    # In the first round only those of three clients are seen twice; from the second round on, all are replayed.
    assert (repeating.shapes, repeating.repeated) == ([(3, 8), (2, 8), (1, 8)], 1 + 2 * 4)


@pytest.mark.parametrize("settings", [SGD, ADAM], ids=["sgd", "adam"])
def test_what_is_recorded_with_some_clients_serves_others(settings: TrainingSettings) -> None:
    """Whose optimizers remember other rounds, or none, and whose learning rate changes from round to round."""
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
    def recorder(*_: object, **__: object) -> Callable[[], torch.Tensor]:
        try:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB.")
        finally:
            raise RuntimeError("the capture ended without a graph")  # as the end of a capture that failed

    replays = Replays(recorder)
    for call in (1, 2):
        with nullcontext() if call == 1 else pytest.raises(RuntimeError, match="ended without a graph"):
            replays.call(lambda x, y: x + y, torch.ones(2), torch.ones(2), lambda: None)


def test_a_pass_that_cannot_be_recorded_is_called_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(*_: object, **__: object) -> Callable[[], torch.Tensor]:
        raise RuntimeError("operation not permitted when stream is capturing\nCUDA kernel errors might ...")

    alone, together = trainers_of(), trainers_of()
    stack = ModelStack(alone[0].model, ADAM, len(alone), refuse)
    for t in (1, 2):
        theta = theta_of(alone[0], t)
        for trainer, outcome in zip(alone, played_together(together, theta, t, stack), strict=True):
            assert_same(outcome, trainer.train(theta, round=t))
    assert [record.getMessage() for record in caplog.records] == [
        "steps are not captured as CUDA graphs, which is slower: operation not permitted when stream is capturing"
    ]


def test_shapes_beyond_the_most_graphs_are_called_as_they_are() -> None:
    recorded: list[torch.Size] = []

    def recorder(one_pass: Pass, inputs: torch.Tensor, targets: torch.Tensor, step: Step) -> Callable[[], torch.Tensor]:
        recorded.append(inputs.shape)

        def repeat() -> torch.Tensor:
            losses = one_pass(inputs, targets)
            step()
            return losses

        return repeat

    steps: list[int] = []
    replays = Replays(recorder)
    for i, n in enumerate([*range(1, 21)] * 3):
        made = replays.call(lambda x, y: x + y, torch.full((n,), 2.0), torch.ones(n), lambda: steps.append(n))  # noqa: B023 - called at once
        assert made.tolist() == [3.0] * n
        assert len(steps) == i + 1
    assert recorded == [(n,) for n in range(1, 17)]
