"""What an evaluator and the server that asks it are told of an experiment: small records."""

import json
from dataclasses import dataclass

from pausefl.config.client_records import tls_of, training_of
from pausefl.config.experiment import Experiment
from pausefl.config.tables import WorkloadTable
from pausefl_client.training.trainer import TrainingSettings
from pausefl_proto.addresses import is_loopback
from pausefl_proto.errors import ConfigError
from pausefl_proto.tls import Tls


@dataclass(frozen=True)
class EvaluatorPlan:
    """What an evaluator evaluates, and on what. The names are those of `[workload]`."""

    dataset: str
    model: str
    device: str
    seed: int
    """The seed of θ_0."""
    split_seed: int
    """The seed of the data set, and of the subsets that are evaluated."""
    subset_examples: int
    training: TrainingSettings
    """How clients train; the evaluator rehearses one such step before round 1."""
    workload: WorkloadTable
    """The table that names the training method."""

    @property
    def subject(self) -> str:
        """What a run and its evaluator must agree on, as JSON."""
        seeds = {"seed": self.seed, "split": self.split_seed}
        return json.dumps({"dataset": self.dataset, "model": self.model, **seeds, "subset": self.subset_examples})


@dataclass(frozen=True)
class EvaluatorEndpoint:
    """Where an evaluator listens; port 0 takes any free one."""

    host: str
    port: int
    tls: Tls | None
    """None: the server is spoken to in the clear."""


@dataclass(frozen=True)
class EvaluatorConnection:
    """How a server reaches its evaluator."""

    address: str
    """HOST:PORT of a `pausefl evaluator`; empty: the server starts a process of its own."""
    tls: Tls | None
    patience_s: float
    """How long to wait for an evaluator that must be there."""
    answer_s: float
    """How long one that is there may take for an answer."""


def evaluator_plan(experiment: Experiment) -> EvaluatorPlan:
    """What to evaluate; ConfigError where models learn nothing that could be evaluated."""
    workload = experiment.workload
    if workload.model == "synthetic":
        raise ConfigError('workload.model = "synthetic": learns nothing that an evaluator could evaluate')
    return EvaluatorPlan(
        dataset=workload.dataset,
        model=workload.model,
        device=workload.device,
        seed=experiment.experiment.seed_of("model"),
        split_seed=experiment.experiment.seed_of("split"),
        subset_examples=experiment.evaluation.subset,
        training=training_of(workload),
        workload=workload,
    )


def evaluator_endpoint(experiment: Experiment) -> EvaluatorEndpoint:
    """Where a `pausefl evaluator` listens; ConfigError where other machines could reach it without mutual TLS."""
    where, tls = experiment.evaluation, tls_of(experiment.tls)
    if not (is_loopback(where.host) or where.insecure or (tls and tls.ca)):
        raise ConfigError(
            f'evaluation.host = "{where.host}": other machines can reach it; set [tls] with a ca (pausefl certs makes'
            " its files), or say --insecure"
        )
    return EvaluatorEndpoint(where.host, where.port, tls)


def evaluator_connection(experiment: Experiment) -> EvaluatorConnection:
    """How the server reaches its evaluator."""
    where = experiment.evaluation
    return EvaluatorConnection(where.address, tls_of(experiment.tls), where.connect_timeout_s, where.answer_timeout_s)
