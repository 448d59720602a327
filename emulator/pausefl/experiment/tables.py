"""The tables of an experiment's TOML file, key by key, with their defaults."""

import math
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, get_args

from annotated_types import Ge, Le, MultipleOf
from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag

from pausefl.experiment.validation import TomlTable
from pausefl_client.privacy.mechanism import Clip, Sampler
from pausefl_client.training.trainer import TrainingSettings
from pausefl_proto.number_types import ClientCount, Count, NonNegative, Port, Positive, PositiveShare, Whole
from pausefl_proto.privacy_unit import PrivacyUnit
from pausefl_proto.wire import MOST_ROUNDS
from pausefl_server.model.aggregation import Aggregation
from pausefl_server.model.optimizers import OptimizerName, ServerOptimizer
from pausefl_server.model.staleness import AsynchronousSteps
from pausefl_server.settings import MetricsSettings

SeededPart = Literal["split", "model", "latency"]
"""A part that can be drawn anew while the rest of a run repeats."""


ClientIds = tuple[Annotated[str, Field(pattern=r"^[A-Za-z0-9_](\.?[A-Za-z0-9_-])*$", max_length=128)], ...]
"""Ids of clients, which are names of files as well."""


class ExperimentTable(TomlTable):
    """The run: its length, seeds and clock."""

    rounds: Annotated[int, Field(ge=1, le=MOST_ROUNDS)] = 100
    """How many rounds the run plays."""
    seed: Whole = 1
    """The seed of every draw that a run repeats: data, links, selection, behaviours. Private noise never comes from
    it."""
    clock: Literal["real", "virtual"] = "real"
    """By which clock the run is played. "real" measures processes and their messages. "virtual" plays the same actors
    and links in one process whose time costs nothing: only what is drawn or stated takes time."""
    split_seed: Whole | None = None
    """The seed of which examples are used, who holds them, and which are evaluated. Without it, `seed`."""
    model_seed: Whole | None = None
    """The seed of the first model. Without it, `seed`."""
    latency_seed: Whole | None = None
    """The seed of links and of their delays. Without it, `seed`."""
    observers: tuple[str, ...] = ()
    """Observers told of the run's progress: "tensorboard", "mlflow", "wandb", "trackio", or your "module:name"."""
    python_path: tuple[str, ...] = ()
    """Folders in which "module:name" is looked for after Python's own, relative to the experiment file. Without
    it, the file's own folder."""
    by_value: dict[Annotated[str, Field(pattern=r"^pausefl_cell_[0-9a-f]+$")], str] = Field(default={})
    """Code of a script or notebook, carried by value: modules as cloudpickle wrote them, in base64. A run with it can
    be repeated by this Python alone, not read or reviewed."""

    def seed_of(self, part: SeededPart) -> int:
        """The seed of one part of a run: its own, or else the seed of all."""
        own: int | None = getattr(self, f"{part}_seed")
        return self.seed if own is None else own


class ClientGroup(TomlTable):
    """Clients that have something in common. Their ids are NAME-000, NAME-001 and so on."""

    count: ClientCount
    """How many clients the group has."""
    ids: ClientIds = ()
    """Its clients' ids, in place of NAME-000 and so on."""
    behaviours: tuple[dict[str, Any], ...] = ()
    """Its clients' behaviours: a list of tables with a `kind`, applied one after the other."""
    role: Literal["relevant", "irrelevant"] | None = None
    """Whether newcomers hold data that helps the task. Reports compare the two roles."""
    join_round: Count = 1
    """The first round of its clients. Their processes start just before it."""
    leave_round: Annotated[int, Ge(2)] | None = None
    """The first round without its clients. Without it, they stay to the end."""
    leave: Literal["stop", "kill"] = "stop"
    """How clients leave: "stop" closes their streams, "kill" kills their processes."""
    availability: dict[str, Any] = Field(default={})
    """When its clients can be reached: a table with a `kind`. Without it, always."""
    drift: dict[str, Any] = Field(default={})
    """The law from which `pausefl simulate` draws its clients' path drifts: a table with a `kind`."""

    def client_ids(self, name: str) -> list[str]:
        """The ids of the group of this name, in order."""
        if self.ids:
            return [*self.ids]
        width = max(3, len(str(self.count - 1)))
        return [f"{name}-{k:0{width}}" for k in range(self.count)]


class ClientsTable(TomlTable):
    """The clients that take part."""

    count: ClientCount = 30
    """How many clients there are in all. With groups, it is the sum of their counts."""
    ids: ClientIds = ()
    """The clients' ids, such as the names of devices. Without any, they are numbered."""
    groups: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$")], ClientGroup] = Field(default={})
    """The groups of clients by name. Without any, all clients belong to one group called `client`."""
    per_process: Count | None = None
    """How many clients share one process and its torch. By default 1 up to 32 clients; beyond that, one process per
    core is used, and at least four."""
    trainers: Count = 1
    """How many clients of one process train at the same time. The others wait, and `queue_s` records how long.
    Those that have computed, and wait for a stated training time, do not count."""
    batched: Literal["off", "on", "auto"] = "off"
    """Whether the clients of a round are trained together, in one call on stacked models; on the virtual clock only.
    "auto" measures before round 1 whether that is faster. Results are equal up to rounding."""
    minimum: Count | None = None
    """How many clients must be connected before round 1. By default all of them."""
    connect_timeout_s: Positive = 60.0
    """How long the server waits for clients to connect before round 1."""
    examples_max: Count | None = None
    """The greatest data size |D_k| that counts, whatever a client states. By default 5 times the median over clients.
    """


class SelectionTable(TomlTable):
    """The policy that chooses, and how many clients a round. The policy's parameters stand in [selection.POLICY]."""

    model_config = ConfigDict(extra="allow")

    policy: str = "pause"
    """The policy's name, or "package.module:Class" for one of your own."""
    m: Count = 5
    """How many clients the policy chooses for each round."""
    over_selection: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """With x here, m(1 + x) clients are asked, rounded up, and the round waits for the first m to answer."""

    @property
    def asked(self) -> int:
        """How many clients a round asks: m(1 + over_selection), rounded up."""
        return math.ceil(self.m * (1 + self.over_selection) - 1e-9)

    def parameters(self, policy: str) -> dict[str, Any]:
        """The parameters under [selection.<policy>]."""
        return dict((self.__pydantic_extra__ or {}).get(policy, {}))


class PrivacyTable(TomlTable):
    """A client's privacy budget, and the noise that keeps to it."""

    enabled: bool = True
    """Whether clients clip their updates, add noise and charge a ledger."""
    epsilon_budget: Positive = 100.0
    """ε̄, the privacy budget of each client over all its releases."""
    eta: Positive = 0.04
    """η, how fast a client spends its budget: release i costs ε_i = ε̄ (e^η − 1) e^(−ηi)."""
    unit: PrivacyUnit = "coordinate"
    """The unit that ε_i protects: one coordinate of the update, or the whole update as a vector."""
    clip: Clip = 0.003
    """The clip bound. Unit "coordinate": Δ, the width of the interval each coordinate is clamped to. Unit "vector": C,
    the greatest L1 norm of an update."""
    disclose: tuple[Literal["loss", "labels", "statistics"], ...] = ()
    """Values that clients may tell without noise, besides their data size and device times. "statistics" are those of
    `workload.statistics`."""
    epsilon_floor: NonNegative = 0.0
    """A client retires when its next ε_i would lie below this value. 0 switches the rule off."""
    noise_to_clip_max: Positive | None = None
    """A client retires when its noise scale would exceed this many times what an update is clipped to. Without
    it, the rule is off."""
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    """δ of the (ε, δ) figure that reports show beside the sum of the ε_i."""
    ledger_dir: str | None = None
    """The folder of ledgers that several runs charge, so that these runs share one budget. The path is relative to the
    experiment file's folder. Without it, each run has its own budget."""
    sampler: Sampler = "laplace"
    """ "laplace" draws noise with numpy, or torch on a GPU, seeded by the operating system. "opendp" is exact and
    2,000 times slower."""
    reproducible_noise: bool = False
    """NOT PRIVATE: draws the noise from the seed, and anyone who knows the seed can subtract it. For repeating
    experiments only; refused together with `ledger_dir`."""

    @property
    def noise(self) -> Literal["laplace", "opendp", "reproducible"]:
        """Where noise comes from: the sampler's name, or "reproducible", which is not private."""
        return "reproducible" if self.reproducible_noise else self.sampler


@dataclass(frozen=True)
class _Subject:
    """The first keys of [workload]."""

    dataset: str = "digits"
    """The data set's name, or "package.module:factory" for one of your own."""
    model: str = "mlp"
    """The model's name, or "package.module:factory" for one of your own. "synthetic" trains nothing."""
    examples: Count | None = None
    """How many training examples all clients share. Without it, all that the data set has."""
    partition: str | dict[str, Any] = "iid"
    """How training examples are dealt out: a table with a `kind`, or a kind alone, which has its defaults."""
    training: str | dict[str, Any] = "plain"
    """How a client trains in a round: a table with a `kind`, or a kind alone, which has its defaults."""


@dataclass(frozen=True)
class Workload(TrainingSettings, _Subject):
    """The model, how it is trained, and on which data."""

    proximal_mu: NonNegative = 0.0
    """FedProx: μ, the weight of the distance to the round's model in a client's loss. 0 switches it off."""
    device: Literal["auto", "cpu", "cuda"] | Annotated[str, Field(pattern=r"^cuda:[0-9]+$")] = "auto"
    """Where clients train. "auto" takes CUDA devices where there are some, and client processes take turns on them.
    "cuda:N" is one of them, "cuda" any."""
    model_bytes: Annotated[int, Ge(4), Le(1 << 32), MultipleOf(4)] = 4096
    """Model "synthetic": the size of its vector."""
    train_s: NonNegative = 0.0
    """Model "synthetic": the processor time that one round of training takes."""
    step_s: Positive | None = None
    """The seconds that a training step takes on the emulated devices: a client trains, and waits until its steps have
    taken so long. Without it, steps take as long as they do on this machine; the virtual clock then measures one once,
    before round 1."""
    training_time: dict[str, Any] = field(default_factory=dict)
    """The law of the seconds that a client's training takes in a round: a table with a `kind`, as in `latency`. It goes
    before `step_s`."""


class KindTable(BaseModel):
    """A `kind` of one's own, or of an installed package, and its parameters."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    kind: str


def _optimizer_tag(value: Any) -> str:
    kind = value.get("kind", "sgd") if isinstance(value, dict) else getattr(value, "kind", "sgd")
    is_own = isinstance(kind, str) and kind not in get_args(OptimizerName)
    return "literal[own]" if is_own else "literal[built-in]"  # errors name keys without what is in brackets


@dataclass(frozen=True)
class AggregationTable(Aggregation):
    """How the server combines a round's updates."""

    rule: str | dict[str, Any] = "fedavg"
    """The aggregation rule: its name, or a table with the `kind` of your own rule and its parameters."""
    optimizer: Annotated[
        Annotated[ServerOptimizer, Tag("literal[built-in]")] | Annotated[KindTable, Tag("literal[own]")],
        Discriminator(_optimizer_tag),
        BeforeValidator(lambda value: {"kind": value} if isinstance(value, str) else value),
    ] = field(default_factory=ServerOptimizer)
    """The server's optimizer."""


@dataclass(frozen=True)
class AsynchronousTable(AsynchronousSteps):
    """How steps are taken with `server.mode = "asynchronous"`."""

    staleness: str | dict[str, Any] = "polynomial"
    """s(τ), how much an update counts whose model is τ steps old: a table with a `kind`, or a kind alone, which has its
    defaults. "polynomial": (1 + τ)^(-exponent). "hinge": 1 up to `tolerated`, then 1/(slope (τ - tolerated) + 1).
    "constant": 1."""


class EvaluationTable(TomlTable):
    """When the model is evaluated. An evaluation never delays a round."""

    every: Whole = 10
    """Evaluates on fixed subsets after every so many rounds. 0 evaluates only at the end, on all examples."""
    subset: Count = 1000
    """How many examples each fixed subset has."""
    address: str = ""
    """HOST:PORT of a running `pausefl evaluator`. Without it, the server starts one of its own."""
    host: str = "127.0.0.1"
    """The address on which `pausefl evaluator` listens."""
    port: Port = 0
    """The TCP port on which `pausefl evaluator` listens. 0 takes any free port."""
    metrics_port: Annotated[int, Ge(-1), Le(65_535)] = -1
    """The port on which `pausefl evaluator` serves metrics of its process, and probes: 0 takes any free port, -1 serves
    none."""
    insecure: bool = False
    """Lets the evaluator listen where other machines can reach it, without mutual TLS (`--insecure`)."""
    connect_timeout_s: Positive = 60.0
    """How long the server waits for the evaluator before round 1, and for one that is away at the run's end."""
    answer_timeout_s: Positive = 600.0
    """How long one answer of the evaluator may take. Then it counts as lost, and one that the server started is started
    again."""


class ServerTable(TomlTable):
    """Where the server listens, and how long it waits."""

    mode: Literal["rounds", "asynchronous"] = "rounds"
    """"rounds": a round waits for its clients. "asynchronous": a step is taken when [asynchronous] says so, and clients
    that finish are replaced at once. Then `experiment.rounds` counts steps."""
    host: str = "127.0.0.1"
    """The address on which the server listens."""
    port: Port = 0
    """The TCP port on which the server listens. 0 takes any free port."""
    round_timeout_s: Positive | Literal["auto"] = "auto"
    """A round's deadline, counted from when its jobs are sent. A client that has not answered by then is a miss. "auto"
    derives it from the clients' round trips so far."""
    rejoin_timeout_s: NonNegative = 5.0
    """How long a round waits for a client whose stream broke to reconnect."""
    quorum: PositiveShare = 1.0
    """A round ends once this share of its m clients, rounded up, has answered."""
    late: Literal["drop", "buffer"] = "drop"
    """An update that comes after its round is dropped, or kept for the next model with a smaller weight."""
    checkpoint_every: Whole = 25
    """Keeps the model of every so many rounds, for `--back-to`. 0 keeps only those of the last two rounds."""
    rounds_without_update_max: Count = 3
    """The run ends, as failed, after this many attempts at a round in a row in which no client gave an update."""
    rest_rounds_max: Whole = 64
    """A client that missed k times in a row rests min(2^(k-1), this) rounds. 0: no client rests."""
    dead_after_s: Annotated[float, Ge(0.5)] = 15.0
    """Within this time a process notices that its peer is dead. Idle peers answer pings meanwhile."""
    hello_timeout_s: Positive = 10.0
    """How long a connection may stay open before its client has said hello."""
    insecure: bool = False
    """Lets the server listen where other machines can reach it, without TLS and admission, and a client show such a
    server its token without TLS (`--insecure`)."""
    pings_per_s: NonNegative = 5.0
    """How many idle round-trip probes the server sends, over all clients. They give unchosen clients a baseline; no
    policy sees them."""


class WireTable(TomlTable):
    """How updates travel. Clients round what they have clipped and noised, which is no less private."""

    dtype: Literal["float32", "float16", "bfloat16", "int8"] = "float32"
    """The type of an update's values on their way to the server. "int8" has a scale for each 256 values. Models
    travel as float32."""
    top_share: PositiveShare = 1.0
    """The share of an update's values that travel, those greatest in absolute value; the others arrive as 0."""


class AdmissionTable(TomlTable):
    """The clients that may take part, and how a client proves its id. Without certificates and tokens, clients prove
    nothing."""

    clients: tuple[str, ...] | str = ()
    """The ids that may join: a list, or one pattern with * and ?. Without it, the experiment's clients."""
    clients_file: str = ""
    """Server: a file that narrows these down, with an id or a pattern a line. Like `tokens`, it is read again once it
    has changed, and streams of clients that it leaves out are closed."""
    by_certificate: bool = False
    """Whether each client must show a certificate, signed by `tls.ca`, that has its id, or a pattern of it, among its
    alternative names."""
    tokens: str = ""
    """Server: the file of token digests that `pausefl certs` writes."""
    token: str = ""
    """Client: the file that holds its own token. {client_id} in the path stands for its id."""


@dataclass(frozen=True)
class Metrics(MetricsSettings):
    """Where Prometheus scrapes, and how many series each client has there."""

    client_host: str = "127.0.0.1"
    """The address on which client processes serve their own metrics."""
    client_port: Annotated[int, Ge(-1), Le(65_535)] = -1
    """The port of each client process's metrics: 0 takes any free port, -1 serves none. They tell more than the server
    needs to know."""
