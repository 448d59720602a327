"""The configuration of an experiment, from a TOML file or a preset: validated, immutable and typed.

Every mistake becomes one `ConfigError` line that names the key, with its table, and what is allowed.
"""

import fnmatch
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import tomli_w
from pydantic import ValidationError

from pausefl.experiment.client_records import check_names, method_name, partitioner_of
from pausefl.experiment.delays.laws import plan_training_times
from pausefl.experiment.groups import check_groups
from pausefl.experiment.links import LatencyTable, check_netem, sampled_links
from pausefl.experiment.objects import check_modules, import_from, labels_of
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
from pausefl.experiment.toml_source import Overrides, document_of, is_file, naming, read_source
from pausefl.experiment.validation import TomlTable, as_json, check_address, check_finite, explain, unknown_key
from pausefl_process.machine import available_cores
from pausefl_proto.errors import ConfigError
from pausefl_proto.tls import Tls
from pausefl_server.host_limits import HostLimits

# Up to this many clients, each client has a process of its own, as a device would.
_PROCESSES_OF_THEIR_OWN = 32
# With more clients, there is one process per core, and at least this many. One event loop for a thousand is often late.
_LEAST_PROCESSES = 4

_WITHOUT_A_NETWORK: Mapping[str, object] = {
    "latency.injection": "link",
    "metrics.client_port": -1,
    **dict.fromkeys(("evaluation.address", "tls.certificate", "tls.ca"), ""),
    **dict.fromkeys(("admission.tokens", "admission.clients_file", "admission.token"), ""),
}
"""The keys that the virtual clock needs at these values, as all others need a network."""


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
    def trained(self) -> Workload:
        """The workload with `statistics` decided."""
        stay = self.privacy.enabled or method_name(self.workload) == "fedbn"
        return replace(self.workload, statistics=self.workload.statistics or ("local" if stay else "average"))

    @property
    def disclosed(self) -> frozenset[str]:
        """The values sent without noise, besides data sizes and times. Without privacy, these are loss and labels."""
        return frozenset(self.privacy.disclose) if self.privacy.enabled else frozenset({"loss", "labels"})

    @property
    def minimum_clients(self) -> int:
        """How many clients round 1 waits for."""
        return len(self.expected_ids) if self.clients.minimum is None else self.clients.minimum

    @property
    def expected_ids(self) -> frozenset[str]:
        """The ids of the experiment's clients that admission allows."""
        ids = self.admitted_ids
        return frozenset(fnmatch.filter(self.client_ids, ids) if isinstance(ids, str) else ids & {*self.client_ids})

    @property
    def asked(self) -> int:
        """How many clients a round asks, without Fed-TS's newcomers. For an asynchronous step, K."""
        if self.is_asynchronous:
            return self.asynchronous.buffer
        return self.clients.count if self.selection.policy == "all" else min(self.selection.asked, self.clients.count)

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
        changed = document_of(tomli_w.dumps(document), overrides)
        if isinstance(clients := changed.setdefault("clients", {}), dict):
            clients.setdefault("count", self.clients.count)  # no group is left
        return experiment_of(changed)

    def __repr__(self) -> str:
        each = f"rounds of {self.selection.m} of"
        if self.is_asynchronous:
            each = f"steps of {self.asynchronous.buffer} updates of"
        return f"<Experiment: {self.title}, {self.experiment.rounds} {each} {self.clients.count} clients>"

    __str__ = __repr__


def load_experiment(source: str, overrides: Overrides = ()) -> Experiment:
    """Read a TOML file or a preset by name, apply overrides, validate. ConfigError says what is wrong."""
    return parse_experiment(read_source(source), overrides, source if is_file(source) else "")


def parse_experiment(text: str, overrides: Overrides = (), file: str = "") -> Experiment:
    """Validate an experiment's TOML text. Raises ConfigError, which begins with `file`, the text's origin, if given."""
    document = document_of(text, overrides, file)
    with naming(file):
        return experiment_of(document)


def experiment_of(document: Mapping[str, Any]) -> Experiment:
    """Validate an experiment given as tables. Raises ConfigError for the first mistake."""
    try:
        experiment = Experiment.model_validate_json(as_json(document))
    except ValidationError as error:
        raise ConfigError(explain(error, Experiment)) from None
    import_from(experiment.experiment.python_path, experiment.experiment.by_value)
    check_modules(document, experiment.experiment.python_path)
    _check_fit(experiment)
    return experiment


def with_values(experiment: Experiment, table: str, **values: Any) -> Experiment:
    """The same experiment with other values in a table, such as "experiment" and `rounds=3`, which are not checked."""
    before: Any = getattr(experiment, table)
    changed = before.model_copy(update=values) if isinstance(before, TomlTable) else replace(before, **values)
    return experiment.model_copy(update={table: changed})


def _check_fit(experiment: Experiment) -> None:
    """Raise ConfigError for keys that do not fit together."""
    check_finite(experiment.model_dump(exclude={"selection"}))  # sa-pause accepts an infinite cap
    _check_counts(experiment)
    check_groups(experiment.groups)
    check_names(experiment.workload)
    _check_statistics(experiment)
    partitioner_of(experiment.workload)
    if experiment.workload.max_steps is None:
        raise ConfigError("workload.max_steps = None: cannot be said in TOML, and a resumed run would have the default")
    if experiment.evaluation.address:
        check_address("evaluation.address", experiment.evaluation.address)
    _check_links(experiment)
    plan_training_times(experiment.workload.training_time, experiment.client_ids, experiment.experiment.seed)
    _check_clock(experiment)
    for name, parameters in (experiment.selection.__pydantic_extra__ or {}).items():
        if not isinstance(parameters, dict):
            raise ConfigError(unknown_key(f"selection.{name}", sorted(SelectionTable.model_fields)))


def _check_counts(experiment: Experiment) -> None:
    clients, m = experiment.clients, experiment.selection.m
    if not experiment.is_asynchronous and m > clients.count:
        raise ConfigError(f"selection.m = {m}: must be at most clients.count = {clients.count}")
    if twice := next((i for i, n in Counter(experiment.client_ids).items() if n > 1), None):
        raise ConfigError(f'clients: two have the id "{twice}"')
    admitted = experiment.admitted_ids
    if not isinstance(admitted, str) and len(admitted) > clients.count:
        raise ConfigError(f"admission.clients: names {len(admitted)} clients, clients.count = {clients.count}")
    examples = None if experiment.workload.model == "synthetic" else experiment.workload.examples
    if examples is not None and examples < clients.count:
        raise ConfigError(f"workload.examples = {examples}: must be at least clients.count = {clients.count}, one each")


def _check_statistics(experiment: Experiment) -> None:
    """Raise ConfigError if averaged running statistics contradict the training method, or disclose too much."""
    key, privacy = 'workload.statistics = "average"', experiment.privacy
    if experiment.workload.statistics != "average":
        return
    if method_name(experiment.workload) == "fedbn":
        raise ConfigError(f'{key}: goes without workload.training = "fedbn", whose normalisation is each client\'s own')
    if privacy.enabled and "statistics" not in privacy.disclose:
        raise ConfigError(
            f"{key}: clients would tell means and variances of their data without noise; add privacy.disclose ="
            ' ["statistics"], or set "local"'
        )


def _check_links(experiment: Experiment) -> None:
    links = sampled_links(experiment.latency, experiment.ids_by_group, experiment.experiment.seed_of("latency"))
    if experiment.latency.injection == "netem":
        check_netem(links, experiment.clients.count, experiment.clients_per_process)
        if experiment.metrics.client_port >= 0:
            raise ConfigError(
                f"metrics.client_port = {experiment.metrics.client_port}: clients in network namespaces of their own"
                ' (latency.injection = "netem") cannot be scraped'
            )


def _check_clock(experiment: Experiment) -> None:
    """Raise ConfigError for settings that the clock does not allow."""
    if experiment.experiment.clock == "virtual":
        for key, without in _WITHOUT_A_NETWORK.items():
            table, _, name = key.partition(".")
            if (value := getattr(getattr(experiment, table), name)) != without:
                shown = f'"{value}"' if isinstance(value, str) else value
                raise ConfigError(f'experiment.clock = "virtual": goes without {key} = {shown}, which needs a network')
    elif experiment.clients.batched == "on":
        raise ConfigError(
            'clients.batched = "on": goes with experiment.clock = "virtual"; on the real clock a client\'s training'
            " time is measured, and clients that are trained together have none of their own"
        )
