"""What the server needs to know about a run: a validated record, made from the experiment by the emulator."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pausefl_proto.budget import Budget
from pausefl_proto.encoding import FLOAT32, Encoding
from pausefl_proto.privacy_unit import PrivacyUnit
from pausefl_proto.wire import Manifest
from pausefl_server.host_limits import HostLimits
from pausefl_server.model.aggregation import Aggregation
from pausefl_server.model.norm_bound import NormBound
from pausefl_server.model.optimizers import Optimizer, ServerOptimizer
from pausefl_server.records import Signal


@dataclass(frozen=True)
class PrivacySettings:
    """The privacy both ends agree on; they compare `schedule` when a client says hello."""

    budget: Budget
    unit: PrivacyUnit
    schedule: str
    reproducible_noise: bool = False
    """True: the noise can be drawn again from the seed, so the run is not private."""
    norm_bound: NormBound | None = None
    """What the mechanism cannot have made is rejected; None: nothing is."""


@dataclass(frozen=True)
class RunInfo:
    """What people call a run by; a policy never sees it."""

    run: str = ""
    """The run directory's name."""
    policy: str = ""
    dataset: str = ""
    model: str = ""


@dataclass(frozen=True)
class MetricsSettings:
    """Where a run can be watched, and how much of it by client."""

    host: str = "127.0.0.1"
    port: int = 0
    client_series_max: int = 200
    """With more clients than these, only those that matter most keep series of their own."""
    client_series_top: int = 20
    """How many matter most, by latency and by ε each."""
    page: bool = False
    """Whether the live page is there, too."""
    linger_s: float = 0.0
    """How long all this stays when the run is over and its results are written."""


@dataclass(frozen=True)
class ServerSettings:
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
    """How long to wait for `minimum_clients` before round 1, and later for any client, when there is none."""
    round_timeout_s: float | None
    """How long a round waits for its clients; None: as long as their latencies suggest (`rounds.deadline`)."""
    rejoin_timeout_s: float
    """How long a chosen client whose stream broke may take to come back within the round."""
    evaluation_every: int
    """Evaluate after every so many rounds; 0: only at the end."""
    quorum: float = 1.0
    """The share of m, in (0, 1], whose answers end a round."""
    spare: int = 0
    """How many clients the policy's m has beyond those whose answers are needed (over-selection)."""
    keeps_late_updates: bool = False
    """Whether an update that comes after its round is kept for the next model, or dropped."""
    checkpoint_every: int = 25
    """Keep the model of every so many rounds, to go back to; 0: of none."""
    rounds_without_update_max: int = 3
    """The run ends after so many attempts in a row without a single update."""
    rest_rounds_max: int = 64
    """The longest rest after misses in a row, in rounds (`backoff.selectable_rows`); 0: no client rests."""
    examples_max: int | None = None
    """The greatest |D_k| that counts; None: 5 times the median of the connected clients'."""
    disclosed: frozenset[str] = frozenset()
    """What clients were told to disclose; anything else they report is dropped."""
    pings_per_s: float = 0.0
    """How many idle clients to ping a second, over all of them; 0: none."""
    limits: HostLimits = field(default_factory=HostLimits)
    """Beyond these a round's measurements are suspect."""
    aggregation: Aggregation = field(default_factory=Aggregation)
    optimizer: Optimizer = field(default_factory=ServerOptimizer)
    expected: Callable[[int], frozenset[str]] | None = None
    """round -> the clients that will be there, where that is known; a round waits for those who come or go with it."""
    clients: int | None = None
    """How many clients there are to be in all, beyond which no client is let in; None: any number."""
    total_delays: bool = False
    """Drawn delays are of whole exchanges, transfer and work included, not what comes on top of these."""
    info: RunInfo = field(default_factory=RunInfo)
    encoding: Encoding = FLOAT32
    """How updates travel."""
    agreement: Mapping[str, str] | None = None
    """What clients must have as the run has it: key of the experiment -> value as JSON; None: nothing is compared."""

    @property
    def budget(self) -> Budget | None:
        """Each client's privacy budget; None in a run without privacy."""
        return self.privacy.budget if self.privacy else None
