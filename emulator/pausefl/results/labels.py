"""Counts the labels that each client holds under the experiment's partition of the data."""

from collections.abc import Mapping

import numpy as np

from pausefl.experiment.client_records import dealt_out
from pausefl.experiment.experiment import Experiment, parse_experiment
from pausefl.experiment.groups import behaviours_of
from pausefl.experiment.population.behaviours import BehaviourChain
from pausefl.results.reading import RunData
from pausefl_client.data.datasets import are_classes, load_dataset
from pausefl_proto.arrays import IntArray
from pausefl_proto.errors import ConfigError

LabelCounts = Mapping[str, IntArray]
"""By client id: (classes,) int64, how many examples of each label the client holds."""


def clients_labels(run: RunData) -> LabelCounts | None:
    """The labels of a run's clients. None if the data are not on this machine, have no classes or are synthetic."""
    try:
        return label_counts(parse_experiment(run.config))
    except ConfigError:  # a run may be read on a machine without its data
        return None


def label_counts(experiment: Experiment) -> LabelCounts | None:
    """The labels of all clients' examples; None without classes. ConfigError if the data are not on this machine."""
    workload, seed, ids = experiment.workload, experiment.experiment.seed, experiment.client_ids
    if workload.model == "synthetic":
        return None
    split_seed = experiment.experiment.seed_of("split")
    data = load_dataset(workload.dataset, examples=workload.examples, seed=split_seed)
    train, classes = data.train, data.classes
    if not are_classes(train.labels, classes):
        return None
    parts = dealt_out(workload, data, ids, split_seed)
    behaviours = behaviours_of(experiment.groups)

    def labels_of(client_id: str, rows: IntArray) -> IntArray:
        labels = train.labels[rows]
        if behaviours[client_id]:
            chain = BehaviourChain(behaviours[client_id], seed=seed, client_id=client_id)
            labels = chain.examples(train.take(rows), classes).labels
        # A behaviour may give examples a class that no model has, or none.
        is_class = (labels >= 0) & (labels < classes) & (labels.dtype == np.int64)
        return labels[is_class].astype(np.int64)

    return {c: np.bincount(labels_of(c, rows), minlength=classes) for c, rows in zip(ids, parts, strict=True)}
