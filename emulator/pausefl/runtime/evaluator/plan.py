"""The part of an experiment that an evaluator needs, and the server that asks it."""

import json
from dataclasses import dataclass, replace

from pausefl.experiment.client_records import with_statistics
from pausefl.experiment.experiment import Experiment
from pausefl.experiment.tables import EvaluationTable, Workload
from pausefl.extras import require
from pausefl.runtime.processes.resources import own_device
from pausefl_proto.errors import ConfigError
from pausefl_proto.tls import Tls


@dataclass(frozen=True)
class EvaluatorPlan:
    """The model and data that an evaluator evaluates, and how it and the server reach each other."""

    workload: Workload
    """Model, data and training settings. The evaluator rehearses one training step of a client before round 1."""
    seed: int
    """The seed of θ_0."""
    split_seed: int
    """The seed of the data set, and of the subsets that are evaluated."""
    evaluation: EvaluationTable
    tls: Tls | None
    """TLS between server and evaluator; None: the connection is not encrypted."""

    @property
    def subject(self) -> str:
        """The values on which a run and its evaluator must agree, as JSON."""
        subject = {"dataset": self.workload.dataset, "model": self.workload.model}
        seeds = {"seed": self.seed, "split": self.split_seed}
        subset = self.evaluation.subset
        return json.dumps({**subject, "statistics": self.workload.statistics, **seeds, "subset": subset})

    def on_own_device(self) -> "EvaluatorPlan":
        """The plan for the evaluator's process. It sees at most one CUDA device from now on (`own_device`).

        ConfigError without torch.
        """
        require("evaluator")
        return replace(self, workload=replace(self.workload, device=own_device(self.workload.device, 0)))


def evaluator_plan(experiment: Experiment) -> EvaluatorPlan:
    """The evaluator's plan. ConfigError for the synthetic model, which learns nothing to evaluate."""
    workload = experiment.workload
    if workload.model == "synthetic":
        raise ConfigError('workload.model = "synthetic": learns nothing that an evaluator could evaluate')
    seeds = experiment.experiment.seed_of("model"), experiment.experiment.seed_of("split")
    workload = with_statistics(workload, experiment.privacy)
    return EvaluatorPlan(workload, *seeds, experiment.evaluation, experiment.tls.in_use())
