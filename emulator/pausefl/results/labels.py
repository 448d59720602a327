"""Which labels each client holds, as the experiment deals them out."""

from dataclasses import dataclass

import numpy as np

from pausefl.config.client_records import partitioner_of
from pausefl.config.experiment import Experiment
from pausefl.config.groups import behaviours_of
from pausefl.population.behaviours import BehaviourChain
from pausefl_client.data.datasets import load_dataset
from pausefl_client.data.partition import partition
from pausefl_proto.arrays import IntArray


@dataclass(frozen=True)
class LabelCounts:
    """How many examples of each label each client holds."""

    client_ids: tuple[str, ...]
    counts: IntArray
    """(clients, classes) int64."""


def label_counts(experiment: Experiment) -> LabelCounts | None:
    """The labels of all clients' examples; None where they have no classes. ConfigError if the data are not here."""
    workload, seed, ids = experiment.workload, experiment.experiment.seed, experiment.client_ids
    if workload.model == "synthetic":
        return None
    split_seed = experiment.experiment.seed_of("split")
    data = load_dataset(workload.dataset, examples=workload.examples, seed=split_seed)
    train, classes = data.train, data.classes
    if not train.has_classes:
        return None
    parts = partition(
        partitioner_of(workload), train.labels, clients=len(ids), classes=classes, seed=split_seed, owners=train.owners
    )
    behaviours = behaviours_of(experiment.groups)

    def labels_of(client_id: str, rows: IntArray) -> IntArray:
        if not behaviours[client_id]:
            return train.labels[rows].astype(np.int64)
        return (
            BehaviourChain(behaviours[client_id], seed=seed, client_id=client_id)
            .examples(train.take(rows), classes)
            .labels.astype(np.int64)
        )

    counts = [np.bincount(labels_of(c, rows), minlength=classes) for c, rows in zip(ids, parts, strict=True)]
    return LabelCounts(tuple(ids), np.array(counts))
