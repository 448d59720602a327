"""Decides whether a round's clients train together: as the experiment says, or as is faster on this machine."""

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from timeit import timeit
from typing import TYPE_CHECKING

import numpy as np

from pausefl.runtime.client.plan import TrainingPlan
from pausefl.runtime.client.process import make_trainers
from pausefl_client.training.trainer import Trainer, innermost
from pausefl_process.events import Notice, Report
from pausefl_process.files import write_durably
from pausefl_proto.wire import Vector

if TYPE_CHECKING:  # clients with a synthetic model need no torch
    from pausefl_client.training.torch_trainer import TorchTrainer

_TRIALS = 5
_LEAST_SPEEDUP = 1.1
_KEY = "clients.batched"


def with_batching(plan: TrainingPlan, asked: int, run_dir: Path, report: Report) -> TrainingPlan:
    """The plan with `batched` set to "on" or "off". "auto" is measured with `asked` clients, the number per round.

    A resumed run keeps the earlier choice.
    """
    if plan.batched == "off" or plan.workload.model == "synthetic":
        return replace(plan, batched="off")
    kept = run_dir / "batched.json"
    if not kept.exists():
        is_batched, said = _choice(plan, asked)
        report(Notice(f'{_KEY} = "{plan.batched}": {said}'))
        write_durably(kept, json.dumps({"batched": is_batched, "because": said}) + "\n")
    return replace(plan, batched="on" if json.loads(kept.read_text("utf-8"))["batched"] else "off")


def _choice(plan: TrainingPlan, asked: int) -> tuple[bool, str]:
    """Whether to train together, and why."""
    from pausefl_client.batched.layers import NotStackable
    from pausefl_client.batched.training import check_stackable

    trainers = plain_trainers(plan, asked)
    try:
        check_stackable(own_trainers(trainers)[0])
        if plan.batched == "on":
            return True, "the clients of a round train together"
        speedup = measured_speedup(trainers, _TRIALS)
    except NotStackable as reason:  # a measured step raises it, too, if gradients are missing
        return False, f"clients train one by one: {reason}"
    if speedup < _LEAST_SPEEDUP:
        return False, f"clients train one by one: together they would be {speedup:.2g} times as fast"
    return True, f"the clients of a round train together, {speedup:.2g} times as fast as one by one"


def plain_trainers(plan: TrainingPlan, count: int) -> Sequence[Trainer]:
    """Trainers of the first `count` clients, which train one by one, without behaviours and stated times."""
    untimed = replace(plan.workload, step_s=None)
    plain = replace(plan, workload=untimed, behaviours=dict.fromkeys(plan.behaviours, ()), training_times={})
    return list(make_trainers(plain, plan.client_ids[:count]).values())


def own_trainers(trainers: Sequence[Trainer]) -> "list[TorchTrainer]":
    """The trainers without the wrappers that capture their steps on a GPU."""
    from pausefl_client.training.torch_trainer import TorchTrainer

    return [trainer for trainer in map(innermost, trainers) if isinstance(trainer, TorchTrainer)]


def measured_speedup(trainers: Sequence[Trainer], trials: int) -> float:
    """How many times as fast a round trains together as one by one, in this thread; the median of paired trials.

    On a processor the thread's CPU time counts, which other work on the machine changes little.
    """
    from pausefl_client.batched.replays import recorder_for
    from pausefl_client.batched.stack import ModelStack
    from pausefl_client.batched.training import train_together

    theta: Vector = np.zeros(trainers[0].manifest.size, np.float32)
    own = own_trainers(trainers)
    first = own[0]
    stack = ModelStack(first.model, first.settings, len(own), recorder_for(first.device))
    together = partial(train_together, stack, own, theta)

    def alone(round: int) -> None:
        for trainer in trainers:
            trainer.train(theta, round=round)

    # The first round does not count: it imports modules and fills caches.
    taken_s = partial(timeit, number=1, timer=time.thread_time if first.device.type == "cpu" else time.perf_counter)
    ratios = [taken_s(partial(alone, t)) / taken_s(partial(together, round=t)) for t in range(1, trials + 2)][1:]
    return float(np.median(ratios))
