"""An experiment: a TOML file (or the name of a preset) as a validated, immutable, typed configuration.

Every mistake becomes one `ConfigError` line that names the key, with its table, and what is allowed.
"""

import os

import tomli_w

from pausefl.config.delays.training import plan_training_times
from pausefl.config.links import LatencyTable, LinkPlan, plan_links
from pausefl.config.tables import (
    AdmissionTable,
    AggregationTable,
    ClientGroup,
    ClientsTable,
    EvaluationTable,
    ExperimentTable,
    HostTable,
    MetricsTable,
    PrivacyTable,
    SelectionTable,
    ServerTable,
    TlsTable,
    WireTable,
    WorkloadTable,
)
from pausefl.config.validation import TomlTable
from pausefl.delays import Delay

# Up to so many clients, each has a process of its own, as a device would.
_PROCESSES_OF_THEIR_OWN = 32
# Beyond, an event loop per core keeps time for as few clients as it can; one loop for a thousand is late for many.
_LEAST_PROCESSES = 4


class Experiment(TomlTable):
    """One experiment: an immutable record for each table of its file, such as `experiment.selection.m`."""

    experiment: ExperimentTable = ExperimentTable()
    clients: ClientsTable = ClientsTable()
    selection: SelectionTable = SelectionTable()
    privacy: PrivacyTable = PrivacyTable()
    latency: LatencyTable = LatencyTable()
    workload: WorkloadTable = WorkloadTable()
    aggregation: AggregationTable = AggregationTable()
    evaluation: EvaluationTable = EvaluationTable()
    server: ServerTable = ServerTable()
    metrics: MetricsTable = MetricsTable()
    wire: WireTable = WireTable()
    tls: TlsTable = TlsTable()
    admission: AdmissionTable = AdmissionTable()
    host: HostTable = HostTable()

    @property
    def client_ids(self) -> list[str]:
        """The ids of the emulated clients, in order."""
        return list(self.group_of_client)

    @property
    def group_of_client(self) -> dict[str, str]:
        """The name of each client's group, by id."""
        return {client_id: name for name, group in self.groups.items() for client_id in group.client_ids(name)}

    @property
    def groups(self) -> dict[str, ClientGroup]:
        """The groups of clients by name; one called "client" unless said otherwise."""
        return self.clients.groups or {"client": ClientGroup(count=self.clients.count)}

    @property
    def learned_from(self) -> str:
        """The data set; "synthetic" where nothing is learned."""
        return "synthetic" if self.workload.model == "synthetic" else self.workload.dataset

    @property
    def title(self) -> str:
        """What a run of it is called while it is shown."""
        return f"{self.selection.policy} on {self.learned_from}"

    @property
    def disclosed(self) -> frozenset[str]:
        """What clients tell un-noised besides data sizes and times: a run without privacy hides nothing else."""
        return frozenset(self.privacy.disclose) if self.privacy.enabled else frozenset({"loss", "labels"})

    @property
    def minimum_clients(self) -> int:
        """How many clients round 1 waits for."""
        return self.clients.count if self.clients.minimum is None else self.clients.minimum

    @property
    def clients_per_process(self) -> int:
        """How many clients share a process."""
        count = self.clients.count
        if self.clients.per_process is not None:
            return self.clients.per_process
        return 1 if count <= _PROCESSES_OF_THEIR_OWN else -(-count // max(_LEAST_PROCESSES, os.cpu_count() or 1))

    @property
    def tau_min_s(self) -> float | None:
        """τ_min, None for the least latency seen."""
        return None if self.latency.tau_min_s == "auto" else self.latency.tau_min_s

    @property
    def round_timeout_s(self) -> float | None:
        """server.round_timeout_s, None for "auto"."""
        return None if self.server.round_timeout_s == "auto" else self.server.round_timeout_s

    @property
    def admitted_ids(self) -> frozenset[str] | str:
        """The ids that may join, or a pattern of them."""
        ids = self.admission.clients
        return ids if isinstance(ids, str) and ids else frozenset(ids or self.client_ids)

    def links(self) -> dict[str, LinkPlan]:
        """Each client's link, by id."""
        return plan_links(self.latency, self.client_ids, self.experiment.seed_of("latency"))

    def training_times(self) -> dict[str, Delay]:
        """The law of each client's training time, by id; empty where none is stated."""
        return plan_training_times(self.workload.training_time, self.client_ids, self.experiment.seed)

    def delays(self) -> dict[str, Delay]:
        """The law of each client's delay per exchange, by id."""
        return {client_id: link.exchange for client_id, link in self.links().items()}

    def to_toml(self) -> str:
        """The experiment with every default filled in."""
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))


def with_rounds(experiment: Experiment, rounds: int) -> Experiment:
    """The same experiment with another number of rounds."""
    return experiment.model_copy(update={"experiment": experiment.experiment.model_copy(update={"rounds": rounds})})


def with_seed(experiment: Experiment, seed: int) -> Experiment:
    """The same experiment with another seed."""
    return experiment.model_copy(update={"experiment": experiment.experiment.model_copy(update={"seed": seed})})
