"""What an optimizer and a training method remember, written and read back."""

import os
from io import BytesIO
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pausefl_client.training.saved_states import StateWriter, read_states

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
