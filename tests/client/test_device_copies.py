"""Arrays to a device and back: equal, and in memory of their own."""

import numpy as np
import pytest
import torch

from pausefl_client.training.device_copies import off_device, on_device

CUDA = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"))


@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_values_come_back_as_they_went(device: str) -> None:
    values, rows = np.linspace(-1, 1, 100_000, dtype=np.float32), np.arange(12).reshape(3, 4)
    values.flags.writeable = False
    back, back_rows = off_device(on_device(values, torch.device(device)), on_device(rows, torch.device(device)))
    assert np.array_equal(back, values)
    assert np.array_equal(back_rows, rows)
    assert (back.dtype, back_rows.dtype) == (values.dtype, rows.dtype)


@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_a_tensor_on_the_device_is_not_the_array(device: str) -> None:
    """The array may be written to at once, also while a copy of it is under way."""
    values = np.ones(1_000_000, np.float32)
    tensor = on_device(values, torch.device(device))
    values[:] = 2
    (back,) = off_device(tensor)
    assert np.all(back == 1)
    tensor.zero_()
    assert np.all(values == 2)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
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


def test_no_tensors_are_no_arrays() -> None:
    assert off_device() == ()
