"""Arrays on a device: copied there and back, and how many of them its memory holds."""

import numpy as np
import pytest
import torch

from pausefl_client.batched.host import BatchedHost
from pausefl_client.training.device_copies import off_device, on_device
from pausefl_client.training.model_vector import ModelVector
from pausefl_client.training.models import build_model
from pausefl_client.training.torch_trainer import TorchTrainer
from pausefl_client.training.trainer import TrainingSettings
from rigs.batched import expecting, trainers_of

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


CLIENTS = 8
BYTES = 2_000_000_000
"""Fewer than the clients need together, and more than one needs."""


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
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
    torch.cuda.set_per_process_memory_fraction(BYTES / torch.cuda.get_device_properties(cuda).total_memory)
    try:
        for t, updates in enumerate(expected, start=1):
            with expecting(host, CLIENTS, t, "a"):
                for client, update in zip(clients, updates, strict=True):
                    difference = client.train(theta, round=t).update - update
                    assert np.linalg.norm(difference) <= 0.05 * np.linalg.norm(update)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    said = [record.getMessage() for record in caplog.records]
    assert f"the device's memory does not hold {CLIENTS} clients together: 4 at once from now on" in said
