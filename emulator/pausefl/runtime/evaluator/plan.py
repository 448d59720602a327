"""The part of an experiment that an evaluator and the server that asks it need, and what it answers. No torch here."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from pausefl.experiment.experiment import Experiment
from pausefl.experiment.tables import EvaluationTable, Workload
from pausefl.extras import require
from pausefl.runtime.processes.resources import own_device
from pausefl_proto.errors import ConfigError
from pausefl_proto.tls import Tls
from pausefl_proto.wire import Manifest, Vector
from pausefl_server.records import Evaluation

DTYPE_BYTES = {"BOOL": 1, "U8": 1, "I8": 1, "I16": 2, "F16": 2, "BF16": 2, "I32": 4, "F32": 4, "I64": 8, "F64": 8}
"""The bytes of one value of each dtype, by its name in safetensors."""


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
    dead_after_s: float
    """How long either of them may be silent before the other closes the connection."""
    clients: int = 1
    """How many clients share the training examples."""

    @property
    def subject(self) -> str:
        """The values on which a run and its evaluator must agree, as JSON."""
        w = self.workload
        seeds = {"seed": self.seed, "split": self.split_seed, "subset": self.evaluation.subset}
        return json.dumps({"dataset": w.dataset, "model": w.model, "statistics": w.statistics, **seeds})

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
    tls, dead_after_s = experiment.tls.in_use(), experiment.server.dead_after_s
    return EvaluatorPlan(experiment.trained, *seeds, experiment.evaluation, tls, dead_after_s, experiment.clients.count)


class StoredTensor(NamedTuple):
    """A tensor as a model's file stores it: name, dtype, shape and values."""

    name: str
    dtype: str
    """The dtype's name in safetensors, such as "BOOL" or "I64"."""
    shape: tuple[int, ...]
    data: bytes
    """Its values in order, little endian."""


@dataclass(frozen=True)
class ModelRest:
    """All of a model's `state_dict` that θ does not hold."""

    constants: tuple[StoredTensor, ...] = ()
    tied: Mapping[str, str] = field(default_factory=dict)
    """Further names of tensors, each with the tensor's first name."""
    local: Manifest = field(default_factory=lambda: Manifest(()))
    """The running statistics that stay with the clients. The evaluator estimates its own for each model."""


NO_REST = ModelRest()


class InitialModel(NamedTuple):
    """The model that a run begins with."""

    manifest: Manifest
    theta_0: Vector
    """(d,) float32."""
    rest: ModelRest = NO_REST


class Evaluated(NamedTuple):
    """The results of a model's evaluation."""

    evaluations: tuple[Evaluation, ...]
    statistics: Vector | None = None
    """Estimates of `ModelRest.local`, float32; None if there are none."""
