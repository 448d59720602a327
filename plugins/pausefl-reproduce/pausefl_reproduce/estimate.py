"""Estimates how long a reproduction takes on this machine, before it is played."""

from dataclasses import replace

from pausefl.experiment.experiment import Experiment
from pausefl.studies.ahead import expected_wait_s
from pausefl_process.machine import available_cores
from pausefl_reproduce.request import Request

_START_S = 8.0
"""About how long a run takes to start and to end."""


def estimated_s(request: Request) -> float:
    """About how long all runs take on this machine, one after the other: rounds × (expected latency + training).

    Real runs differ. On the virtual clock, a run trains on about one core.
    """
    whole = replace(request, scale="full", overrides=())
    seconds = 0.0
    for series in request.series:
        experiment = request.experiment(series)
        cores = 1 if experiment.experiment.clock == "virtual" else available_cores()
        clients_s = request.reproduction.training_s * _trained_share(experiment, whole.experiment(series)) / cores
        round_s = expected_wait_s(experiment) + (experiment.asked + _most_newcomers(experiment)) * clients_s
        seconds += _START_S + experiment.experiment.rounds * round_s
    return request.seeds * seconds


def _trained_share(experiment: Experiment, whole: Experiment) -> float:
    """The ratio of the examples that a client trains on per round to those in the full experiment; 1 if unknown."""
    own, of_whole = _trained_examples(experiment), _trained_examples(whole)
    return own / of_whole if own and of_whole else 1.0


def _trained_examples(experiment: Experiment) -> float | None:
    workload = experiment.workload
    if workload.examples is None:
        return None
    examples = workload.epochs * workload.examples / len(experiment.client_ids)
    return examples if workload.max_steps is None else min(examples, workload.max_steps * workload.batch_size)


def _most_newcomers(experiment: Experiment) -> int:
    """How many newcomers Fed-TS may choose in addition to m: the relevant ones that join later."""
    if experiment.selection.policy != "fed-ts":
        return 0
    return sum(g.count for g in experiment.clients.groups.values() if g.join_round > 1 and g.role == "relevant")
