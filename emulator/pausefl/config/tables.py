"""The tables of an experiment's TOML file, key by key, with their defaults."""

import math
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, field_validator

from pausefl.config.validation import ClientCount, Count, NonNegative, Port, Positive, PositiveShare, Share, TomlTable
from pausefl_client.privacy.mechanism import Sampler
from pausefl_proto.privacy_unit import PrivacyUnit
from pausefl_proto.wire import MOST_ROUNDS

SeededPart = Literal["split", "model", "latency"]
"""What can be drawn anew while the rest of a run repeats."""


class ExperimentTable(TomlTable):
    """What is run and how long."""

    rounds: Annotated[int, Field(ge=1, le=MOST_ROUNDS)] = 100
    """How many rounds the run plays."""
    seed: Annotated[int, Field(ge=0)] = 1
    """The seed of every draw that a run repeats: data, links, selection, behaviours. Private noise never comes from
    it."""
    clock: Literal["real", "virtual"] = "real"
    """By which clock the run is played. "real" measures processes and their messages. "virtual" plays the same actors
    and links in one process whose time costs nothing: only what is drawn or stated takes time."""
    split_seed: Annotated[int, Field(ge=0)] | None = None
    """The seed of which examples are used, who holds them, and which are evaluated. Without it, `seed`."""
    model_seed: Annotated[int, Field(ge=0)] | None = None
    """The seed of the first model. Without it, `seed`."""
    latency_seed: Annotated[int, Field(ge=0)] | None = None
    """The seed of links and of their delays. Without it, `seed`."""
    observers: tuple[str, ...] = ()
    """Who else is told of the run's progress: "tensorboard", "mlflow", or "module:name" of a pausefl.Observer."""
    python_path: tuple[str, ...] = ()
    """Folders in which "module:name" is looked for after Python's own, relative to the experiment file. Without
    it, the file's own folder."""

    def seed_of(self, part: SeededPart) -> int:
        """The seed of one part of a run: its own, or else the seed of all."""
        own: int | None = getattr(self, f"{part}_seed")
        return self.seed if own is None else own


class ClientGroup(TomlTable):
    """Clients that have something in common. Their ids are NAME-000, NAME-001 and so on."""

    count: ClientCount
    """How many clients the group has."""
    behaviours: tuple[dict[str, Any], ...] = ()
    """What its clients do differently: a list of tables with a `kind`, applied one after the other."""
    role: Literal["relevant", "irrelevant"] | None = None
    """Whether newcomers hold data that helps the task. Reports compare the two roles."""
    join_round: Count = 1
    """The first round of its clients. Their processes start just before it."""
    leave_round: Annotated[int, Field(ge=2)] | None = None
    """The first round without its clients. Without it, they stay to the end."""
    leave: Literal["stop", "kill"] = "stop"
    """How clients leave: "stop" closes their streams, "kill" kills their processes."""
    availability: dict[str, Any] = Field(default={})
    """When its clients can be reached: a table with a `kind`. Without it, always."""
    drift: dict[str, Any] = Field(default={})
    """The law from which `pausefl simulate` draws its clients' path drifts: a table with a `kind`."""

    def client_ids(self, name: str) -> list[str]:
        """The ids of the group of this name, in order."""
        width = max(3, len(str(self.count - 1)))
        return [f"{name}-{k:0{width}}" for k in range(self.count)]


class ClientsTable(TomlTable):
    """Who takes part."""

    count: ClientCount = 30
    """How many clients there are in all. With groups, it is the sum of their counts."""
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


class SelectionTable(BaseModel):
    """Which policy chooses, and how many clients a round. The policy's parameters stand in [selection.POLICY]."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

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
    """What a client may leak, and the noise that limits it."""

    enabled: bool = True
    """Whether clients clip their updates, add noise and charge a ledger."""
    epsilon_budget: float = 100.0
    """ε̄, the privacy budget of each client over all its releases."""
    eta: float = 0.04
    """η, how fast a client spends its budget: release i costs ε_i = ε̄ (e^η − 1) e^(−ηi)."""
    unit: PrivacyUnit = "coordinate"
    """What ε_i protects: one coordinate of the update, or the whole update as a vector."""
    clip: float = 0.003
    """The clip bound. Unit "coordinate": Δ, the width of the interval each coordinate is clamped to. Unit "vector": C,
    the greatest L1 norm of an update."""
    disclose: tuple[Literal["loss", "labels"], ...] = ()
    """What clients may tell without noise, besides their data size and device times."""
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


class WorkloadTable(TomlTable):
    """What is trained, on which data."""

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
    optimizer: str = "adam"
    """One of torch.optim in lower case that `pausefl validate --list` names, or "module:name"."""
    optimizer_options: dict[str, Any] = Field(default={})
    """What else the optimizer is made with, such as { weight_decay = 0.01 }."""
    learning_rate: float = 0.01
    """The learning rate of local training."""
    schedule: dict[str, Any] = Field(default={})
    """How the learning rate changes from round to round, by `kind`, as { kind = "cosine", T_max = 100 }; constant,
    unless said."""
    batch_size: int = 20
    """How many examples one local optimizer step uses."""
    epochs: int = 1
    """How many times a client goes through its examples in one round."""
    max_steps: int | None = 100
    """Ends a round's local training after this many optimizer steps."""
    proximal_mu: NonNegative = 0.0
    """FedProx: μ, the weight of the distance to the round's model in a client's loss. 0 switches it off."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where clients train. "auto" takes a CUDA device where there is one."""
    model_bytes: Annotated[int, Field(ge=4, le=1 << 32, multiple_of=4)] = 4096
    """Model "synthetic": the size of its vector."""
    train_s: NonNegative = 0.0
    """Model "synthetic": the processor time that one round of training takes."""
    step_s: Positive | None = None
    """The seconds that a training step takes on the emulated devices: a client trains, and waits until its steps have
    taken so long. Without it, steps take as long as they do on this machine; the virtual clock then measures one once,
    before round 1."""
    training_time: dict[str, Any] = Field(default={})
    """The law of the seconds that a client's training takes in a round: a table with a `kind`, as in `latency`. It goes
    before `step_s`."""


BuiltInOptimizer = Literal["sgd", "fedavgm", "fedadam", "fedyogi"]


class OptimizerTable(TomlTable):
    """How the server turns a round's update into the next model."""

    kind: BuiltInOptimizer = "sgd"
    """The server's optimizer. "sgd" with learning rate 1 is plain averaging. "feddyn", which takes no other key, goes
    with the training method of that name."""
    learning_rate: float = 1.0
    """λ, the factor of the server's step."""
    beta_1: float = 0.9
    """β₁, how much of the first moment is kept. For fedavgm, fedadam and fedyogi."""
    beta_2: float = 0.99
    """β₂, how much of the second moment is kept. For fedadam and fedyogi."""
    tau: float = 1e-3
    """τ, added to the root of the second moment. Greater values make fedadam and fedyogi less adaptive."""


class KindTable(BaseModel):
    """A `kind` of one's own, or of an installed package, and its parameters."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    kind: str


def _optimizer_tag(value: Any) -> str:
    kind = value.get("kind", "sgd") if isinstance(value, dict) else getattr(value, "kind", "sgd")
    is_own = isinstance(kind, str) and kind not in get_args(BuiltInOptimizer)
    return "literal[own]" if is_own else "literal[built-in]"  # errors name keys without what is in brackets


class AggregationTable(TomlTable):
    """How the server combines a round's updates."""

    rule: str | dict[str, Any] = "fedavg"
    """The aggregation rule: its name, or a table with the `kind` of your own rule and its parameters."""
    harmful: int = 1
    """How many harmful updates of a round trimmed-mean, krum and multi-krum must withstand."""
    clip_norm: float | None = None
    """Rule "norm-clip": the greatest L2 norm of an update. Without it, the median of the round's norms."""
    weight_share_max: PositiveShare = 1.0
    """The greatest share that one client has of a round's average, and of the data in PAUSE's g. 1 sets no limit."""
    norm_limit: Annotated[float, Field(gt=1, allow_inf_nan=False)] | None = None
    """An update is rejected when its L2 norm exceeds this many times the round's median. Without it, none is."""
    optimizer: Annotated[
        Annotated[OptimizerTable, Tag("literal[built-in]")] | Annotated[KindTable, Tag("literal[own]")],
        Discriminator(_optimizer_tag),
    ] = OptimizerTable()
    """The server's optimizer."""

    @field_validator("optimizer", mode="before")
    @classmethod
    def _kind_alone(cls, value: Any) -> Any:
        return {"kind": value} if isinstance(value, str) else value


class EvaluationTable(TomlTable):
    """When the model is evaluated. An evaluation never delays a round."""

    every: Annotated[int, Field(ge=0)] = 10
    """Evaluates on fixed subsets after every so many rounds. 0 evaluates only at the end, on all examples."""
    subset: Count = 1000
    """How many examples each fixed subset has."""
    address: str = ""
    """HOST:PORT of a running `pausefl evaluator`. Without it, the server starts one of its own."""
    host: str = "127.0.0.1"
    """The address on which `pausefl evaluator` listens."""
    port: Port = 0
    """The TCP port on which `pausefl evaluator` listens. 0 takes any free port."""
    insecure: bool = False
    """Lets the evaluator listen where other machines can reach it, without mutual TLS (`--insecure`)."""
    connect_timeout_s: Positive = 60.0
    """How long the server waits for the evaluator before round 1, and for one that is away at the run's end."""
    answer_timeout_s: Positive = 600.0
    """How long one answer of the evaluator may take. Then it counts as lost, and one that the server started is started
    again."""


class ServerTable(TomlTable):
    """Where the server listens, and how long it waits."""

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
    checkpoint_every: Annotated[int, Field(ge=0)] = 25
    """Keeps the model of every so many rounds, for `--back-to`. 0 keeps only those of the last two rounds."""
    rounds_without_update_max: Count = 3
    """The run ends, as failed, after this many attempts at a round in a row in which no client gave an update."""
    rest_rounds_max: Annotated[int, Field(ge=0)] = 64
    """A client that missed k times in a row rests min(2^(k-1), this) rounds. 0: no client rests."""
    dead_after_s: Annotated[float, Field(ge=0.5, allow_inf_nan=False)] = 15.0
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
    """Which clients may take part, and how a client proves its id. Without certificates and tokens, clients prove
    nothing."""

    clients: tuple[str, ...] | str = ()
    """The ids that may join: a list, or one pattern with * and ?. Without it, the experiment's clients."""
    by_certificate: bool = False
    """Whether each client must show a certificate, signed by `tls.ca`, that has its id, or a pattern of it, among its
    alternative names."""
    tokens: str = ""
    """Server: the file of token digests that `pausefl certs` writes."""
    token: str = ""
    """Client: the file that holds its own token. {client_id} in the path stands for its id."""


class TlsTable(TomlTable):
    """PEM files for TLS. A process without any of them uses no encryption."""

    certificate: str = ""
    """The certificate that this process shows. In a client's paths, {client_id} stands for its id."""
    key: str = ""
    """The private key of `certificate`."""
    ca: str = ""
    """With `ca`, a process rejects peers whose certificate that CA did not sign. With it on both sides, both show
    theirs."""


class HostTable(TomlTable):
    """Host-interference limits. Beyond them a round's measurements are marked as suspect, for the server's host and
    for clients' hosts."""

    loop_lag_s: Positive = 0.05
    """The greatest lag of a process's event loop."""
    timer_overshoot_s: Positive = 0.05
    """The greatest time by which a timer may fire late."""
    steal_share: Share = 0.05
    """The greatest share of the machine's processor time that its hypervisor takes away."""
    compute_share: Share = 0.5
    """The greatest share of a measured time that the process itself computes. A client's share counts only with the
    signal "round_trip" and the mode "additive"."""


class MetricsTable(TomlTable):
    """Where Prometheus scrapes, and how many series each client has there."""

    enabled: bool = True
    """Whether the server serves `/metrics` and the live page."""
    host: str = "127.0.0.1"
    """The address on which the server serves them."""
    port: Port = 0
    """The TCP port on which the server serves them. 0 takes any free port."""
    client_series_max: Annotated[int, Field(ge=0)] = 200
    """With more clients than this, only the most important ones keep series of their own, beside quantiles over all."""
    client_series_top: Annotated[int, Field(ge=0)] = 20
    """How many clients are the most important ones, by latency and by ε each."""
    page: Literal["auto", "on", "off"] = "auto"
    """Whether there is a live page, at `/`. "auto" serves it only where no other machine can see it."""
    linger_s: NonNegative = 0.0
    """How long `/metrics` and the page stay up after the run. A few scrape intervals let Prometheus record the end."""
    client_host: str = "127.0.0.1"
    """The address on which client processes serve their own metrics."""
    client_port: Annotated[int, Field(ge=-1, le=65_535)] = -1
    """The port of each client process's metrics: 0 takes any free port, -1 serves none. They tell more than the server
    needs to know."""
