"""A run's settings for the server: a validated record that the emulator makes from the experiment."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from pausefl_proto.addresses import is_loopback
from pausefl_proto.budget import Budget
from pausefl_proto.encoding import Encoding
from pausefl_proto.number_types import Count, NonNegative, Port, PositiveShare, Whole
from pausefl_proto.privacy_unit import PrivacyUnit
from pausefl_proto.wire import Manifest
from pausefl_server.host_limits import HostLimits
from pausefl_server.model.aggregation import Aggregation
from pausefl_server.model.norm_bound import NormBound
from pausefl_server.model.optimizers import Optimizer
from pausefl_server.model.staleness import Asynchronous
from pausefl_server.records import Signal


@dataclass(frozen=True)
class PrivacySettings:
    """The privacy that server and clients agree on. They compare `schedule` when a client says hello."""

    budget: Budget
    unit: PrivacyUnit
    schedule: str
    reproducible_noise: bool = False
    """True: the noise can be drawn again from the seed, so the run is not private."""
    norm_bound: NormBound | None = None
    """Rejects updates that the mechanism cannot have made; None: none is rejected."""


@dataclass(frozen=True)
class RunInfo:
    """The names by which people know a run; a policy never sees them."""

    run: str
    """The run directory's name."""
    policy: str
    dataset: str
    model: str


@dataclass(frozen=True)
class MetricsSettings:
    """Where a run can be watched, and how many clients have metrics of their own."""

    enabled: bool = True
    """Whether the server serves `/metrics` and the live page."""
    host: str = "127.0.0.1"
    """The address on which the server serves them."""
    port: Port = 0
    """The TCP port on which the server serves them. 0 takes any free port."""
    client_series_max: Whole = 200
    """With more clients than this, only the most important have series of their own; quantiles cover all clients."""
    client_series_top: Whole = 20
    """How many clients count as the most important: this many by latency, and this many by ε."""
    page: Literal["auto", "on", "off"] = "auto"
    """Whether the server serves a live page at `/`. "auto" serves it only where no other machine can see it."""
    linger_s: NonNegative = 0.0
    """How long `/metrics` and the page stay up after the run. A few scrape intervals let Prometheus record the end."""

    @property
    def has_page(self) -> bool:
        """Whether the live page is served."""
        return self.page == "on" or (self.page == "auto" and is_loopback(self.host))


@dataclass(frozen=True)
class RoundSettings:
    """How long the server waits for clients and lets them rest, how it probes them, and which models it keeps."""

    rejoin_timeout_s: NonNegative = 5.0
    """How long a round waits until a client whose stream broke has reconnected."""
    quorum: PositiveShare = 1.0
    """A round ends once this share of its m clients, rounded up, has answered."""
    checkpoint_every: Whole = 25
    """The number of rounds between models kept for `--back-to`, the newest up to 1 GiB. 0 keeps the last two alone."""
    rounds_without_update_max: Count = 3
    """The run fails after this many consecutive attempts at a round in which no client gave an update."""
    rest_rounds_max: Whole = 64
    """The longest rest: a client that missed k times in a row rests min(2^(k-1), this) rounds. With 0, no client rests.
    """
    pings_per_s: NonNegative = 5.0
    """How many round-trip probes a second the server sends to idle clients, over all clients. They measure a baseline
    for clients that are not chosen. No policy sees them."""


@dataclass(frozen=True, kw_only=True)
class ServerSettings(RoundSettings):
    """One run, as the server sees it."""

    run_id: str
    seed: int
    rounds: int
    minimum_clients: int
    manifest: Manifest
    privacy: PrivacySettings | None
    signal: Signal
    time_scale: float
    tau_min_s: float | None
    """None: estimated from the latencies seen (`ClientTable.effective_tau_min_s`)."""
    connect_timeout_s: float
    """How long to wait for `minimum_clients` before round 1, and later for any client if none can be chosen."""
    round_timeout_s: float | None
    """How long a round waits for its clients; None: derived from their last round trips (`rounds.deadline`)."""
    evaluation_every: int
    """The interval between evaluations of the model, in rounds; 0: it is evaluated only at the end."""
    spare: int
    """How many of the policy's m clients are over-selected: a round needs m − `spare` answers."""
    keeps_late_updates: bool
    """True: an update that comes after its round is kept for the next model. False: it is dropped."""
    examples_max: int | None
    """The greatest |D_k| that counts; None: 5 times the median over the connected clients."""
    disclosed: frozenset[str]
    """Names of the values that clients shall disclose; any others that they report are dropped."""
    limits: HostLimits
    """The limits beyond which a round's measurements are suspect."""
    aggregation: Aggregation
    optimizer: Optimizer
    is_asynchronous: bool
    """Whether the server takes asynchronous steps as updates arrive, instead of rounds."""
    asynchronous: Asynchronous
    """How asynchronous steps are taken, and how late updates of rounds are discounted."""
    expected: Callable[[int], frozenset[str]] | None
    """round -> the clients that will be there, if known. A round waits for clients that come or go with it."""
    clients: int | None
    """How many different clients the run admits in all; None: any number."""
    total_delays: bool
    """True: drawn delays are of whole exchanges, transfer and work included. False: they come on top of these."""
    info: RunInfo
    encoding: Encoding
    """How updates are encoded on the wire."""
    agreement: Mapping[str, str] | None
    """Values that a client's experiment must share: key of the experiment -> value as JSON; None: none is compared."""
    own_code: str = ""
    """The user's own modules that clients need, with digests of their source: "module digest; ..."."""
    clock: str = "real"
    """The clock of the run's times, "real" or "virtual"."""
    farewell: str = ""
    """A note that clients receive, beside the reason why the run is over."""

    @property
    def budget(self) -> Budget | None:
        """Each client's privacy budget; None in a run without privacy."""
        return self.privacy.budget if self.privacy else None

    @property
    def mixes_models(self) -> bool:
        """Whether a step needs the models that its updates were made from."""
        return self.is_asynchronous and self.asynchronous.mixed_share > 0

    @property
    def models_kept(self) -> int:
        """How many of the last models are kept for a restart: those of clients at work, and two written in turn."""
        return 2 + (self.asynchronous.staleness_max if self.is_asynchronous else 0)

    def places(self, asked: int) -> int:
        """How many clients may be at work at once: in rounds, the number `asked`."""
        return self.asynchronous.concurrency if self.is_asynchronous else asked

    def updates_needed(self, m: int) -> int:
        """How many updates an asynchronous step, or a round whose policy has this m, shall have."""
        return self.asynchronous.buffer if self.is_asynchronous else m - self.spare
