"""What an optimizer and a training method remember, written and read back."""

from io import BytesIO
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pausefl_client.training.saved_states import StateWriter, read_states
from pausefl_proto.errors import PauseflError

CPU = torch.device("cpu")
quickly = settings(max_examples=60, deadline=None, derandomize=True)
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.uint8)
TENSORS = st.builds(
    lambda shape, dtype, seed: torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(seed)).to(dtype),
    st.lists(st.integers(0, 4), max_size=3),
    st.sampled_from(DTYPES),
    st.integers(0, 99),
)
VALUES = TENSORS | st.integers(-5, 5) | st.floats(allow_nan=False) | st.booleans() | st.none() | st.text(max_size=3)
STATES = st.dictionaries(st.integers(0, 5), st.dictionaries(st.text(max_size=3), VALUES, max_size=4), max_size=4)

MEMORIES = st.dictionaries(st.text(max_size=3), VALUES)


def shown(value: Any) -> Any:
    """With tensors as what compares: dtype and values."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), value.tolist(), tuple(value.shape)
    return {k: shown(v) for k, v in value.items()} if isinstance(value, dict) else value


@quickly
@given(
    st.lists(st.tuples(STATES, st.floats(0, 1), st.dictionaries(st.text(max_size=3), VALUES)), min_size=1, max_size=3)
)
def test_what_was_written_is_read_back(written: list[tuple[dict[int, Any], float, dict[str, Any]]]) -> None:
    """One writer, whose states change: each time what is read is what was written last."""
    writer = StateWriter()
    for states, rate, of_method in written:
        optimizer = {"state": states, "param_groups": [{"lr": rate, "betas": (0.9, 0.99), "params": list(states)}]}
        found, found_of_method = read_states(writer.written(optimizer, of_method), CPU)
        assert shown(found) == shown(optimizer)
        assert shown(found_of_method) == shown(of_method)


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


def test_states_of_an_earlier_version_are_refused_in_one_line() -> None:
    earlier = BytesIO()
    torch.save({"state": {}, "method": {}}, earlier)
    with pytest.raises(PauseflError, match=r"^what its trainer remembers was written by an earlier version .*$"):
        read_states(earlier.getvalue(), CPU)
