"""How long a reproduction takes here, before it is played."""

import os

import numpy as np

from pausefl.campaigns.reproduction.request import Request, most_chosen
from pausefl.config.experiment import Experiment

_DRAWS = 500
_START_S = 8.0
"""About what a run takes to start and to end."""


def estimated_s(request: Request) -> float:
    """About how long all runs take here: rounds times expected latency and training; real runs differ."""
    cores = os.cpu_count() or 1
    seconds = 0.0
    for series in request.series:
        experiment = request.experiment(series)
        chosen = most_chosen(experiment)
        training_s = (chosen + _most_newcomers(experiment)) * request.reproduction.training_s / cores
        seconds += _START_S + experiment.experiment.rounds * (_expected_wait_s(experiment, chosen) + training_s)
    return request.seeds * seconds


def _most_newcomers(experiment: Experiment) -> int:
    """How many Fed-TS may choose on top: those that join later, and are as they should be."""
    if experiment.selection.policy != "fed-ts":
        return 0
    return sum(g.count for g in experiment.clients.groups.values() if g.join_round > 1 and g.role == "relevant")


def _expected_wait_s(experiment: Experiment, chosen: int) -> float:
    """The mean over random sets of the longest delay, in real seconds."""
    if experiment.experiment.clock == "virtual":
        return 0.0
    rng = np.random.default_rng(1)
    delays_s = np.array([law.sample(rng, _DRAWS) for law in experiment.delays().values()])
    order = rng.permuted(np.tile(np.arange(len(delays_s)), (_DRAWS, 1)), axis=1)[:, :chosen].T
    return experiment.latency.time_scale * float(np.take_along_axis(delays_s, order, axis=0).max(axis=0).mean())
