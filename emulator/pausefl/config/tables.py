"""The tables of an experiment's TOML file, key by key, with their defaults."""

from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, field_validator

from pausefl.config.base import Count, NonNegative, Port, Positive, Share, TomlTable
from pausefl_client.privacy.mechanism import Sampler


class ExperimentTable(TomlTable):
    """What is run and how long."""

    rounds: Count = 100
    seed: Annotated[int, Field(ge=0)] = 1
    python_path: tuple[str, ...] = ()
    """Folders in which "module:name" is looked for after Python's own, relative to the experiment file; the file's own
    folder unless said."""


class ClientGroup(TomlTable):
    """Clients that have something in common; they are called <group>-000 and so on."""

    count: Count
    behaviours: tuple[dict[str, Any], ...] = ()
    """What its clients do differently, by `kind`, one after the other (pausefl.population.behaviours)."""
    role: Literal["relevant", "irrelevant"] | None = None
    """What newcomers are in a published experiment: with data that helps the task, or not. Reports compare the two."""
    join_round: Count = 1
    """Its clients connect before this round begins; its processes are started then."""
    leave_round: Annotated[int, Field(ge=2)] | None = None
    """The first round without them; none: they stay."""
    leave: Literal["stop", "kill"] = "stop"
    """How they go: they close their streams, or their processes are killed."""
    availability: dict[str, Any] = Field(default={})
    """When they can be reached, by `kind` (pausefl.population.availability); always, unless said."""
    drift: dict[str, Any] = Field(default={})
    """What `pausefl simulate` draws as their path drifts, by `kind` (pausefl.population.simulated_drifts)."""

    def client_ids(self, name: str) -> list[str]:
        """The ids of the group of this name, in order."""
        width = max(3, len(str(self.count - 1)))
        return [f"{name}-{k:0{width}}" for k in range(self.count)]


class ClientsTable(TomlTable):
    """Who takes part."""

    count: Count = 30
    """How many clients there are in all; with groups, the sum of their counts."""
    groups: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$")], ClientGroup] = Field(default={})
    per_process: Count | None = None
    """Clients that share one process, one torch and one device. Unless said otherwise: 1 for up to 32 clients; more
    share a process per core, and at least four."""
    trainers: Count = 1
    """Clients of one process that train at a time; the others' wait for a trainer is their queue_s."""
    minimum: Count | None = None
    """Round 1 starts when so many are connected; all of them unless said otherwise."""
    connect_timeout_s: Positive = 60.0
    examples_max: Count | None = None
    """The greatest |D_k| that counts, whatever a client states; 5 times the median of the clients' unless said."""


class SelectionTable(BaseModel):
    """Which policy chooses, how many clients a round, and a table of parameters per policy."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    policy: str = "pause"
    m: Count = 5

    def parameters(self, policy: str) -> dict[str, Any]:
        """The parameters under [selection.<policy>]."""
        return dict((self.__pydantic_extra__ or {}).get(policy, {}))


class PrivacyTable(TomlTable):
    """What a client may leak, and the noise that sees to it."""

    enabled: bool = True
    epsilon_budget: float = 100.0
    eta: float = 0.04
    unit: Literal["coordinate", "vector"] = "coordinate"
    clip: float = 0.003
    """Coordinate: Δ, the width a coordinate is clamped to; vector: C, the greatest L1 norm of an update."""
    disclose: tuple[Literal["loss", "labels"], ...] = ()
    """What clients may tell un-noised besides their data size and device times."""
    epsilon_floor: NonNegative = 0.0
    """A client retires when its next ε_i would lie below this; 0: never by this rule."""
    noise_to_clip_max: Positive | None = None
    """A client retires when the scale of its noise would exceed so many clip bounds; none: never by this rule."""
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    """δ of the tighter (ε, δ) figure that stands beside the sum of the ε_i."""
    ledger_dir: str | None = None
    """Where the data holders' ledgers lie, outliving runs: these then share one budget. None: a budget per run."""
    sampler: Sampler = "laplace"
    """numpy (torch on a GPU) seeded with the operating system's entropy; or OpenDP's exact one, 1000 times slower."""
    reproducible_noise: bool = False
    """NOT PRIVATE: noise from the seed; anyone who knows the seed can subtract it. For repeating experiments alone, and
    so never with `ledger_dir`."""

    @property
    def noise(self) -> Literal["laplace", "opendp", "reproducible"]:
        """Where noise comes from: the sampler's name, or "reproducible", which is not private."""
        return "reproducible" if self.reproducible_noise else self.sampler


class WorkloadTable(TomlTable):
    """What is trained, on what."""

    dataset: str = "digits"
    model: str = "mlp"
    examples: Count | None = None
    """Training examples over all clients; none: all there are."""
    partition: str | dict[str, Any] = "iid"
    """How training examples are dealt out, by `kind` (pausefl_client.data.partition); a kind alone has its defaults."""
    training: str | dict[str, Any] = "plain"
    """How a client trains in a round, by `kind` (pausefl_client.training.method)."""
    optimizer: str = "adam"
    """One of torch.optim in lower case, or "module:name"."""
    optimizer_options: dict[str, Any] = Field(default={})
    """What else the optimizer is made with, such as { weight_decay = 0.01 }."""
    learning_rate: float = 0.01
    schedule: dict[str, Any] = Field(default={})
    """How the learning rate changes from round to round, by `kind`, as { kind = "cosine", T_max = 100 }; constant,
    unless said."""
    batch_size: int = 20
    epochs: int = 1
    max_steps: int | None = 100
    proximal_mu: NonNegative = 0.0
    """FedProx: μ, the weight of the distance to the round's model in a client's loss."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    model_bytes: Annotated[int, Field(ge=4, multiple_of=4)] = 4096
    """Size of the synthetic model."""
    train_s: NonNegative = 0.0
    """Processor time a round costs with the synthetic model."""


BuiltInOptimizer = Literal["sgd", "fedavgm", "fedadam", "fedyogi"]


class OptimizerTable(TomlTable):
    """How the server turns a round's update into the next model (pausefl_server.model.optimizers)."""

    kind: BuiltInOptimizer = "sgd"
    learning_rate: float = 1.0
    beta_1: float = 0.9
    beta_2: float = 0.99
    tau: float = 1e-3


class KindTable(BaseModel):
    """A `kind` of one's own, or of an installed package, and its parameters."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    kind: str


def _optimizer_tag(value: Any) -> str:
    kind = value.get("kind", "sgd") if isinstance(value, dict) else getattr(value, "kind", "sgd")
    is_own = isinstance(kind, str) and kind not in get_args(BuiltInOptimizer)
    return "literal[own]" if is_own else "literal[built-in]"  # errors name keys without what is in brackets


class AggregationTable(TomlTable):
    """How the server combines a round's updates (pausefl_server.model.aggregation)."""

    rule: str | dict[str, Any] = "fedavg"
    """A rule by its name, or one of your own with parameters, by `kind`."""
    harmful: int = 1
    """How many updates of a round trimmed-mean, krum and multi-krum are to withstand."""
    clip_norm: float | None = None
    """norm-clip: the greatest L2 norm of an update; none: the median of the round's norms."""
    weight_share_max: Annotated[float, Field(gt=0, le=1)] = 1.0
    """The greatest share of a round's average, and of the data in PAUSE's g, that one client has; 1: no limit."""
    norm_limit: Annotated[float, Field(gt=1, allow_inf_nan=False)] | None = None
    """An update whose L2 norm exceeds so many times the median of its round's is rejected; none: none is."""
    optimizer: Annotated[
        Annotated[OptimizerTable, Tag("literal[built-in]")] | Annotated[KindTable, Tag("literal[own]")],
        Discriminator(_optimizer_tag),
    ] = OptimizerTable()

    @field_validator("optimizer", mode="before")
    @classmethod
    def _kind_alone(cls, value: Any) -> Any:
        return {"kind": value} if isinstance(value, str) else value


class EvaluationTable(TomlTable):
    """When the model is evaluated; never on the rounds' critical path."""

    every: Annotated[int, Field(ge=0)] = 10
    """Evaluate on fixed subsets after every so many rounds; 0: only at the end, on everything."""
    subset: Count = 1000
    address: str = ""
    """HOST:PORT of a `pausefl evaluator`; none: the server starts a process of its own."""
    host: str = "127.0.0.1"
    """Where a `pausefl evaluator` listens."""
    port: Port = 0
    insecure: bool = False
    """Listen where other machines can reach it, without mutual TLS (--insecure)."""
    connect_timeout_s: Positive = 60.0
    """How long to wait for the evaluator before round 1, and for the evaluation of the last model."""


class ServerTable(TomlTable):
    """Where the server listens and how patient it is."""

    host: str = "127.0.0.1"
    port: Port = 0
    round_timeout_s: Positive = 300.0
    rejoin_timeout_s: NonNegative = 5.0
    checkpoint_every: Annotated[int, Field(ge=0)] = 25
    """Keep the model of every so many rounds, to go back to with `--back-to`; 0: only those of the last two."""
    rounds_without_update_max: Count = 3
    """The run ends, as failed, after so many rounds in a row in which no client gave an update."""
    rest_rounds_max: Annotated[int, Field(ge=0)] = 64
    """A client that missed k times in a row rests min(2^(k-1), this) rounds; 0: no client rests."""
    dead_after_s: Annotated[float, Field(ge=0.5, allow_inf_nan=False)] = 15.0
    """A silent peer, server or client, is found dead in at most this time; pings answer for those with nothing to say.
    """
    hello_timeout_s: Positive = 10.0
    """How long a connection may last whose client has not said hello."""
    insecure: bool = False
    """Listen where other machines can reach it, without TLS and admission (--insecure)."""
    pings_per_s: NonNegative = 5.0
    """Idle round-trip probes over all clients together, for a baseline of who is not chosen; no policy sees them."""


class AdmissionTable(TomlTable):
    """Who may take part, and how a client shows that its id is its own. Without names or tokens, it shows nothing."""

    clients: tuple[str, ...] | str = ()
    """The ids that may join, as a list or one pattern with * and ?; none: the experiment's clients."""
    by_certificate: bool = False
    """A client shows a certificate (tls.ca is who signs it) one of whose alternative names is its id, or a pattern."""
    tokens: str = ""
    """On the server: the file of `pausefl certs` that holds a digest of each client's token."""
    token: str = ""
    """On a client: the file that holds its own token; {client_id} in the path stands for its id."""


class TlsTable(TomlTable):
    """PEM files for TLS; a process with none of them speaks in the clear."""

    certificate: str = ""
    """What this process shows of itself. In a client's paths {client_id} stands for its id."""
    key: str = ""
    ca: str = ""
    """The other side's certificate must be signed by one in here: if server and client have it, both show theirs."""


class HostTable(TomlTable):
    """Beyond these a round's measurements are marked as suspect, on the server's host or a client's."""

    loop_lag_s: Positive = 0.05
    timer_overshoot_s: Positive = 0.05
    steal_share: Share = 0.05
    """Of the machine's processor time."""
    compute_share: Share = 0.5
    """Of the time measured; a client's counts where the signal is the round trip."""


class MetricsTable(TomlTable):
    """Where Prometheus scrapes, and how much it finds there by client."""

    enabled: bool = True
    host: str = "127.0.0.1"
    port: Port = 0
    client_series_max: Annotated[int, Field(ge=0)] = 200
    """With more clients than these, only those that matter most keep series of their own, beside quantiles over all."""
    client_series_top: Annotated[int, Field(ge=0)] = 20
    """How many matter most, by latency and by ε each."""
    page: Literal["auto", "on", "off"] = "auto"
    """The live page, at /; auto: where only this machine can see it."""
    linger_s: NonNegative = 0.0
    """How long both stay when the run is over: a few scrape intervals, and Prometheus sees how it ended."""
    client_host: str = "127.0.0.1"
    client_port: Annotated[int, Field(ge=-1, le=65_535)] = -1
    """Where each client process can be scraped: 0: any free port; -1: nowhere. It tells more than the server needs."""
