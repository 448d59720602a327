"""A round of several clients in one call against the same clients one after the other, in one thread."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from pausefl.bench.training.images import CLASSES, random_images
from pausefl.config.client_records import training_of
from pausefl.config.experiment import load_experiment
from pausefl_client.batched.stack import ModelStack
from pausefl_client.batched.training import train_together
from pausefl_client.training.models import build_model, flatten
from pausefl_client.training.torch_trainer import LocalData, TorchTrainer

_FEWEST_ROUNDS = 2


def together_case(
    preset: str, shape: tuple[int, ...], examples: int, steps: int, device: torch.device
) -> dict[str, Any]:
    """As many clients as the preset asks in a round, with so many examples each; about `steps` steps of each.

    `ratio` is of the time together to that one by one, in neighbouring rounds.
    """
    experiment = load_experiment(preset)
    settings, seed, m = training_of(experiment.workload), experiment.experiment.seed, experiment.selection.m
    trainers = [
        TorchTrainer(
            build_model(experiment.workload.model, shape, CLASSES, seed),
            LocalData(random_images(seed, f"{preset} {i}", examples, shape), CLASSES),
            settings,
            device=device,
            seed=seed,
            client_id=f"{preset} {i}",
        )
        for i in range(m)
    ]
    stack, theta = ModelStack(trainers[0].model, settings, m), flatten(trainers[0].model)

    def alone(round: int) -> None:
        for trainer in trainers:
            trainer.train(theta, round=round)

    def together(round: int) -> None:
        for trainer, trained in zip(trainers, train_together(stack, trainers, theta, round=round), strict=True):
            trainer.remember(trained.optimizer_states, trained.method)

    rounds = max(_FEWEST_ROUNDS, steps // trainers[0].steps)
    times_s = np.array([[times(call, t) for call in (alone, together)] for t in range(rounds + 1)][1:])
    (alone_s, alone_cpu_s), (together_s, together_cpu_s) = times_s.transpose(1, 2, 0)
    low, middle, high = np.quantile(together_s / alone_s, (0.25, 0.5, 0.75)).tolist()
    return {
        "name": "training",
        "case": f"{preset}: {m} clients together, {trainers[0].steps} steps, {rounds} rounds",
        "alone_s": float(np.median(alone_s)),
        "together_s": float(np.median(together_s)),
        "ratio": middle,
        "ratio_q1": low,
        "ratio_q3": high,
        "processor_ratio": float(np.median(together_cpu_s / alone_cpu_s)),
    }


def times(call: Callable[[int], None], round: int) -> tuple[float, float]:
    """How long a call takes: seconds on the clock, and of this thread's processor time."""
    started_s, started_cpu_s = time.perf_counter(), time.thread_time()
    call(round)
    return time.perf_counter() - started_s, time.thread_time() - started_cpu_s
