"""`python -m benchmarks.own training`: what it compares computes the same."""

import numpy as np
import pytest
import torch

from benchmarks.own.training import LeanLoop
from pausefl.bench.images import random_images
from pausefl_client.training.model_vector import ModelVector
from pausefl_client.training.models import build_model
from pausefl_client.training.torch_trainer import LocalData, TorchTrainer
from pausefl_client.training.trainer import TrainingSettings
from pausefl_proto.draws import generator


@pytest.mark.parametrize(("name", "shape"), [("mlp", (1, 28, 28)), ("cnn3", (3, 32, 32))])
def test_the_lean_loop_computes_what_a_trainer_does(name: str, shape: tuple[int, ...]) -> None:
    """But for rounding, of which Adam's first steps, of ±0.01 a value, make up to a thousandth of a step."""
    torch.set_num_threads(1)
    examples, settings = random_images(1, "test", 50, shape), TrainingSettings()
    first, second = (build_model(name, shape, 10, 1) for _ in range(2))
    theta, device = ModelVector(first).values(), torch.device("cpu")
    trainer = TorchTrainer(first, LocalData(examples), settings, device=device, seed=1, client_id="c")
    lean = LeanLoop(second, examples, settings)
    for t in (1, 2):
        rng = generator(1, "batches", "c", t)
        rng.integers(2**63)  # seeds dropout
        update = lean.train(theta, rng.permutation(50))
        np.testing.assert_allclose(trainer.train(theta, round=t).update, update, atol=1e-5)
