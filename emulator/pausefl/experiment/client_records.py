"""Builds the client's records from [workload]: its training method and its data."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pausefl.experiment.kinds import read_kind
from pausefl.experiment.tables import Workload
from pausefl_client.data.datasets import DATASETS, Dataset, load_dataset
from pausefl_client.data.partition import PARTITIONERS, ByClient, Dealt, Partitioner, partition
from pausefl_client.registries import MODELS, TRAINING_METHODS, WITH_CONTROL
from pausefl_proto.arrays import IntArray
from pausefl_proto.errors import ConfigError

if TYPE_CHECKING:  # the import needs torch
    from pausefl_client.training.method import TrainingMethod


def method_of(workload: Workload) -> "TrainingMethod":
    """A new training method, for one client. Raises ConfigError for a bad one. Imports torch."""
    method: TrainingMethod = read_kind(TRAINING_METHODS, _method_table(workload), "workload.training")
    if method.has_control and not has_control(workload):
        due = f"must be False; a control variate goes with the name {' or '.join(map(json.dumps, WITH_CONTROL))} alone"
        raise ConfigError(f"workload.training: {type(method).__name__}.has_control {due}")
    return method


def method_name(workload: Workload) -> str:
    """The name of the training method. Empty for a model that is not trained."""
    return "" if workload.model == "synthetic" else str(_method_table(workload).get("kind", ""))


def has_control(workload: Workload) -> bool:
    """Whether a control variate travels with the model. Imports no torch."""
    return method_name(workload) in WITH_CONTROL


def _method_table(workload: Workload) -> dict[str, Any]:
    if not workload.proximal_mu:
        return workload.training
    if workload.training != {"kind": "plain"}:
        raise ConfigError('workload.proximal_mu: goes with workload.training = "plain"')
    return {"kind": "fedprox", "mu": workload.proximal_mu}


def check_names(workload: Workload) -> None:
    """Raise ConfigError for an unknown name in [workload]. Imports nothing that the names stand for."""
    DATASETS.check_name(workload.dataset, "workload.dataset")
    if workload.model == "synthetic":
        return
    MODELS.check_name(workload.model, "workload.model")
    TRAINING_METHODS.check_name(method_name(workload), "workload.training.kind")


def partitioner_of(workload: Workload) -> Partitioner:
    """The partitioner that divides the training examples among clients. Raises ConfigError for a bad one."""
    if workload.partition.get("kind") == "dirichlet":
        raise ConfigError(
            'workload.partition = "dirichlet": is ambiguous; "dominant-label" draws sizes and a dominant label'
            ' (PAUSE), "label-dirichlet" draws label proportions (Hsu et al., 2019)'
        )
    partitioner: Partitioner = read_kind(PARTITIONERS, workload.partition, "workload.partition")
    return partitioner


def dealt_out(workload: Workload, data: Dataset, client_ids: Sequence[str], seed: int) -> list[IntArray]:
    """The rows of each client's training examples, sorted. Raises ConfigError if the partition is not possible."""
    dealt = Dealt(data.train.labels, data.classes, len(client_ids), data.train.owners, client_ids)
    return partition(partitioner_of(workload), dealt, seed)


def owners_of(workload: Workload, client_ids: Sequence[str], seed: int) -> dict[str, str]:
    """The owner of each client's examples, by client id. Empty if there are no owners, or the data is not here."""
    if workload.model == "synthetic" or not isinstance(partitioner_of(workload), ByClient):
        return {}
    try:
        data = load_dataset(workload.dataset, examples=workload.examples, seed=seed)
        parts = dealt_out(workload, data, client_ids, seed)
    except ConfigError:  # the evaluator reports this error, and other machines may have the data
        return {}
    owners = data.train.owners
    return {} if owners is None else {c: str(owners[rows[0]]) for c, rows in zip(client_ids, parts, strict=True)}
