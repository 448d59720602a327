"""The task that a system plays, and the way in which it reports its progress."""

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
"""A model's parameters, (d,) float32."""
TASK = "BENCHMARK_TASK"
PROGRESS = "BENCHMARK_PROGRESS"
"""Environment variables for the task, as JSON, and for the path of the pipe to which progress is written."""
ENDLESS = 1_000_000
"""The number of rounds of a play. The measuring process ends it earlier, while all its processes still run."""

# Rounds can take half a millisecond. A report for each would add to the measured work.
_APART_S = 0.02


@dataclass(frozen=True)
class Task:
    """The federation that a system plays."""

    clients: int
    per_round: int
    """The number of clients in each round, chosen at random. If it equals `clients`, every round has all of them."""
    model_bytes: int
    """The size of the model if nothing is trained."""
    rated_round: int = 0
    """The round after which the model's accuracy is reported. 0: never."""
    data: str = ""
    """The folder that `benchmarks.trained_data` wrote. Empty: clients do not train, and return the model unchanged."""
    has_noise: bool = False
    """Whether clients clip and add Laplace noise."""
    buffer: int = 0
    """K, the number of updates in an asynchronous step, with all clients at work. 0: the task has rounds."""
    seed: int = 1
    """The seed of pausefl's choices and batches. The other systems draw them anew in each play."""

    @classmethod
    def given(cls) -> Self:
        """The task that this process plays, from its environment."""
        return cls(**json.loads(os.environ[TASK]))

    def environment(self, progress: Path) -> dict[str, str]:
        """The environment variables that pass the task and the pipe `progress` to a system's processes."""
        return {TASK: json.dumps(asdict(self)), PROGRESS: str(progress)}


def settings_of(task: Task) -> dict[str, Any]:
    """The training settings that `benchmarks.trained_data` wrote."""
    found: dict[str, Any] = json.loads((Path(task.data) / "settings.json").read_text("utf-8"))
    return found


class Progress:
    """Writes progress as lines of JSON, which the measuring process reads."""

    def __init__(self) -> None:
        self._pipe = os.open(os.environ[PROGRESS], os.O_WRONLY)
        self._told_s = 0.0

    def ended(self, round: int) -> None:
        """Report that a round has ended, unless one was reported just before. 0: all clients are connected."""
        now_s = time.monotonic()
        if now_s - self._told_s >= _APART_S:
            self._told_s = now_s
            self._tell({"round": round, "at_s": now_s})

    def accuracy(self, value: float) -> None:
        """Report the rated round's accuracy on the test data."""
        self._tell({"accuracy": value})

    def _tell(self, line: dict[str, float]) -> None:
        os.write(self._pipe, json.dumps(line).encode() + b"\n")


@cache
def progress() -> Progress:
    """The progress writer of this process."""
    return Progress()
