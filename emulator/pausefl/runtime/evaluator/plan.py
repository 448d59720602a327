"""The part of an experiment for an evaluator, and for the server that asks it."""

import json
from dataclasses import dataclass

from pausefl.experiment.client_records import with_statistics
from pausefl.experiment.experiment import Experiment
from pausefl.experiment.tables import EvaluationTable, Workload
from pausefl_proto.errors import ConfigError
from pausefl_proto.tls import Tls


@dataclass(frozen=True)
class EvaluatorPlan:
    """The model and data that an evaluator evaluates, and how it and the server reach each other."""

    workload: Workload
    """Also how clients train: the evaluator rehearses one such step before round 1."""
    seed: int
    """The seed of θ_0."""
    split_seed: int
    """The seed of the data set, and of the subsets that are evaluated."""
    evaluation: EvaluationTable
    tls: Tls | None
    """None: both speak in the clear."""

    @property
    def subject(self) -> str:
        """The values on which a run and its evaluator must agree, as JSON."""
        subject = {"dataset": self.workload.dataset, "model": self.workload.model}
        seeds = {"seed": self.seed, "split": self.split_seed}
        subset = self.evaluation.subset
        return json.dumps({**subject, "statistics": self.workload.statistics, **seeds, "subset": subset})


def evaluator_plan(experiment: Experiment) -> EvaluatorPlan:
    """The evaluator's plan; ConfigError where models learn nothing that could be evaluated."""
    workload = experiment.workload
    if workload.model == "synthetic":
        raise ConfigError('workload.model = "synthetic": learns nothing that an evaluator could evaluate')
    seeds = experiment.experiment.seed_of("model"), experiment.experiment.seed_of("split")
    workload = with_statistics(workload, experiment.privacy)
    return EvaluatorPlan(workload, *seeds, experiment.evaluation, experiment.tls.in_use())
