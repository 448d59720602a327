"""What a system is asked to play, and how it tells how far it is."""

import json
import os
import time
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float32]
"""A model, (d,)."""
TASK = "BENCHMARK_TASK"
PROGRESS = "BENCHMARK_PROGRESS"
"""Variables of the environment: the task as JSON, and the pipe that takes lines of progress."""
ENDLESS = 1_000_000
"""Rounds of a play: it is ended from outside, while all of its processes are still there to be measured."""

# Rounds may take half a millisecond: to tell of each would be work beside the measured one.
_APART_S = 0.02


@dataclass(frozen=True)
class Task:
    """A federation to play."""

    clients: int
    per_round: int
    """Clients of each round, chosen at random; with as many as there are, every round has all."""
    model_bytes: int
    """Size of the model where nothing is trained."""
    rated_round: int = 0
    """The round after which the model's accuracy is told; 0: none."""
    data: str = ""
    """The folder of the training's data, from `benchmarks.trained_data`; empty: clients answer with what they got."""
    has_noise: bool = False
    """Whether clients clip and add Laplace noise."""
    buffer: int = 0
    """K, the updates of a step that waits for no other, with all clients at work; 0: rounds."""
    seed: int = 1
    """What pausefl draws choices and batches from; the others draw them anew in each play."""

    @classmethod
    def given(cls) -> Self:
        """The task of this process."""
        return cls(**json.loads(os.environ[TASK]))

    def environment(self, progress: Path) -> dict[str, str]:
        """The variables that give the task to a system's processes."""
        return {TASK: json.dumps(asdict(self)), PROGRESS: str(progress)}


def settings_of(task: Task) -> dict[str, Any]:
    """How clients train, from `benchmarks.trained_data`."""
    found: dict[str, Any] = json.loads((Path(task.data) / "settings.json").read_text("utf-8"))
    return found


class Progress:
    """Lines of JSON, read by the process that measures."""

    def __init__(self) -> None:
        self._pipe = os.open(os.environ[PROGRESS], os.O_WRONLY)
        self._told_s = 0.0

    def ended(self, round: int) -> None:
        """Tell that a round has ended, unless one was told just before; 0: all clients are there."""
        now_s = time.monotonic()
        if now_s - self._told_s >= _APART_S:
            self._told_s = now_s
            self._tell({"round": round, "at_s": now_s})

    def accuracy(self, value: float) -> None:
        """Tell the accuracy, on the test data, of the model of the round that is rated."""
        self._tell({"accuracy": value})

    def _tell(self, line: dict[str, float]) -> None:
        os.write(self._pipe, json.dumps(line).encode() + b"\n")


@cache
def progress() -> Progress:
    """This process's progress."""
    return Progress()
