"""What client processes do with a device before they connect."""

import os

import pytest
import torch

from pausefl.bench.images import random_images
from pausefl.experiment.loading import load_experiment
from pausefl.runtime.client.plan import client_plan
from pausefl.runtime.client.process import make_trainers
from pausefl.runtime.client.torch_trainers import take_first_steps
from pausefl.runtime.processes.resources import own_device
from pausefl_client.registries import TRAINING_METHODS
from pausefl_client.training.torch_trainer import LocalData
from rigs.batched import ADAM, CPU, network


@pytest.mark.parametrize("method", ["plain", "scaffold"])
def test_first_steps_are_of_a_model_of_its_own(method: str) -> None:
    """Whatever the method's vector holds besides the model."""
    model, steps = network(), 0

    def count(*_: object) -> None:
        nonlocal steps
        steps += 1

    model.register_forward_hook(count)
    data = LocalData(random_images(1, "test", 20, (1, 8, 8)), 10)
    random = torch.get_rng_state()
    take_first_steps(model, data, ADAM, CPU, TRAINING_METHODS[method]())
    assert steps == 2
    assert torch.equal(torch.get_rng_state(), random)


@pytest.mark.parametrize(("device", "hidden"), [("cpu", ""), ("auto", None)])
def test_clients_on_a_processor_hide_gpus(device: str, hidden: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of torch's Adam would begin to use them."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    own_device.cache_clear()
    plan = client_plan(load_experiment("demo", [f'workload.device="{device}"'])).training
    make_trainers(plan, plan.client_ids[:1])
    assert os.environ.pop("CUDA_VISIBLE_DEVICES", None) == hidden


@pytest.mark.parametrize(
    ("visible", "device", "process", "seen"),
    [("", "auto", 3, "1"), ("4,GPU-5", "cuda", 1, "GPU-5"), ("4,GPU-5", "cuda:1", 2, "GPU-5"), ("4,5", "cpu", 1, "")],
)
def test_a_process_sees_its_own_device_alone(
    visible: str, device: str, process: int, seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often it asks; a machine with two devices is not to be had here."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    own_device.cache_clear()
    named = {own_device(device, process) for _ in range(2)}
    assert named == {device.partition(":")[0]}
    assert os.environ["CUDA_VISIBLE_DEVICES"] == seen
