"""The evaluator in a process of its own, so that judging a model never takes time from a round."""

import asyncio
import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pausefl.errors import PauseflError
from pausefl.wire import Manifest, Vector
from pausefl_emulator.experiment import Experiment
from pausefl_emulator.processes import die_with_parent, ignore_interrupts
from pausefl_server.records import Evaluation

if TYPE_CHECKING:
    from pausefl_emulator.evaluation import Evaluator

_NICENESS = 15

_evaluator: "Evaluator"  # in the evaluator's own process


class EvaluatorProcess:
    """Makes θ_0, then evaluates models one at a time."""

    def __init__(self, pool: ProcessPoolExecutor, experiment: Experiment) -> None:
        self._pool = pool
        self.manifest: Manifest
        self.theta_0: Vector
        self.manifest, self.theta_0 = pool.submit(_start, experiment).result()

    async def evaluate(self, theta: Vector, subset: bool) -> tuple[Evaluation, ...]:
        """On held-out training data and on the test set; PauseflError if the process died."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, _evaluate, theta, subset)
        except BrokenProcessPool as error:
            raise PauseflError("the evaluator's process ended unexpectedly, see server.log") from error


@contextmanager
def evaluator_process(experiment: Experiment) -> Iterator[EvaluatorProcess]:
    """An evaluator for this experiment; ConfigError when its data or model cannot be had."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, initializer=_prepare) as pool:
        yield EvaluatorProcess(pool, experiment)


def _prepare() -> None:
    die_with_parent()
    ignore_interrupts()
    os.nice(_NICENESS)


def _start(experiment: Experiment) -> tuple[Manifest, Vector]:
    import torch

    from pausefl_emulator.evaluation import Evaluator

    global _evaluator  # noqa: PLW0603 - a pool's worker has no other place for its state
    torch.set_num_threads(1)
    w = experiment.workload
    _evaluator = Evaluator(
        w.dataset,
        w.model,
        seed=experiment.experiment.seed,
        device=w.device,
        subset_examples=experiment.evaluation.subset,
    )
    return _evaluator.manifest, _evaluator.theta_0


def _evaluate(theta: Vector, subset: bool) -> tuple[Evaluation, ...]:
    return tuple(_evaluator.evaluate(theta, split, subset=subset) for split in ("validation", "test"))
