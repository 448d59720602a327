"""The rows of a run's observation log, as immutable records.

All that the server knows about its clients is a fold over these rows (see `clients.ClientTable`), so a run is resumed
by replaying its log. They hold scalars only: no vectors, no references to live objects.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pausefl_process.host_monitor import HostReport

Signal = Literal["round_trip", "communication"]
MissKind = Literal[
    "timeout",  # no answer by the deadline
    "lost",  # the client's stream broke, and it did not come back in time
    "refused",  # the client said that it has no update
    "rejected",  # the update was not accepted
    "unneeded",  # not waited for: enough others had answered
]
"""Why a chosen client gave no update."""
STILL_AT_WORK: tuple[MissKind, ...] = ("timeout", "lost", "unneeded")
"""The misses after which the client may still release."""
EventKind = Literal[
    "joined",  # the client said hello, with what its ledger counts
    "left",  # its stream ended
    "missed",  # it gave no update, by its own word or by silence
    "rejected",  # its update or its answer was not accepted
    "reconciled",  # its ledger counts more releases than the server knew of
    "retired",  # its budget is used up, or its next ε lies below the floor
    "capped",  # a value that it stated was cut to the greatest allowed
    "unsettled",  # it may have released for a job, or may still do so, and no answer will tell
    "withdrawn",  # it dropped a withdrawn job, and charged nothing for it
    "late",  # its update came after its round
    "merged",  # a late update entered a later model
    "dropped",  # a late update that was kept for a later model entered none
    "given",  # it was handed a job of an asynchronous step, which it may charge
]


Split = Literal["validation", "test"]
"""The data a model is evaluated on: training data that no client holds, or the test set."""
SPLITS: tuple[Split, ...] = ("validation", "test")


@dataclass(frozen=True, slots=True)
class Timing:
    """How long each part of one exchange took, in seconds. Each part is measured where it happens.

    framing_s and server_wait_s lie before and after the round trip, all other parts within it.
    """

    round_trip_s: float
    """From the first model frame handed over to the last update frame received, on the server's clock. The time during
    which the client's stream is broken counts too."""
    download_s: float = 0.0
    """From the model's first frame to its last, on the client's clock, like the next five values."""
    injected_down_s: float = 0.0
    """How long the link held the model back."""
    queue_s: float = 0.0
    """How long the work waited for a trainer."""
    train_s: float = 0.0
    privatise_s: float = 0.0
    """How long clipping, noise and the ledger took."""
    injected_up_s: float = 0.0
    """How long the link held the update back."""
    upload_s: float = 0.0
    """From the update's first frame to its last, on the server's clock, like the next three values."""
    framing_s: float = 0.0
    """How long the server took to frame the model, which it does once a round."""
    server_wait_s: float = 0.0
    """How long the framed job waited to be handed over, plus how long the received update waited for the
    coordinator."""
    reconnect_s: float = 0.0
    """From the job's first hand-over to its last, after which the other parts follow; 0 if it was handed over once."""

    @property
    def exchange_s(self) -> float:
        """The whole exchange: the round trip, and the server's own time before and after it."""
        return self.framing_s + self.round_trip_s + self.server_wait_s

    @property
    def device_s(self) -> float:
        """Time the client computed or waited to compute: queue + train + privatise."""
        return self.queue_s + self.train_s + self.privatise_s

    @property
    def communication_s(self) -> float:
        """The round trip without the client's own work."""
        return self.round_trip_s - self.device_s

    @property
    def propagation_s(self) -> float:
        """The residual that no measured part explains: the network, and the software between the two clocks."""
        injected_s = self.injected_down_s + self.injected_up_s
        return self.round_trip_s - self.reconnect_s - self.download_s - injected_s - self.device_s - self.upload_s

    def signal_s(self, signal: Signal, time_scale: float) -> float:
        """The latency that a policy sees. `time_scale` multiplied all injected delays; this is undone here."""
        communication_s = self.communication_s / time_scale
        return communication_s if signal == "communication" else self.device_s + communication_s


TIMING_TOLERANCE_S = 1e-3
"""By how much an honest client's parts may exceed the round trip: its clock and the server's are read at slightly
different instants."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One chosen client in one round, as the server saw it. Only updates that came in time have an observation.

    An observed update need not enter the model: a `LogEvent` tells if it was rejected as an outlier.
    `selection.observed.PolicyObservation` describes the fields that policies see.
    """

    client_id: str
    timing: Timing
    latency_s: float
    n_examples: int
    participation: int
    """i, the client's own count of its private releases; 0 in a run without privacy."""
    epsilon: float
    epsilon_spent: float
    """The client's ε spent after this release, reconciled with the server's ledger."""
    bytes_down: int = 0
    bytes_up: int = 0
    drawn_down_s: float = 0.0
    drawn_up_s: float = 0.0
    """The drawn delays, used by `timing_error_s` alone; they never reach a policy."""
    loss: float | None = None
    host: HostReport = field(default_factory=HostReport)
    """How well the client's host kept time during the exchange."""
    suspect: tuple[str, ...] = ()
    """Why the measurement is in doubt (`host_limits.DOUBTS`); empty if it is not."""
    teaches: bool = True
    staleness: int = 0
    weight: float = 0.0
    """The factor of its update in the step's sum, s(τ) included; 0 if it entered no model."""
    handed_out_s: float = 0.0
    """When the client was handed its job, as elapsed time (`rounds.elapsed`)."""
    came_back_s: float = 0.0
    """When the coordinator took its update, as elapsed time."""
    statistics: Mapping[str, float] = field(default_factory=dict)

    def timing_error_s(self, *, total_delays: bool) -> float:
        """|measured − drawn| in real seconds: the time that the real network, the software and the hosts added.

        The measured time is communication or, if drawn delays are of whole exchanges (`total_delays`), the round trip.
        The error has no sign: with one, a client that held its messages too briefly would not stand out.
        """
        measured_s = self.timing.round_trip_s if total_delays else self.timing.communication_s
        return abs(measured_s - self.drawn_down_s - self.drawn_up_s)


@dataclass(frozen=True, slots=True)
class Miss:
    """A chosen client that gave no usable update in its round. Its latency is censored at the time waited.

    The client would have taken longer than `waited_s` to give a usable update. If it gave another answer before the
    deadline (`kind` "refused" or "rejected"), the wait ends with that answer.
    """

    client_id: str
    """The client that missed the round."""
    kind: MissKind
    """Why: "timeout", "lost", "refused", "rejected" or "unneeded"."""
    waited_s: float
    """From when the client's job was offered until the server stopped waiting, on the server's clock."""
    latency_s: float
    """`waited_s` at the emulated scale, all of it counted as communication. It is a lower bound of the latency as far
    as the client did not compute meanwhile: the server cannot know how much of the wait was device time."""
    reason: str = ""
    """The reason in words; may be empty."""
    at_work_s: float = 0.0
    """From when the client's job was handed out until the server stopped waiting, as elapsed time
    (`rounds.elapsed`)."""
    teaches: bool = True
    """Whether latency estimates count it: not if the server itself was stopped or slept."""


@dataclass(frozen=True, slots=True)
class LogEvent:
    """Something that happened to one client outside an accepted update. Replaying the log needs it."""

    kind: EventKind
    client_id: str
    detail: str = ""
    n_examples: int = 0
    """With "joined": |D_k|."""
    epsilon_spent: float = 0.0
    """With "joined" and "reconciled": the ε the client says it has spent."""
    released: int = 0
    """With "joined" and "reconciled": the private releases the client counts."""
    count: int = 1
    """How often it happened: repeated events are merged into one. 0: it is about rounds that were taken back."""
    job_round: int = 0
    """With "given", "withdrawn" and "late": the job's round t. The job's model is θ_(t−1)."""
    job_attempt: int = 0
    """With "given", "withdrawn" and "late": the job's attempt, which counts how often that model was handed out."""


@dataclass(frozen=True, slots=True)
class Ping:
    """How long an idle client took to answer a ping. It is logged with the round under way."""

    client_id: str
    ping_s: float


def unsettled(client_id: str, round: int, attempt: int) -> LogEvent:
    """The event of a client that may have charged, or may yet charge, a job without telling the server."""
    which = f"round {round}" if attempt == 1 else f"attempt {attempt} at round {round}"
    return LogEvent("unsettled", client_id, f"may have released for {which}")


ACCURACY = "accuracy"
"""The metric of classification."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """How good a model is on public data the clients never see."""

    split: Split
    subset: bool
    """True if it used the split's fixed subset; False if it used all of the split."""
    n_examples: int
    accuracy: float
    """Share of right answers, or another task's mean score, in [0, 1]."""
    loss: float
    """Mean loss; infinite for a model that has diverged."""
    metric: str = field(default=ACCURACY, compare=False)
    """The name of the task's mean score, which `accuracy` holds. A run has one, and its log stores it once."""


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One committed round or step, or an attempt at one in which no client gave an update.

    `chosen` is in selection order, and repeats a client that was drawn twice. An asynchronous step's `chosen` clients
    are those that were given its model; its observations and misses may belong to earlier steps' jobs.
    """

    round: int
    attempt: int
    chosen: tuple[str, ...]
    weights: tuple[float, ...] | None = None
    observations: tuple[Observation, ...] = ()
    events: tuple[LogEvent, ...] = ()
    """The events since the previous selection, in the order they happened: this round's selection knew them."""
    round_latency_s: float = 0.0
    """Eq. (3) on the signal: the greatest latency of the round's observations and of its misses' `latency_s`.
    Clients that were not needed do not count."""
    cluster_penalty_s: float = 0.0
    """R2's δ_τ term, eq. (22). It has its own column, and is never added to a measurement."""
    wall_clock_s: float = 0.0
    selection_s: float = 0.0
    model_digest: str = ""
    """The digest of θ_t, the model after this round. The model is durable before this record is."""
    details: Mapping[str, float] = field(default_factory=dict)
    """The policy's own numbers about its choice (energy, gap, steps); never read back by a policy."""
    suspect: tuple[str, ...] = ()
    """Why the round's measurements are in doubt (`host_limits.DOUBTS`); empty if they are not."""
    host: HostReport = field(default_factory=HostReport)
    """How well the server's host kept time during the round."""
    misses: tuple[Miss, ...] = ()
    """The misses. In a round, every chosen client has either an observation or a miss."""
    deadline_s: float = 0.0
    """How long the round waits for its clients at most, in seconds from when its jobs were sent."""
    elapsed_s: float = 0.0
    """From the run's first job to this commit, at the emulated scale (`rounds.elapsed`)."""
    failed_attempts: tuple["RoundRecord", ...] = ()
    """Earlier attempts at this round, with the same model, in which no client gave an update."""

    @property
    def attempts(self) -> tuple["RoundRecord", ...]:
        """All attempts at this round in order, this one last."""
        return *self.failed_attempts, self

    @property
    def missed(self) -> tuple[Miss, ...]:
        """The misses, except those of kind "unneeded"."""
        return tuple(miss for miss in self.misses if miss.kind != "unneeded")

    @property
    def measured_latency_s(self) -> float:
        """The greatest measured latency; 0 if none was measured."""
        return max((o.latency_s for o in self.observations), default=0.0)

    @property
    def is_censored(self) -> bool:
        """Whether the round's latency is that of a miss: a wait after which the answer had not come."""
        return self.round_latency_s > self.measured_latency_s
