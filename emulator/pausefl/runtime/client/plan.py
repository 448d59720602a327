"""What client processes are told of an experiment: small records, made where processes are started."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pausefl.config.client_records import budget_of, mechanism_of, schedule_of, training_of
from pausefl.config.experiment import Experiment
from pausefl.config.groups import behaviours_of, presence_of
from pausefl.config.links import LatencyTable, LinkPlan
from pausefl.config.tables import TlsTable, WorkloadTable
from pausefl.delays import Delay
from pausefl.population.availability import Presence
from pausefl.population.behaviours import Behaviour
from pausefl.runtime.client.agreement import agreement_of
from pausefl_client.privacy.mechanism import Mechanism
from pausefl_client.training.trainer import TrainingSettings
from pausefl_proto.budget import Budget
from pausefl_proto.encoding import Encoding, encoding_of
from pausefl_proto.privacy_unit import PrivacyUnit


@dataclass(frozen=True)
class NoisePlan:
    """Where a client's noise comes from."""

    source: Literal["laplace", "opendp", "reproducible"]
    """Fresh noise by one of two samplers; or noise from the seed, which is not private."""
    seed: int
    device: str | None
    """The device that trains (`workload.device`), which may draw the noise too; None: clients have no torch."""


@dataclass(frozen=True)
class PrivacyPlan:
    """What clients may spend, how they add noise, and whose ledgers record it."""

    budget: Budget
    mechanism: Mechanism
    noise: NoisePlan
    ledger_dir: str | None
    """Where ledgers lie that outlive runs, one for each holding of examples; None: with the run."""


@dataclass(frozen=True)
class TrainingPlan:
    """What clients train, on what, and how each behaves."""

    workload: WorkloadTable
    settings: TrainingSettings
    seed: int
    split_seed: int
    """The seed that decides which examples there are, and which client holds them."""
    client_ids: tuple[str, ...]
    """All clients of the experiment: the data is parted among them, in this order."""
    behaviours: Mapping[str, tuple[Behaviour, ...]]
    """What each client does differently, by its id."""
    trainers: int
    """Clients of one process that train at a time."""
    step_s: float | None = None
    """What a training step takes on the emulated devices; None: as long as it does here."""
    training_times: Mapping[str, Delay] = field(default_factory=dict)
    """The laws of the seconds that training takes in a round, by client id; they go before `step_s`."""
    batched: Literal["off", "on", "auto"] = "off"
    """Whether clients of one process train together; "auto" is settled before round 1."""


@dataclass(frozen=True)
class ScrapePlan:
    """Where a client process serves its metrics (`metrics.client_*`)."""

    host: str
    port: int
    series_max: int
    unit: PrivacyUnit
    """`privacy.unit`, in which ε is shown."""


@dataclass(frozen=True)
class ConnectionPlan:
    """How clients reach their server; in paths {client_id} stands for a client's id."""

    tls: TlsTable
    token: str
    """The file of a client's token, empty where it needs none (`admission.token`)."""
    dead_after_s: float
    is_insecure: bool
    """Whether a token may be shown without TLS (`server.insecure`)."""


@dataclass(frozen=True)
class ClientPlan:
    """All that a client process needs of an experiment."""

    training: TrainingPlan
    privacy: PrivacyPlan | None
    schedule: str
    """The privacy both ends agree on, empty in a run without."""
    agreement: Mapping[str, str]
    """What the run must have as its clients have it (`agreement.agreement_of`)."""
    disclosed: frozenset[str]
    encoding: Encoding
    """How updates travel."""
    latency: LatencyTable
    links: Mapping[str, LinkPlan]
    """All clients' links, by id."""
    latency_seed: int
    """The seed of the links' delays."""
    presence: Presence | None
    """Which clients are there in each round; None: all, always."""
    scrape: ScrapePlan | None
    connection: ConnectionPlan
    give_up_after_s: float


def client_plan(experiment: Experiment) -> ClientPlan:
    """The clients' part of an experiment."""
    return ClientPlan(
        training=_training(experiment),
        privacy=_privacy(experiment),
        schedule=schedule_of(experiment.privacy),
        agreement=agreement_of(experiment),
        disclosed=experiment.disclosed,
        encoding=encoding_of(experiment.wire.dtype, experiment.wire.top_share),
        latency=experiment.latency,
        links=experiment.links(),
        latency_seed=experiment.experiment.seed_of("latency"),
        presence=presence_of(experiment.groups, experiment.experiment.rounds, experiment.experiment.seed),
        scrape=_scrape(experiment),
        connection=connection_plan(experiment),
        give_up_after_s=experiment.clients.connect_timeout_s,
    )


def connection_plan(experiment: Experiment) -> ConnectionPlan:
    """How the clients reach the server."""
    server = experiment.server
    return ConnectionPlan(experiment.tls, experiment.admission.token, server.dead_after_s, server.insecure)


def noise_plan(experiment: Experiment) -> NoisePlan:
    """Where the clients' noise comes from."""
    workload = experiment.workload
    device = None if workload.model == "synthetic" else workload.device
    return NoisePlan(experiment.privacy.noise, experiment.experiment.seed, device)


def _training(experiment: Experiment) -> TrainingPlan:
    return TrainingPlan(
        workload=experiment.workload,
        settings=training_of(experiment.workload),
        seed=experiment.experiment.seed,
        split_seed=experiment.experiment.seed_of("split"),
        client_ids=tuple(experiment.client_ids),
        behaviours=behaviours_of(experiment.groups),
        trainers=experiment.clients.trainers,
        step_s=experiment.workload.step_s,
        training_times=experiment.training_times(),
        batched=experiment.clients.batched if experiment.experiment.clock == "virtual" else "off",
    )


def _privacy(experiment: Experiment) -> PrivacyPlan | None:
    budget, mechanism = budget_of(experiment.privacy), mechanism_of(experiment.privacy)
    if budget is None or mechanism is None:
        return None
    ledger_dir = experiment.privacy.ledger_dir
    return PrivacyPlan(budget, mechanism, noise_plan(experiment), ledger_dir)


def _scrape(experiment: Experiment) -> ScrapePlan | None:
    metrics = experiment.metrics
    if metrics.client_port < 0:
        return None
    return ScrapePlan(metrics.client_host, metrics.client_port, metrics.client_series_max, experiment.privacy.unit)
