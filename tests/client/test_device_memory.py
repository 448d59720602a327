"""A GPU whose memory is full."""

import numpy as np
import pytest
import torch

from pausefl_client.batched.host import BatchedHost
from pausefl_client.training.model_vector import ModelVector
from pausefl_client.training.models import build_model
from pausefl_client.training.torch_trainer import TorchTrainer
from pausefl_client.training.trainer import TrainingSettings
from rigs.batched import expecting, trainers_of

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
