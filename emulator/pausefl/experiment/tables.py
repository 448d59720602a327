"""The tables of an experiment's TOML file, key by key, with their defaults."""

import math
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Self, get_args

from annotated_types import Ge, Le, MultipleOf
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from pausefl.experiment.delays.laws import DELAYS
from pausefl.experiment.kinds import Kinds
from pausefl.experiment.population.availability import AVAILABILITIES
from pausefl.experiment.population.behaviours import BEHAVIOURS
from pausefl.experiment.population.simulated_drifts import DRIFTS
from pausefl.experiment.validation import TomlTable
from pausefl_client.data.partition import PARTITIONERS
from pausefl_client.privacy.mechanism import Clip, Mechanism, Sampler
from pausefl_client.privacy.release import schedule_key
from pausefl_client.registries import SCHEDULE_DEFAULTS, SCHEDULES, TRAINING_DEFAULTS, TRAINING_METHODS
from pausefl_client.training.trainer import TrainingSettings
from pausefl_proto.budget import Budget
from pausefl_proto.errors import ConfigError
from pausefl_proto.number_types import ClientCount, Count, NonNegative, Port, Positive, PositiveShare, Whole
from pausefl_proto.privacy_unit import PrivacyUnit
from pausefl_proto.wire import MOST_ROUNDS
from pausefl_server.model.aggregation import RULES, Aggregation
from pausefl_server.model.optimizers import SERVER_OPTIMIZERS, OptimizerName, ServerOptimizer
from pausefl_server.model.staleness import STALENESS_RULES, AsynchronousSteps
from pausefl_server.settings import MetricsSettings, RoundSettings

SeededPart = Literal["split", "model", "latency"]
"""A part of a run that can have a seed of its own, so that it changes while the rest of the run repeats."""

ClientIds = tuple[Annotated[str, Field(pattern=r"^[A-Za-z0-9_](\.?[A-Za-z0-9_-])*$", max_length=128)], ...]
"""Client ids. They also name files, so they may only have characters that are safe in file names."""
GroupName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_-]*$", max_length=120)]
"""The name of a group, with which its clients' ids begin."""


class ExperimentTable(TomlTable):
    """The run: its length, seeds and clock."""

    rounds: Annotated[int, Field(ge=1, le=MOST_ROUNDS)] = 100
    """How many rounds the run plays."""
    seed: Whole = 1
    """The seed of every draw that a run repeats: data, links, selection, behaviours. Private noise never uses it."""
    clock: Literal["real", "virtual"] = "real"
    """The clock of the run. "real" measures processes and their messages. "virtual" plays the same actors and links in
    one process without real waiting: only drawn or stated times pass."""
    split_seed: Whole | None = None
    """The seed that draws the examples, divides them among clients, and draws the evaluated ones. The default is
    `seed`."""
    model_seed: Whole | None = None
    """The seed of the initial model. The default is `seed`."""
    latency_seed: Whole | None = None
    """The seed of the links and of their delays. The default is `seed`."""
    observers: tuple[str, ...] = ()
    """Observers notified of progress: "tensorboard", "mlflow", "wandb", "trackio", or your own "module:name"."""
    python_path: tuple[str, ...] = ()
    """Folders that Python searches for "module:name" after its own. Paths are relative to the experiment file. The
    default is that file's own folder."""
    by_value: dict[Annotated[str, Field(pattern=r"^pausefl_cell_[0-9a-f]+$")], str] = Field(default={})
    """Code that a script or notebook defined: modules serialised by cloudpickle, in base64. Only the same Python
    version can repeat such a run, and the code cannot be read or reviewed."""

    def seed_of(self, part: SeededPart) -> int:
        """The seed of one part of a run: its own seed if that is set, otherwise `seed`."""
        own: int | None = getattr(self, f"{part}_seed")
        return self.seed if own is None else own


class ClientGroup(TomlTable):
    """Clients that have something in common. Their ids are NAME-000, NAME-001 and so on."""

    count: ClientCount
    """How many clients the group has."""
    ids: ClientIds = ()
    """The ids of its clients, in place of NAME-000 and so on."""
    behaviours: tuple[Annotated[dict[str, Any], Kinds(BEHAVIOURS)], ...] = ()
    """The behaviours of its clients: a list of tables with a `kind`, applied one after the other."""
    role: Literal["relevant", "irrelevant"] | None = None
    """Whether the group's clients hold data that helps the task. It is for newcomers: reports compare the two roles."""
    join_round: Count = 1
    """The first round in which its clients take part. Their processes start just before it."""
    leave_round: Annotated[int, Ge(2)] | None = None
    """The first round in which its clients no longer take part. By default, they stay to the end."""
    leave: Literal["stop", "kill"] = "stop"
    """How clients leave: "stop" closes their streams, "kill" kills their processes."""
    availability: Annotated[dict[str, Any], Kinds(AVAILABILITIES, "always")] = Field(default={})
    """When its clients can be reached: a table with a `kind`. By default, they always can."""
    drift: Annotated[dict[str, Any], Kinds(DRIFTS)] = Field(default={})
    """The law from which `pausefl simulate` draws the path drifts of its clients: a table with a `kind`."""

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.ids and len(self.ids) != self.count:
            raise ValueError(f"count = {self.count}: its ids name {len(self.ids)} clients")
        if self.leave_round is not None and self.leave_round <= self.join_round:
            raise ValueError(f"leave_round = {self.leave_round}: must be after its join_round = {self.join_round}")
        return self

    def client_ids(self, name: str) -> list[str]:
        """The ids of the group's clients, in order. `name` is the name of the group."""
        if self.ids:
            return [*self.ids]
        width = max(3, len(str(self.count - 1)))
        return [f"{name}-{k:0{width}}" for k in range(self.count)]


class ClientsTable(TomlTable):
    """The clients that take part."""

    count: ClientCount = 30
    """How many clients there are. With groups, it is the sum of their counts."""
    ids: ClientIds = ()
    """The clients' ids, such as the names of devices. By default, they are client-000, client-001 and so on."""
    groups: dict[GroupName, ClientGroup] = Field(default={})
    """The groups of clients by name. By default, all clients belong to one group called `client`."""
    per_process: Count | None = None
    """How many clients share one process and its torch. By default, each of up to 32 clients has its own process. More
    clients share as many processes as the machine has cores, and at least four."""
    trainers: Count = 1
    """How many clients of one process train at the same time. The others wait, and `queue_s` records how long. A client
    that has computed its update and only waits until a stated training time has passed does not count."""
    batched: Literal["off", "on", "auto"] = "off"
    """Whether the clients of a round are trained together, in one call on stacked models. It needs the virtual clock.
    "auto" measures before round 1 whether that is faster. Results are equal up to rounding."""
    minimum: Count | None = None
    """How many clients must be connected before round 1. By default all of them."""
    connect_timeout_s: Positive = 60.0
    """How long the server waits for clients to connect before round 1."""
    examples_max: Count | None = None
    """The limit on the data size |D_k| of a client. A client that states more counts as if it had this many examples.
    By default, the limit is 5 times the median over clients."""

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.minimum is not None and self.minimum > self.count:
            raise ValueError(f"minimum = {self.minimum}: must be at most clients.count = {self.count}")
        if self.groups and (count := sum(group.count for group in self.groups.values())) != self.count:
            raise ValueError(f"count = {self.count}: its groups add up to {count}")
        if self.groups and self.ids:
            raise ConfigError("clients.ids: goes without clients.groups, each of which has ids of its own")
        if self.ids and len(self.ids) != self.count:
            raise ValueError(f"count = {self.count}: its ids name {len(self.ids)} clients")
        return self


class SelectionTable(TomlTable):
    """The policy, and how many clients it chooses for each round. The policy's parameters are in [selection.POLICY]."""

    model_config = ConfigDict(extra="allow")

    policy: str = "pause"
    """The policy's name, or "package.module:Class" for one of your own."""
    m: ClientCount = 5
    """How many clients the policy chooses for each round."""
    over_selection: Annotated[float, Ge(0), Le(1_000_000)] = 0.0
    """The share x of extra clients: a round asks m(1 + x), rounded up, and waits for the first m."""

    @property
    def asked(self) -> int:
        """How many clients a round asks: m(1 + over_selection), rounded up."""
        return math.ceil(self.m * (1 + self.over_selection) - 1e-9)

    def parameters(self, policy: str) -> dict[str, Any]:
        """The parameters under [selection.<policy>]."""
        return dict((self.__pydantic_extra__ or {}).get(policy, {}))


class PrivacyTable(TomlTable):
    """Each client's privacy budget, and the clipping and noise that protect its updates."""

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
    """Values that clients may disclose without noise, besides their data size and device times. "statistics" are the
    normalisation statistics of `workload.statistics`."""
    epsilon_floor: NonNegative = 0.0
    """A client retires when its next ε_i would lie below this value. 0 switches the rule off."""
    noise_to_clip_max: Positive | None = None
    """A client retires when its noise scale would exceed this multiple of its clip bound: Δ/2 for unit "coordinate", C
    for unit "vector". Without it, the rule is off."""
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    """δ of the (ε, δ) figure that reports show beside the sum of the ε_i."""
    ledger_dir: str | None = None
    """The folder of ledgers that several runs charge, so that these runs share one budget. The path is relative to the
    experiment file's folder. By default, each run has its own budget."""
    sampler: Sampler = "laplace"
    """ "laplace" draws noise with numpy, or torch on a GPU, seeded by the operating system. "opendp" is exact and
    2,000 times slower."""
    reproducible_noise: bool = False
    """NOT PRIVATE: draws the noise from the seed, and anyone who knows the seed can subtract it. For repeating
    experiments only; refused together with `ledger_dir`."""

    @property
    def noise(self) -> Literal["laplace", "opendp", "reproducible"]:
        """The source of the noise: the sampler's name, or "reproducible", which is not private."""
        return "reproducible" if self.reproducible_noise else self.sampler

    @property
    def budget(self) -> Budget | None:
        """The privacy budget: ε̄, η and the least ε of a release. None without privacy."""
        if not self.enabled:
            return None
        least = 2 / self.noise_to_clip_max if self.noise_to_clip_max else 0.0
        return Budget(self.epsilon_budget, self.eta, max(self.epsilon_floor, least))

    @property
    def mechanism(self) -> Mechanism | None:
        """The mechanism that clips updates and adds noise. None in a run without privacy."""
        return Mechanism(self.unit, self.clip) if self.enabled else None

    @property
    def schedule(self) -> str:
        """All of it as text, empty without privacy. A client refuses a job whose text differs from its own."""
        budget, mechanism = self.budget, self.mechanism
        return schedule_key(budget, mechanism, self.noise) if budget is not None and mechanism is not None else ""

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.enabled:
            budget = Budget(self.epsilon_budget, self.eta, self.epsilon_floor)
            if self.noise_to_clip_max and self.noise_to_clip_max < budget.noise_to_clip(1):
                raise ConfigError(
                    f"privacy.noise_to_clip_max = {self.noise_to_clip_max:g}: must be at least"
                    f" 2/epsilon_1 = {budget.noise_to_clip(1):g}, or no client could ever release anything"
                )
        elif self.ledger_dir:
            raise ConfigError(
                "privacy.enabled = false: goes without privacy.ledger_dir only; updates would leave bare and uncharged,"
                " of examples whose one budget is kept there"
            )
        if self.reproducible_noise and self.sampler == "opendp":
            raise ConfigError('privacy.reproducible_noise = true: goes with privacy.sampler = "laplace" only')
        if self.reproducible_noise and self.ledger_dir:
            raise ConfigError(
                "privacy.reproducible_noise = true: goes without privacy.ledger_dir only; noise from the seed hides"
                " nothing, so it must not be charged to ledgers of private runs"
            )
        return self


@dataclass(frozen=True)
class _Subject:
    """The first keys of [workload]."""

    dataset: str = "digits"
    """The data set's name, or "package.module:factory" for one of your own."""
    model: str = "mlp"
    """The model's name, or "package.module:factory" for one of your own. "synthetic" trains nothing."""
    examples: Count | None = None
    """How many training examples all clients have together. By default, they have all examples of the data set."""
    partition: Annotated[dict[str, Any], Kinds(PARTITIONERS)] = field(default_factory=lambda: {"kind": "iid"})
    """How training examples are divided: a table with a `kind`, or the name of a kind, with its default parameters."""
    training: Annotated[dict[str, Any], Kinds(TRAINING_METHODS, defaults=TRAINING_DEFAULTS)] = field(
        default_factory=lambda: {"kind": "plain"}
    )
    """How a client trains in a round: a table with a `kind`, or the name of a kind, with its default parameters."""


@dataclass(frozen=True)
class Workload(TrainingSettings, _Subject):
    """The model, how it is trained, and on which data."""

    proximal_mu: NonNegative = 0.0
    """FedProx: μ, the weight of the distance to the round's model in a client's loss. 0 switches it off."""
    schedule: Annotated[dict[str, Any], Kinds(SCHEDULES, defaults=SCHEDULE_DEFAULTS)] = field(default_factory=dict)
    device: Literal["auto", "cpu", "cuda"] | Annotated[str, Field(pattern=r"^cuda:[0-9]+$")] = "auto"
    """The device on which clients train. "auto" uses CUDA devices if there are any, and assigns client processes to
    them in turn. "cuda:N" is one of these devices, "cuda" any of them."""
    model_bytes: Annotated[int, Ge(4), Le(1 << 32), MultipleOf(4)] = 4096
    """Model "synthetic": the size of its vector."""
    train_s: NonNegative = 0.0
    """Model "synthetic": the processor time that one round of training takes."""
    step_s: Positive | None = None
    """The seconds that a training step takes on the emulated devices: a client trains, then waits until that time has
    passed. By default, a step takes as long as on this machine; the virtual clock measures one before round 1."""
    training_time: Annotated[dict[str, Any], Kinds(DELAYS)] = field(default_factory=dict)
    """The law of the seconds that a client's training takes in a round: a table with a `kind`, as in `latency`. It
    cannot be combined with `step_s`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.step_s is not None and self.training_time:
            raise ConfigError("workload.step_s: goes without workload.training_time, which states the same")
        if self.model == "synthetic" and self.step_s is not None:
            raise ConfigError('workload.step_s: model "synthetic" takes no steps; state workload.train_s')
        if self.model == "synthetic" and self.train_s and self.training_time:
            raise ConfigError("workload.train_s: goes without workload.training_time, which states the same")


class KindTable(BaseModel):
    """A table whose `kind` is the user's own or an installed package's, with the parameters of that kind."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    kind: str


def _optimizer_tag(value: Any) -> str:
    kind = value.get("kind", "sgd") if isinstance(value, dict) else getattr(value, "kind", "sgd")
    is_own = isinstance(kind, str) and kind not in get_args(OptimizerName)
    return "literal[own]" if is_own else "literal[built-in]"  # error messages leave out such parts of a key


@dataclass(frozen=True)
class AggregationTable(Aggregation):
    """How the server combines a round's updates into the next model."""

    rule: Annotated[dict[str, Any], Kinds(RULES, defaults={})] = field(default_factory=lambda: {"kind": "fedavg"})
    """The aggregation rule: its name, or a table with the `kind` of your own rule and its parameters."""
    optimizer: Annotated[
        Annotated[ServerOptimizer, Tag("literal[built-in]")] | Annotated[KindTable, Tag("literal[own]")],
        Discriminator(_optimizer_tag),
        Kinds(SERVER_OPTIMIZERS, defaults={}),
    ] = field(default_factory=ServerOptimizer)
    """The server's optimizer."""


@dataclass(frozen=True)
class AsynchronousTable(AsynchronousSteps):
    """How the server takes steps with `server.mode = "asynchronous"`."""

    staleness: Annotated[dict[str, Any], Kinds(STALENESS_RULES)] = field(default_factory=lambda: {"kind": "polynomial"})
    """The staleness rule: a table with a `kind`, or the name of a kind, with its default parameters. It gives s(τ), the
    weight of an update whose model is τ steps old. "polynomial": (1 + τ)^(-exponent). "hinge": 1 up to `tolerated`,
    then 1/(slope (τ - tolerated) + 1). "constant": 1."""


class EvaluationTable(TomlTable):
    """When the model is evaluated. An evaluation never delays a round."""

    every: Whole = 10
    """The number of rounds between two evaluations on fixed subsets. 0 evaluates only at the end, on all examples."""
    subset: Count = 1000
    """How many examples each fixed subset has."""
    address: str = ""
    """HOST:PORT of a running `pausefl evaluator`. By default, the server starts an evaluator itself."""
    host: str = "127.0.0.1"
    """The address on which `pausefl evaluator` listens."""
    port: Port = 0
    """The TCP port on which `pausefl evaluator` listens. 0 takes any free port."""
    metrics_port: Annotated[int, Ge(-1), Le(65_535)] = -1
    """The port on which `pausefl evaluator` serves metrics of its process, and probes. 0 takes any free port, -1 serves
    none."""
    insecure: bool = False
    """Lets the evaluator listen without mutual TLS where other machines can reach it (`--insecure`)."""
    connect_timeout_s: Positive = 60.0
    """How long the server waits for the evaluator before round 1, and for a lost evaluator at the run's end."""
    answer_timeout_s: Positive = 600.0
    """How long the evaluator may take for one answer. After that, the answer counts as lost. If the server started this
    evaluator, it starts it again."""


@dataclass(frozen=True)
class ServerTable(RoundSettings):
    """Where the server listens, and how long it waits."""

    mode: Literal["rounds", "asynchronous"] = "rounds"
    """ "rounds": a round waits for its clients. "asynchronous": the server takes a step when [asynchronous] says so,
    and replaces clients that finish at once. Then `experiment.rounds` counts steps."""
    host: str = "127.0.0.1"
    """The address on which the server listens."""
    port: Port = 0
    """The TCP port on which the server listens. 0 takes any free port."""
    round_timeout_s: Positive | Literal["auto"] = "auto"
    """A round's deadline, counted from when its jobs are sent. A client that has not answered by then is a miss. "auto"
    derives the deadline from the clients' round trips so far."""
    late: Literal["drop", "buffer"] = "drop"
    """The fate of a late update: "drop" discards it, "buffer" keeps it for the next model with a smaller weight."""
    dead_after_s: Annotated[float, Ge(0.5), Le(1_000_000)] = 15.0
    """The time within which a process notices that its peer is dead. Idle peers answer pings meanwhile."""
    hello_timeout_s: Annotated[Positive, Le(1_000_000)] = 10.0
    """How long a connection may stay open before its client has said hello."""
    insecure: bool = False
    """Lets the server listen without TLS and admission where other machines can reach it. Also lets a client send its
    token to such a server without TLS (`--insecure`)."""


class WireTable(TomlTable):
    """How updates are encoded on the network. Clients round updates after clipping and noise, at no cost in privacy."""

    dtype: Literal["float32", "float16", "bfloat16", "int8"] = "float32"
    """The type in which updates are sent. "int8" has one scale for each 256 values. Models are sent as float32."""
    top_share: PositiveShare = 1.0
    """The share of an update's values that are sent: those greatest in absolute value. The others arrive as 0."""


class AdmissionTable(TomlTable):
    """The clients that may take part, and how each proves its id. Without certificates and tokens, no id is proved."""

    clients: tuple[str, ...] | str = ()
    """The ids that may join: a list, or one pattern with * and ?. By default, the experiment's clients may join."""
    clients_file: str = ""
    """Server: a file that further limits `clients`, with one id or pattern a line. Like `tokens`, it is read again when
    it changes. The server then closes the streams of clients that it leaves out."""
    by_certificate: bool = False
    """Whether each client must show a certificate signed by `tls.ca`. Its alternative names must include the client's
    id, or a pattern that matches the id."""
    tokens: str = ""
    """Server: the file of token digests that `pausefl certs` writes."""
    token: str = ""
    """Client: the file that holds the client's own token. {client_id} in the path is replaced by the client's id."""


@dataclass(frozen=True)
class Metrics(MetricsSettings):
    """The addresses that Prometheus scrapes, and the number of series for each client."""

    client_host: str = "127.0.0.1"
    """The address on which client processes serve their own metrics."""
    client_port: Annotated[int, Ge(-1), Le(65_535)] = -1
    """The port of each client process's metrics: 0 takes any free port, -1 serves none. These metrics tell more than
    the server needs to know."""
