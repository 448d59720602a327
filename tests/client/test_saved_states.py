"""What an optimizer and a training method remember: joined, parted, written and read back."""

import os
from io import BytesIO
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from pausefl_client.batched.stack import ModelStack
from pausefl_client.batched.training import train_together
from pausefl_client.registries import OPTIMIZERS
from pausefl_client.training.joined_states import joined, parted
from pausefl_client.training.optimizers import make_optimizer
from pausefl_client.training.saved_states import StateWriter, read_states
from pausefl_client.training.trainer import TrainingSettings
from rigs.batched import ADAM, network, played_together, theta_of, trainers_of

CPU = torch.device("cpu")
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.bool, torch.complex64)
quickly = settings(max_examples=60, deadline=None, derandomize=True)


def tensor(shape: list[int], dtype: torch.dtype, seed: int, *, is_transposed: bool) -> torch.Tensor:
    made = torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
    return made.T if is_transposed and made.dim() == 2 else made


TENSORS = st.builds(
    tensor,
    st.lists(st.integers(0, 4), max_size=3),
    st.sampled_from(DTYPES),
    st.integers(0, 99),
    is_transposed=st.booleans(),
)
NUMBERS = st.integers(-1, 1) | st.sampled_from([0.0, -0.0, 1.0]) | st.booleans() | st.none() | st.text(max_size=3)
VALUES = TENSORS | NUMBERS | st.lists(TENSORS | NUMBERS, max_size=2) | st.tuples(NUMBERS)
STATES = st.dictionaries(st.integers(0, 5), st.dictionaries(st.text(max_size=3), VALUES, max_size=4), max_size=4)
MEMORIES = st.dictionaries(st.text(max_size=3), VALUES, max_size=3)
WRITTEN = st.tuples(STATES, NUMBERS, MEMORIES)


def shown(value: Any) -> str:
    """Types and values of all that is in it: 1, 1.0 and True differ, and so do both zeros."""
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {tuple(value.shape)} {value.to_dense().tolist()} {value.requires_grad}"
    if isinstance(value, dict):
        return str(sorted((repr(key), shown(inner)) for key, inner in value.items()))
    if isinstance(value, list | tuple):
        return type(value).__name__ + str([shown(inner) for inner in value])
    return repr(value)


def read_back(writer: StateWriter, states: Any, rate: Any = 0.1, of_method: Any = None) -> tuple[str, str]:
    """An optimizer's state and a method's, as they are read back and as they were."""
    optimizer = {"state": states, "param_groups": [{"lr": rate, "betas": (0.9, 0.99), "params": list(states)}]}
    found, found_of_method = read_states(writer.written(optimizer, of_method or {}), CPU)
    return shown([found, found_of_method]), shown([optimizer, of_method or {}])


def test_a_tensor_with_a_gradient_of_its_own_keeps_that() -> None:
    found, was = read_back(StateWriter(), {0: {"m": torch.ones(2, requires_grad=True)}})
    assert found == was


@quickly
@given(st.lists(WRITTEN, min_size=1, max_size=4))
def test_what_was_written_is_read_back(written: list[tuple[Any, Any, Any]]) -> None:
    """One writer, whose states change: each time what is read is what was written last."""
    writer = StateWriter()
    for states, rate, of_method in written:
        found, expected = read_back(writer, states, rate, of_method)
        assert found == expected


@pytest.mark.parametrize("changed", [1, True, 0.0, -0.0, (1,), [1], {1: 2}, {True: 2}])
def test_a_change_of_type_or_sign_alone_is_written(changed: object) -> None:
    writer = StateWriter()
    for rate in (1.0, changed, 1.0):
        found, expected = read_back(writer, {0: {"rate": rate}}, rate)
        assert found == expected


@pytest.mark.parametrize(
    "odd",
    [torch.eye(3, dtype=torch.float64).to_sparse(), torch.nn.Parameter(torch.ones(2))],
    ids=["sparse", "parameter"],
)
def test_tensors_that_are_more_than_their_numbers_stay_what_they_are(odd: torch.Tensor) -> None:
    found, expected = read_back(StateWriter(), {0: {"odd": odd, "plain": torch.ones(2)}})
    assert found == expected


def test_keys_of_an_optimizers_own_are_kept() -> None:
    optimizer = {"state": {}, "param_groups": [], "tensors": {"a": 1}, "method": "polyak"}
    assert read_states(StateWriter().written(optimizer, {}), CPU) == (optimizer, {})


def test_tensors_are_read_onto_the_device_asked_for_or_left_to_the_optimizer() -> None:
    """It keeps counts of steps on the processor where reading them would wait for a GPU."""
    written = StateWriter().written({"state": {0: {"m": torch.ones(2)}}, "param_groups": []}, {"x": torch.ones(3)})
    optimizer, of_method = read_states(written, torch.device("meta"))
    assert (optimizer["state"][0]["m"].device.type, of_method["x"].device.type) == ("cpu", "meta")


def test_a_description_that_did_not_change_is_not_written_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    saves: list[object] = []
    save = torch.save

    def counted(value: object, to: BytesIO) -> None:
        saves.append(value)
        save(value, to)

    monkeypatch.setattr(torch, "save", counted)
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer, writer = torch.optim.Adam([parameter], lr=0.5), StateWriter()
    written = []
    for rate in (0.5, 0.5, 0.5, 0.25):
        parameter.grad = torch.ones(3)
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        written.append(writer.written(optimizer.state_dict(), {}))
    assert len(saves) == 2  # the first, and the one of another rate
    assert len(set(written)) == 4
    found, _ = read_states(written[-1], CPU)
    assert (found["param_groups"][0]["lr"], found["state"][0]["step"].item()) == (0.25, 4)


class _Leaving:
    """Makes a file where it is unpickled as any pickle is."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._mark),)


def test_what_a_file_says_is_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    written = StateWriter().written({"state": {}, "param_groups": []}, {"x": _Leaving(mark)})
    with pytest.raises(UnpicklingError):
        read_states(written, CPU)
    assert not mark.exists()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_joined_states_part_into_what_they_were(name: str) -> None:
    parameters = list(network().parameters())
    optimizer = make_optimizer(TrainingSettings(name, 0.01), parameters)
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    states, shapes = [optimizer.state.get(parameter, {}) for parameter in parameters], [p.shape for p in parameters]
    again = parted(joined(states, shapes), shapes)
    for before, after in zip(states, again, strict=True):
        torch.testing.assert_close(after, dict(before), rtol=0, atol=0)
    counts = [state["step"] for state in again if isinstance(state.get("step"), torch.Tensor)]
    assert len({count.data_ptr() for count in counts}) == len(counts), "each parameter counts its own steps"


def test_nothing_is_joined_and_parted_of_optimizers_that_remember_nothing() -> None:
    shapes = [parameter.shape for parameter in nn.Linear(2, 3).parameters()]
    assert joined([{}, {}], shapes) == {}
    assert parted({}, shapes) == [{}, {}]


def test_training_together_leaves_what_trainers_remember_until_they_are_told() -> None:
    """What it gave may be dropped; the client then goes on from where it was."""
    trainers = trainers_of()
    stack = ModelStack(trainers[0].model, ADAM, len(trainers))
    played_together(trainers, theta_of(trainers[0]), 1, stack)
    before = [{name: value.clone() for name, value in trainer.optimizer_states().items()} for trainer in trainers]
    train_together(stack, trainers, theta_of(trainers[0], 2), round=2)
    for trainer, states in zip(trainers, before, strict=True):
        torch.testing.assert_close(dict(trainer.optimizer_states()), states, rtol=0, atol=0)


def test_a_trainer_that_is_restored_forgets_what_it_remembered_of_a_training_together() -> None:
    trainer, fresh = trainers_of(ADAM, sizes=(20,))[0], trainers_of(ADAM, sizes=(20,))[0]
    played_together([trainer], theta_of(trainer), 1)
    trainer.restore(b"")
    assert trainer.optimizer_states() == {}
    theta = theta_of(trainer, 2)
    assert (trainer.train(theta, round=2).update == fresh.train(theta, round=2).update).all()
