"""An experiment: a TOML file (or the name of a preset) as a validated, immutable, typed configuration.

Every mistake becomes one `ConfigError` line that names the key, with its table, and what is allowed.
"""

import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import tomli_w
from pydantic import ValidationError

from pausefl.config.base import Table
from pausefl.config.links import LatencyTable, LinkPlan, check_access_points, check_netem, plan_links
from pausefl.config.tables import (
    AggregationTable,
    ClientsTable,
    EvaluationTable,
    ExperimentTable,
    GroupTable,
    HostTable,
    MetricsTable,
    PrivacyTable,
    SelectionTable,
    ServerTable,
    TlsTable,
    WorkloadTable,
    group_of,
)
from pausefl.config.toml_source import Overrides, document_of, read_source
from pausefl.config.validation import as_json, build, build_kind, explain, unknown_key
from pausefl.delays import Delay
from pausefl.population.availability import AVAILABILITIES, Availability, Presence, Trace
from pausefl.population.behaviours import BEHAVIOURS, Behaviour, Chain
from pausefl.population.simulated_drifts import DRIFTS, DriftLaw
from pausefl_client.privacy import Mechanism
from pausefl_client.release import schedule_key
from pausefl_client.trainer import TrainingSettings
from pausefl_proto.budget import Budget
from pausefl_proto.draws import generator
from pausefl_proto.errors import ConfigError
from pausefl_proto.tls import Tls

if TYPE_CHECKING:
    from pausefl_server.aggregation import Aggregation
    from pausefl_server.host_limits import Limits
    from pausefl_server.optimizers import ServerOptimizer
    from pausefl_server.selection.base import Policy

# Up to so many clients, each has a process of its own, as a device would.
_PROCESSES_OF_THEIR_OWN = 32
# Beyond, an event loop per core keeps time for as few clients as it can; one loop for a thousand is late for many.
_LEAST_PROCESSES = 4


class Experiment(Table):
    """One experiment, whole."""

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
    tls: TlsTable = TlsTable()
    host: HostTable = HostTable()

    @property
    def client_ids(self) -> list[str]:
        """The ids of the emulated clients, in order."""
        return [client_id for name, group in self.groups.items() for client_id in group.client_ids(name)]

    @property
    def groups(self) -> dict[str, GroupTable]:
        """The groups of clients by name; one called "client" unless said otherwise."""
        return self.clients.groups or {"client": GroupTable(count=self.clients.count)}

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

    def policy(self, name: str | None = None) -> "Policy":
        """The selection policy, with its parameters checked. A client never needs it, nor what it imports."""
        from pausefl_server.selection import policy_class

        name = name or self.selection.policy
        parameters = self.selection.parameters(name)
        if "m" in parameters:
            raise ConfigError(f"selection.{name}.m: unknown key; all policies share selection.m")
        policy: Policy = build(policy_class(name), f"selection.{name}", {"m": self.selection.m, **parameters})
        return policy

    def budget(self) -> Budget | None:
        """ε̄ and η, None in a run without privacy."""
        p = self.privacy
        # Noise scale over clip bound is 2/ε in both units: sensitivity is twice the bound.
        least_for_noise = 2 / p.noise_to_clip_max if p.noise_to_clip_max else 0.0
        return Budget(p.epsilon_budget, p.eta, max(p.epsilon_floor, least_for_noise)) if p.enabled else None

    def mechanism(self) -> Mechanism | None:
        """Clipping and noise, None in a run without privacy."""
        return Mechanism(self.privacy.unit, self.privacy.clip) if self.privacy.enabled else None

    @property
    def noise(self) -> str:
        """Where noise comes from: the sampler's name, or "reproducible", which protects nobody."""
        return "reproducible" if self.privacy.reproducible_noise else self.privacy.sampler

    @property
    def schedule(self) -> str:
        """The privacy both ends agree on, empty in a run without: a job under any other is refused."""
        budget, mechanism = self.budget(), self.mechanism()
        return schedule_key(budget, mechanism, self.noise) if budget is not None and mechanism is not None else ""

    @property
    def data_key(self) -> str:
        """What decides which examples a client holds; a ledger belongs to one client's."""
        if self.workload.model == "synthetic":
            return "synthetic"
        w = self.workload.model_dump(include={"dataset", "examples", "partition", "concentration", "dominant_share"})
        groups = self.clients.model_dump(
            include={"groups"}, exclude={"groups": {"__all__": {"drift"}}}, exclude_defaults=True
        )
        return json.dumps({**w, "clients": self.clients.count, "seed": self.experiment.seed, **groups})

    @property
    def judged_workload(self) -> str:
        """What a run and its evaluator must agree on, as JSON."""
        w = self.workload.model_dump(include={"dataset", "model"})
        return json.dumps({**w, "seed": self.experiment.seed, "subset": self.evaluation.subset})

    def tls_files(self) -> Tls | None:
        """What to speak TLS with, None to speak in the clear."""
        files = Tls(**self.tls.model_dump())
        return None if files == Tls() else files

    def limits(self) -> "Limits":
        """What a host may do to a measurement before it is suspect. A client never needs it."""
        from pausefl_server.host_limits import Limits

        return Limits(**self.host.model_dump())

    def aggregation_rule(self) -> "Aggregation":
        """How updates are combined. A client never needs it."""
        from pausefl_server.aggregation import Aggregation

        values = self.aggregation.model_dump(exclude={"optimizer"})
        rule: Aggregation = build(Aggregation, "aggregation", values)
        return rule

    def server_optimizer(self) -> "ServerOptimizer":
        """How the combined update moves the model. A client never needs it."""
        from pausefl_server.optimizers import ServerOptimizer

        optimizer: ServerOptimizer = build(
            ServerOptimizer, "aggregation.optimizer", self.aggregation.optimizer.model_dump()
        )
        return optimizer

    def training(self) -> TrainingSettings:
        """What a client does with the model."""
        w = self.workload
        return TrainingSettings(w.optimizer, w.learning_rate, w.batch_size, w.epochs, w.max_steps, w.proximal_mu)

    def links(self) -> dict[str, LinkPlan]:
        """Each client's link, by id."""
        return plan_links(self.latency, self.client_ids, self.experiment.seed)

    def chain(self, client_id: str) -> Chain:
        """How a client behaves."""
        return Chain(self._behaviours(group_of(client_id)), seed=self.experiment.seed, client_id=client_id)

    def presence(self, rounds: int | None = None) -> Presence | None:
        """Who is there in which round, of all of the experiment's or so many; None when all clients are, always."""
        groups, rounds, seed = self.groups, rounds or self.experiment.rounds, self.experiment.seed
        if all(g.join_round == 1 and g.leave_round is None and not g.availability for g in groups.values()):
            return None
        columns = []
        for name, group in groups.items():
            availability = self._availability(name)
            for client_id in group.client_ids(name):
                on = availability.on(client_id, rounds, generator(seed, "availability", client_id))
                on[: group.join_round - 1] = False
                on[(group.leave_round or rounds + 1) - 1 :] = False
                columns.append(on)
        return Presence(tuple(self.client_ids), np.stack(columns, axis=1))

    def _at_once(self) -> int:
        """The most clients there are in a round."""
        presence = self.presence()
        return self.clients.count if presence is None else int(presence.table.sum(axis=1).max())

    def drifts(self) -> dict[str, DriftLaw]:
        """The law of each client's drifts in a simulation, by id; ConfigError where a group has none."""
        laws = {}
        for name, group in self.groups.items():
            law = self._drift(name)
            if law is None:
                raise ConfigError(
                    f"clients.groups.{name}.drift: a simulation of {self.selection.policy} draws drifts and needs their"
                    ' law, such as { kind = "lognormal", mean = 1.0, sd = 0.2 }'
                )
            laws.update(dict.fromkeys(group.client_ids(name), law))
        return laws

    def _drift(self, group: str) -> DriftLaw | None:
        """A group's law of drifts, with its parameters checked; None where none is given."""
        table = self.groups[group].drift
        return build_kind(DRIFTS, f"clients.groups.{group}.drift", table) if table else None

    def _availability(self, group: str) -> Availability:
        """A group's availability, with its parameters checked."""
        key = f"clients.groups.{group}.availability"
        availability: Availability = build_kind(AVAILABILITIES, key, self.groups[group].availability, "always")
        if isinstance(availability, Trace):
            self._check_trace(availability, key, self.groups[group].client_ids(group))
        return availability

    def _check_trace(self, trace: Trace, key: str, of_group: Sequence[str]) -> None:
        """A file may serve several groups, but one that names nobody of them is a mistake."""
        if unknown := sorted(trace.named - set(self.client_ids)):
            raise ConfigError(f'{key}.path = "{trace.path}": names {unknown[0]}, which is no client of this experiment')
        if not trace.named & set(of_group):
            raise ConfigError(f'{key}.path = "{trace.path}": names none of {of_group[0]} to {of_group[-1]}')

    def _behaviours(self, group: str) -> list[Behaviour]:
        """A group's behaviours, with their parameters checked."""
        key = f"clients.groups.{group}.behaviours"
        tables = enumerate(self.groups[group].behaviours)
        return [build_kind(BEHAVIOURS, f"{key}.{place}", table) for place, table in tables]

    def delays(self) -> dict[str, Delay]:
        """The law of each client's delay per exchange, by id."""
        return {client_id: link.exchange for client_id, link in self.links().items()}

    def to_toml(self) -> str:
        """The experiment with every default filled in."""
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))

    def check(self) -> None:
        """What no single key shows; raises ConfigError."""
        if self.selection.m > self.clients.count:
            raise ConfigError(f"selection.m = {self.selection.m}: must be at most clients.count = {self.clients.count}")
        if self.minimum_clients > self.clients.count:
            raise ConfigError(
                f"clients.minimum = {self.clients.minimum}: must be at most clients.count = {self.clients.count}"
            )
        if len(self.client_ids) != self.clients.count:
            raise ConfigError(f"clients.count = {self.clients.count}: its groups add up to {len(self.client_ids)}")
        examples = None if self.workload.model == "synthetic" else self.workload.examples
        if examples is not None and examples < self.clients.count:
            raise ConfigError(
                f"workload.examples = {examples}: must be at least clients.count = {self.clients.count}, one for each"
            )
        for name, group in self.groups.items():
            self._behaviours(name)
            self._drift(name)
            if group.leave_round is not None and group.leave_round <= group.join_round:
                raise ConfigError(
                    f"clients.groups.{name}.leave_round = {group.leave_round}: must be after its join_round ="
                    f" {group.join_round}"
                )
        self.presence()
        self._check_privacy()
        self.training()
        self.tls_files()
        host, _, port = (address := self.evaluation.address).rpartition(":")
        if address and not (host and port.isdecimal()):
            raise ConfigError(f'evaluation.address = "{address}": must be HOST:PORT')
        links, groups = self.links(), self.groups
        check_access_points(links, {c: name for name, group in groups.items() for c in group.client_ids(name)})
        if self.latency.injection == "netem":
            check_netem(links, self.clients_per_process)
            if self.metrics.client_port >= 0:
                raise ConfigError(
                    f"metrics.client_port = {self.metrics.client_port}: clients in network namespaces of their own"
                    ' (latency.injection = "netem") cannot be scraped'
                )
        for name, parameters in (self.selection.__pydantic_extra__ or {}).items():
            if not isinstance(parameters, dict):
                raise ConfigError(unknown_key(f"selection.{name}", sorted(SelectionTable.model_fields)))

    def _check_privacy(self) -> None:
        self.budget()
        self.mechanism()
        if self.privacy.reproducible_noise and self.privacy.sampler == "opendp":
            raise ConfigError('privacy.reproducible_noise = true: goes with privacy.sampler = "laplace" only')
        if self.privacy.reproducible_noise and self.privacy.ledger_dir:
            raise ConfigError(
                "privacy.reproducible_noise = true: goes without privacy.ledger_dir only; noise from the seed protects"
                " nobody, so it must not be charged to ledgers of private runs"
            )

    def check_policies(self) -> None:
        """That every policy named and the aggregation exist and take their parameters; raises ConfigError."""
        self.aggregation_rule()
        self.server_optimizer()
        for name in self.selection.__pydantic_extra__ or {}:
            try:
                self.policy(name)
            except ConfigError as error:
                # The name stands in the table's key, not in selection.policy.
                raise ConfigError(str(error).replace(f'selection.policy = "{name}"', f"selection.{name}")) from error
        policy = self.policy()
        if policy.needs_oracle:
            for law in self.delays().values():
                _ = law.mean_s  # ConfigError where it has none that could be told
        try:
            policy.check_clients(self.client_ids, self._at_once())
        except ValueError as error:
            raise ConfigError(f"selection.{self.selection.policy}.{error}") from error
        if missing := sorted(policy.disclosures - self.disclosed):
            raise ConfigError(
                f'selection.policy = "{self.selection.policy}" needs clients to disclose their {" and ".join(missing)}:'
                f" add privacy.disclose = {json.dumps(missing)}, or set privacy.enabled = false"
            )


def load_experiment(source: str, overrides: Overrides = ()) -> Experiment:
    """Read a TOML file or a preset by name, apply overrides, validate. ConfigError says what is wrong."""
    return parse_experiment(read_source(source), overrides)


def parse_experiment(text: str, overrides: Overrides = (), origin: str = "the experiment") -> Experiment:
    """Validate an experiment given as TOML text."""
    try:
        experiment = Experiment.model_validate_json(as_json(document_of(text, overrides, origin)))
    except ValidationError as error:
        raise ConfigError(explain(error, Experiment)) from None
    experiment.check()
    return experiment
