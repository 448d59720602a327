"""Times a round of several clients, trained in one call and one after the other, in one thread."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from pausefl.bench.images import CLASSES, random_images
from pausefl.experiment.experiment import load_experiment
from pausefl_client.batched.captured import CapturedSteps
from pausefl_client.batched.replays import recorder_for
from pausefl_client.batched.stack import ModelStack
from pausefl_client.batched.training import train_together
from pausefl_client.training.model_vector import ModelVector
from pausefl_client.training.models import build_model
from pausefl_client.training.torch_trainer import LocalData, TorchTrainer
from pausefl_proto.arrays import FloatArray

_FEWEST_ROUNDS = 2
MOST_STEPS = 10
"""The most steps of a client in a round. On a processor, more steps take longer and give the same ratios."""


class RoundsOfClients:
    """The clients of one round of a preset, with random images. They can train together or one by one."""

    def __init__(
        self, preset: str, shape: tuple[int, ...], examples: int, device: torch.device, most_steps: int | None
    ) -> None:
        """Each client has `examples` images of `shape`, and makes at most `most_steps` steps a round (None: all)."""
        experiment = load_experiment(preset)
        seed, self.clients = experiment.experiment.seed, experiment.selection.m
        settings = replace(experiment.workload, max_steps=most_steps)
        self._trainers = [
            TorchTrainer(
                build_model(experiment.workload.model, shape, CLASSES, seed),
                LocalData(random_images(seed, f"{preset} {i}", examples, shape), CLASSES),
                settings,
                device=device,
                seed=seed,
                client_id=f"{preset} {i}",
            )
            for i in range(self.clients)
        ]
        self.steps = self._trainers[0].steps
        self._stack = ModelStack(self._trainers[0].model, settings, self.clients)
        recorder = recorder_for(device)
        self.can_be_replayed = recorder is not None
        self._recorded = ModelStack(self._trainers[0].model, settings, self.clients, recorder)
        captured = CapturedSteps()
        self._captured = [captured.admit(trainer) for trainer in self._trainers]
        self._theta = ModelVector(self._trainers[0].model).values()

    def alone(self, round: int) -> None:
        """Train the clients one after the other."""
        for trainer in self._trainers:
            trainer.train(self._theta, round=round)

    def together(self, round: int) -> None:
        """Train all clients in one call."""
        self._train_together(self._stack, round)

    def replayed(self, round: int) -> None:
        """Train all clients in one call, with steps as CUDA graphs."""
        self._train_together(self._recorded, round)

    def captured(self, round: int) -> None:
        """Train the clients one after the other, with steps as CUDA graphs."""
        for trainer in self._captured:
            trainer.train(self._theta, round=round)

    @property
    def recordings(self) -> int:
        """The number of CUDA graphs that `replayed` has recorded."""
        return len(self._recorded.replays)

    def _train_together(self, stack: ModelStack, round: int) -> None:
        trained = train_together(stack, self._trainers, self._theta, round=round)
        for trainer, of_one in zip(self._trainers, trained, strict=True):
            trainer.remember(of_one.optimizer_states, of_one.method)


def together_case(preset: str, clients: RoundsOfClients, steps: int) -> dict[str, Any]:
    """The times of a preset's clients, together and one by one, over about `steps` steps of each.

    `ratio` is the time together divided by the time one by one, in adjacent rounds. On a GPU, `replayed_s` and
    `captured_s` are the times together and one by one with steps as CUDA graphs.
    """
    rounds = max(_FEWEST_ROUNDS, steps // clients.steps)
    graphs = {"replayed_s": clients.replayed, "captured_s": clients.captured} if clients.can_be_replayed else {}
    for call in graphs.values():
        call(rounds + 1)  # a step is captured when its shapes occur for the second time
    ways = [clients.alone, clients.together, *graphs.values()]
    (alone_s, alone_cpu_s), (together_s, together_cpu_s), *of_graphs = times(rounds, *ways)
    return {
        "name": "training",
        "case": f"{preset}: {clients.clients} clients together, {clients.steps} steps, {rounds} rounds",
        "alone_s": float(np.median(alone_s)),
        "together_s": float(np.median(together_s)),
        **ratio_of(together_s, alone_s),
        "processor_ratio": float(np.median(together_cpu_s / alone_cpu_s)),
        **{name: float(np.median(graph_s)) for name, (graph_s, _) in zip(graphs, of_graphs, strict=True)},
        **({"recordings": clients.recordings} if graphs else {}),
    }


def times(rounds: int, *calls: Callable[[int], None]) -> FloatArray:
    """The seconds of each call in each round, (calls, 2, rounds): on the clock, and of this thread's processor time.
    The calls take turns. A first round, which imports, fills caches and starts threads, is left out."""
    return np.array([[_times_of(call, t) for call in calls] for t in range(rounds + 1)][1:]).transpose(1, 2, 0)


def ratio_of(ours_s: FloatArray, others_s: FloatArray) -> dict[str, float]:
    """The median and the quartiles of the ratios of two calls' times, ours to others, round by round."""
    low, middle, high = np.quantile(ours_s / others_s, (0.25, 0.5, 0.75)).tolist()
    return {"ratio": middle, "ratio_q1": low, "ratio_q3": high}


def _times_of(call: Callable[[int], None], round: int) -> tuple[float, float]:
    started_s, started_cpu_s = time.perf_counter(), time.thread_time()
    call(round)
    return time.perf_counter() - started_s, time.thread_time() - started_cpu_s
