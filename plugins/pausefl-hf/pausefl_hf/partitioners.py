"""Flower's partitioners, which divide the rows of pausefl's training examples among clients."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import datasets
import numpy as np
from flwr_datasets import partitioner as theirs

from pausefl_client.data.partition import Dealt
from pausefl_process.plugins import in_one_line
from pausefl_proto.arrays import IntArray
from pausefl_proto.errors import ConfigError


@dataclass(frozen=True)
class Flower:
    """A partitioner of flwr-datasets: `{ kind = "pausefl_hf:Flower", name = "IidPartitioner", options = {} }`."""

    name: str
    """The class in `flwr_datasets.partitioner`."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Its arguments. The experiment gives the number of partitions and the seed. By default, it deals by label."""

    def deal(self, dealt: Dealt, rng: np.random.Generator) -> Sequence[IntArray]:
        """The rows of the first partitions, one partition for each client. Raises ConfigError if there are too few."""
        made = getattr(theirs, self.name, None)
        if not (isinstance(made, type) and issubclass(made, theirs.Partitioner)):
            raise ConfigError(f'workload.partition.name = "{self.name}": is no partitioner of flwr_datasets')
        columns: dict[str, Any] = {"row": np.arange(dealt.labels.size), "label": dealt.labels}
        if dealt.owners is not None:
            columns["owner"] = dealt.owners
        ours = {"num_partitions": dealt.clients, "seed": int(rng.integers(2**31)), "partition_by": "label"}
        taken = inspect.signature(made).parameters
        try:
            found = made(**{**{key: value for key, value in ours.items() if key in taken}, **self.options})
        except (TypeError, ValueError) as error:
            raise ConfigError(f"workload.partition.options: {in_one_line(error)}") from error
        found.dataset = datasets.Dataset.from_dict(columns)
        if found.num_partitions < dealt.clients:
            raise ConfigError(f"workload.partition: makes {found.num_partitions} parts for {dealt.clients} clients")
        return [np.asarray(found.load_partition(k)["row"][:], np.int64) for k in range(dealt.clients)]
