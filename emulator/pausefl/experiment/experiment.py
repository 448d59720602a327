"""The configuration of an experiment, from a TOML file or a preset: validated, immutable and typed.

Every mistake becomes one `ConfigError` line that names the key, with its table, and what is allowed.
"""

import fnmatch
from collections.abc import Mapping
from typing import Any

import tomli_w
from pydantic import ValidationError

from pausefl.experiment.checks import check_fit
from pausefl.experiment.links import LatencyTable
from pausefl.experiment.objects import labels_of
from pausefl.experiment.tables import (
    AdmissionTable,
    AggregationTable,
    AsynchronousTable,
    ClientGroup,
    ClientsTable,
    EvaluationTable,
    ExperimentTable,
    Metrics,
    PrivacyTable,
    SelectionTable,
    ServerTable,
    WireTable,
    Workload,
)
from pausefl.experiment.toml_source import Overrides, document_of, import_from
from pausefl.experiment.validation import TomlTable, as_json, explain
from pausefl_process.machine import available_cores
from pausefl_proto.errors import ConfigError
from pausefl_proto.tls import Tls
from pausefl_server.host_limits import HostLimits

# Up to this many clients, each client has a process of its own, as a device would.
_PROCESSES_OF_THEIR_OWN = 32
# With more clients, there is one process per core, and at least this many. One event loop for a thousand is often late.
_LEAST_PROCESSES = 4


class Experiment(TomlTable):
    """One experiment: an immutable record for each table of its file, such as `experiment.selection.m`."""

    experiment: ExperimentTable = ExperimentTable()
    clients: ClientsTable = ClientsTable()
    selection: SelectionTable = SelectionTable()
    privacy: PrivacyTable = PrivacyTable()
    latency: LatencyTable = LatencyTable()
    workload: Workload = Workload()
    aggregation: AggregationTable = AggregationTable()
    asynchronous: AsynchronousTable = AsynchronousTable()
    evaluation: EvaluationTable = EvaluationTable()
    server: ServerTable = ServerTable()
    metrics: Metrics = Metrics()
    wire: WireTable = WireTable()
    tls: Tls = Tls()
    admission: AdmissionTable = AdmissionTable()
    host: HostLimits = HostLimits()

    @property
    def client_ids(self) -> list[str]:
        """The ids of the emulated clients, in order."""
        return [client_id for ids in self.ids_by_group.values() for client_id in ids]

    @property
    def ids_by_group(self) -> dict[str, list[str]]:
        """The ids of each group's clients, by the group's name."""
        return {name: group.client_ids(name) for name, group in self.groups.items()}

    @property
    def groups(self) -> dict[str, ClientGroup]:
        """The groups of clients by name. Without [clients.groups], there is one group called "client"."""
        return self.clients.groups or {"client": ClientGroup(count=self.clients.count, ids=self.clients.ids)}

    @property
    def is_asynchronous(self) -> bool:
        """Whether the server takes steps as updates arrive, in place of rounds."""
        return self.server.mode == "asynchronous"

    @property
    def learned_from(self) -> str:
        """The name of the data set. "synthetic" if the model is not trained."""
        return "synthetic" if self.workload.model == "synthetic" else self.workload.dataset

    @property
    def title(self) -> str:
        """The title under which a run of this experiment is displayed."""
        return " on ".join(labels_of((self.selection.policy, self.learned_from)).values())

    @property
    def disclosed(self) -> frozenset[str]:
        """The values sent without noise, besides data sizes and times. Without privacy, these are loss and labels."""
        return frozenset(self.privacy.disclose) if self.privacy.enabled else frozenset({"loss", "labels"})

    @property
    def minimum_clients(self) -> int:
        """How many clients round 1 waits for."""
        if self.clients.minimum is not None:
            return self.clients.minimum
        return len(self.expected_ids)

    @property
    def expected_ids(self) -> frozenset[str]:
        """The ids of the experiment's clients that admission allows."""
        ids = self.admitted_ids
        return frozenset(fnmatch.filter(self.client_ids, ids) if isinstance(ids, str) else ids & {*self.client_ids})

    @property
    def clients_per_process(self) -> int:
        """How many clients share a process if all clients run on this machine."""
        return self.per_process_of(self.clients.count)

    def per_process_of(self, count: int) -> int:
        """How many clients share a process if `count` clients run on this machine."""
        if self.clients.per_process is not None:
            return self.clients.per_process
        return 1 if count <= _PROCESSES_OF_THEIR_OWN else -(-count // max(_LEAST_PROCESSES, available_cores()))

    @property
    def tau_min_s(self) -> float | None:
        """τ_min in seconds. None for "auto"."""
        return None if self.latency.tau_min_s == "auto" else self.latency.tau_min_s

    @property
    def round_timeout_s(self) -> float | None:
        """The deadline of a round in seconds. None for "auto"."""
        return None if self.server.round_timeout_s == "auto" else self.server.round_timeout_s

    @property
    def admitted_ids(self) -> frozenset[str] | str:
        """The ids that may join, or a pattern of them."""
        ids = self.admission.clients
        return ids if isinstance(ids, str) and ids else frozenset(ids or self.client_ids)

    def to_toml(self) -> str:
        """The experiment with every default filled in."""
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))

    def replace(self, overrides: Overrides) -> "Experiment":
        """A copy of the experiment with other values, such as `{"selection.m": 3}`. ConfigError says what is wrong."""
        document = self.model_dump(mode="json", exclude_unset=True, exclude_none=True)
        if self.clients.groups or any(str(override).startswith("clients.groups") for override in overrides):
            document.get("clients", {}).pop("count", None)  # it is summed again over the groups
        return experiment_of(document_of(tomli_w.dumps(document), overrides))

    def __repr__(self) -> str:
        rounds, clients = self.experiment.rounds, self.clients.count
        return f"<Experiment: {self.title}, {rounds} rounds of {self.selection.m} of {clients} clients>"

    __str__ = __repr__


def experiment_of(document: Mapping[str, Any]) -> Experiment:
    """Validate an experiment given as tables. Raises ConfigError for the first mistake."""
    try:
        experiment = Experiment.model_validate_json(as_json(document))
    except ValidationError as error:
        raise ConfigError(explain(error, Experiment)) from None
    import_from(experiment.experiment.python_path, experiment.experiment.by_value)
    check_fit(experiment)
    return experiment


def with_rounds(experiment: Experiment, rounds: int) -> Experiment:
    """The same experiment with another number of rounds."""
    return experiment.model_copy(update={"experiment": experiment.experiment.model_copy(update={"rounds": rounds})})


def with_seed(experiment: Experiment, seed: int) -> Experiment:
    """The same experiment with another seed."""
    return experiment.model_copy(update={"experiment": experiment.experiment.model_copy(update={"seed": seed})})
