"""The part of an experiment that client processes need: small records, made by the process that starts them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from pausefl.experiment.delay_laws.base import Delay, sampled_delays
from pausefl.experiment.delays.laws import plan_training_times
from pausefl.experiment.experiment import Experiment
from pausefl.experiment.groups import behaviours_of, presence_of
from pausefl.experiment.links import LatencyTable, LinkPlan, plan_links
from pausefl.experiment.population.availability import Presence
from pausefl.experiment.population.behaviours import Behaviour
from pausefl.experiment.tables import Metrics, PrivacyTable, Workload
from pausefl.runtime.client.agreement import agreement_of
from pausefl.runtime.own_code import own_code
from pausefl.runtime.processes.resources import own_device
from pausefl_client.privacy.ledger import Life
from pausefl_client.privacy.mechanism import Mechanism
from pausefl_client.training.trainer import PacedTrainer, Trainer, TrainingSettings
from pausefl_proto.budget import Budget
from pausefl_proto.draws import generator
from pausefl_proto.encoding import Encoding, encoding_of
from pausefl_proto.tls import Tls


@dataclass(frozen=True)
class PrivacyPlan:
    """The clients' privacy: their budget, how they add noise, and where ledgers record the ε spent."""

    budget: Budget
    mechanism: Mechanism
    noise: Literal["laplace", "opendp", "reproducible"]
    """Two samplers of fresh noise, or "reproducible": noise from the seed, which is not private."""
    ledger_dir: str | None
    """The folder of ledgers that outlive runs, one for each holding of examples; None: ledgers stay with the run."""
    life: Life | None = None
    """The lifetime budget of clients that outlive runs."""


@dataclass(frozen=True)
class TrainingPlan:
    """The clients' model and data, and how each behaves."""

    workload: Workload
    seed: int
    split_seed: int
    """The seed that decides which examples there are, and which client holds them."""
    client_ids: tuple[str, ...]
    """All clients of the experiment. The data is partitioned among them in this order."""
    behaviours: Mapping[str, tuple[Behaviour, ...]]
    """Each client's behaviours, by its id."""
    trainers: int
    """How many clients of one process train at a time."""
    training_times: Mapping[str, Delay] = field(default_factory=dict)
    """Laws of a round's training time in seconds, by client id. They take precedence over `workload.step_s`."""
    batched: Literal["off", "on", "auto"] = "off"
    """Whether clients of one process train together; "auto" is settled before round 1."""

    def paced(self, trainer: Trainer, client_id: str, settings: TrainingSettings | None = None) -> Trainer:
        """A trainer that takes the client's stated training time; `trainer` itself if no time is stated.

        `settings` are those with which it trains; None for a trainer without steps.
        """
        if (law := self.training_times.get(client_id)) is not None:

            def drawn_s(round: int) -> float:
                return float(sampled_delays(law, generator(self.seed, "training-time", client_id, round), 1, round)[0])

            return PacedTrainer(trainer, drawn_s)
        if self.workload.step_s is None or settings is None:
            return trainer
        duration_s = self.workload.step_s * settings.steps(trainer.n_examples)
        return PacedTrainer(trainer, lambda _: duration_s)


@dataclass(frozen=True)
class ConnectionPlan:
    """How clients connect to their server. In its paths, {client_id} stands for a client's id."""

    tls: Tls
    token: str
    """The file of a client's token (`admission.token`); empty if it needs none."""
    dead_after_s: float
    is_insecure: bool
    """Whether a token may be shown without TLS (`server.insecure`)."""


@dataclass(frozen=True)
class ClientPlan:
    """All that a client process needs of an experiment."""

    training: TrainingPlan
    privacy: PrivacyPlan | None
    schedule: str
    """The privacy on which server and clients must agree, as text; empty in a run without privacy."""
    agreement: Mapping[str, str]
    """Values that the run must share with its clients (`agreement.agreement_of`)."""
    own_code: str
    """The user's own modules that this part names, with digests of their source (`own_code.own_code`)."""
    disclosed: frozenset[str]
    encoding: Encoding
    """How updates travel."""
    latency: LatencyTable
    links: Mapping[str, LinkPlan]
    """All clients' links, by id."""
    latency_seed: int
    """The seed of the links' delays."""
    presence: Presence | None
    """The clients that are present in each round; None: all clients in every round."""
    metrics: Metrics
    """Where a client process serves its metrics (`metrics.client_*`)."""
    connection: ConnectionPlan
    give_up_after_s: float
    run_id: str = ""
    """The run in which clients that outlive runs take part now; empty: any run that their server plays."""
    process: int | None = None
    """The client process's number on its machine, which decides its GPU; None: derived from its first client."""

    def on_own_device(self, client_ids: Sequence[str]) -> "ClientPlan":
        """The plan for the process of these clients. It sees at most one CUDA device from now on (`own_device`)."""
        training, process = self.training, self.process
        if training.workload.model == "synthetic":
            return self
        if process is None:
            process = training.client_ids.index(client_ids[0]) // len(client_ids)
        device = own_device(training.workload.device, process)
        return replace(self, training=replace(training, workload=replace(training.workload, device=device)))


def client_plan(experiment: Experiment) -> ClientPlan:
    """The clients' part of an experiment. The server's part is derived from its links, presence and privacy."""
    client_ids = tuple(experiment.client_ids)
    latency_seed = experiment.experiment.seed_of("latency")
    return ClientPlan(
        training=_training(experiment, client_ids),
        privacy=_privacy(experiment.privacy),
        schedule=experiment.privacy.schedule,
        agreement=agreement_of(experiment),
        own_code=own_code(experiment.model_dump(mode="json"), "clients", "latency", "workload"),
        disclosed=experiment.disclosed,
        encoding=encoding_of(experiment.wire.dtype, experiment.wire.top_share),
        latency=experiment.latency,
        links=plan_links(experiment.latency, client_ids, latency_seed),
        latency_seed=latency_seed,
        presence=presence_of(experiment.groups, experiment.experiment.rounds, experiment.experiment.seed),
        metrics=experiment.metrics,
        connection=connection_plan(experiment),
        give_up_after_s=experiment.clients.connect_timeout_s,
    )


def connection_plan(experiment: Experiment) -> ConnectionPlan:
    """How the clients connect to the server."""
    server = experiment.server
    return ConnectionPlan(experiment.tls, experiment.admission.token, server.dead_after_s, server.insecure)


def _training(experiment: Experiment, client_ids: tuple[str, ...]) -> TrainingPlan:
    workload, seed = experiment.workload, experiment.experiment.seed
    return TrainingPlan(
        workload=experiment.trained,
        seed=seed,
        split_seed=experiment.experiment.seed_of("split"),
        client_ids=client_ids,
        behaviours=behaviours_of(experiment.groups),
        trainers=experiment.clients.trainers,
        training_times=plan_training_times(workload.training_time, client_ids, seed),
        batched=experiment.clients.batched if experiment.experiment.clock == "virtual" else "off",
    )


def _privacy(table: PrivacyTable) -> PrivacyPlan | None:
    budget, mechanism = table.budget, table.mechanism
    if budget is None or mechanism is None:
        return None
    return PrivacyPlan(budget, mechanism, table.noise, table.ledger_dir)
