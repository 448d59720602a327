"""The rows of a run's observation log, as immutable records.

Everything the server knows about its clients is a fold over these (see `clients.ClientTable`), so resuming a run is
replaying its log. They hold scalars only: no vector, no reference to a live object.
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
"""After these the client may still release."""
EventKind = Literal[
    "joined",  # the client said hello, with what its ledger counts
    "left",  # its stream ended
    "missed",  # it gave no update, by its own word or by silence
    "rejected",  # its update or its answer was not accepted
    "reconciled",  # its ledger counts more releases than was known
    "retired",  # its budget is used up, or its next ε lies below the floor
    "capped",  # a value that it stated was cut to what is allowed
    "unsettled",  # it may have released for a job, or may still do so, which no answer will tell
    "withdrawn",  # it dropped a withdrawn job unpaid
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
    """Where the time of one exchange went, in seconds, each part measured where it happens.

    Framing and server_wait lie before and after the round trip, all other parts within it.
    """

    round_trip_s: float
    """From the first model frame handed over to the last update frame received, on the server's clock. It runs on while
    the client has lost its stream."""
    download_s: float = 0.0
    """From the model's first frame to its last, on the client's clock, as are the next five."""
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
    """From the update's first frame to its last, on the server's clock, as are the next three."""
    framing_s: float = 0.0
    """How long the server took to frame the model, once a round."""
    server_wait_s: float = 0.0
    """How long the framed job waited for its turn to be handed over, and the received update for the coordinator."""
    reconnect_s: float = 0.0
    """From the first hand-over of the job to the last one, after which the other parts follow; 0 for an unbroken
    stream."""

    @property
    def exchange_s(self) -> float:
        """All of it: the round trip, and what the server itself added before and after."""
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
        """The residual, what no part explains: the network and the software between the two clocks."""
        injected_s = self.injected_down_s + self.injected_up_s
        return self.round_trip_s - self.reconnect_s - self.download_s - injected_s - self.device_s - self.upload_s

    def signal_s(self, signal: Signal, time_scale: float) -> float:
        """The latency a policy sees: injected delays were multiplied by `time_scale`, which is undone here."""
        communication_s = self.communication_s / time_scale
        return communication_s if signal == "communication" else self.device_s + communication_s


TIMING_TOLERANCE_S = 1e-3
"""The excess of an honest client's parts over the whole: its clock and the server's are read at slightly
different instants."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One chosen client in one round, as the server saw it. Only updates that came in time make one.

    Whether it entered the model is another matter: a `LogEvent` says so of one that was rejected beside the others.
    """

    client_id: str
    timing: Timing
    latency_s: float
    """The signal the policy sees (`latency.signal`), at the emulated scale."""
    n_examples: int
    participation: int
    """i, the client's own count of its private releases; 0 in a run without privacy."""
    epsilon: float
    """ε_i of this release; 0 in a run without privacy."""
    epsilon_spent: float
    """The client's ε spent after this release, reconciled with the server's ledger."""
    bytes_down: int = 0
    bytes_up: int = 0
    drawn_down_s: float = 0.0
    drawn_up_s: float = 0.0
    """The delays drawn, for `timing_error_s` alone; they never reach a policy."""
    loss: float | None = None
    """The client's training loss, only where `privacy.disclose` lists it."""
    host: HostReport = field(default_factory=HostReport)
    """How well the client's host kept time meanwhile."""
    suspect: tuple[str, ...] = ()
    """Why the measurement is in doubt (`host_limits.HostLimits.doubts`); empty: it is not."""
    teaches: bool = True
    """Whether estimates of latencies count it: not where a stop or a sleep touched it (`HostLimits.teaches`)."""
    staleness: int = 0
    """τ, the steps between the model that the client was given and the step that its update entered."""
    weight: float = 0.0
    """The factor of its update in the step's sum, s(τ) included; 0 where it entered no model."""
    handed_out_s: float = 0.0
    """When the client was handed its job, as elapsed time (`rounds.elapsed`); so is the next."""
    came_back_s: float = 0.0
    """When its update was taken."""
    statistics: Mapping[str, float] = field(default_factory=dict)
    """The policy's numbers of the vectors while at hand (e.g. Fed-TS's drift), and label counts that the client
    discloses ("label_...")."""

    def timing_error_s(self, *, total_delays: bool) -> float:
        """|measured − drawn| in real seconds: what the real network, the software and the hosts added.

        Measured is communication or, where a drawn delay is that of the whole exchange (`total_delays`), the round
        trip. With a sign, a client that held its messages too short would hide among the others.
        """
        measured_s = self.timing.round_trip_s if total_delays else self.timing.communication_s
        return abs(measured_s - self.drawn_down_s - self.drawn_up_s)


@dataclass(frozen=True, slots=True)
class Miss:
    """A chosen client without an update in its round: a latency censored at what was waited for.

    The client would have taken longer than `waited_s` to give an update that could be used. For a client that answered
    something else before the deadline (`kind` "refused" or "rejected") that is when it answered.
    """

    client_id: str
    """The client that missed the round."""
    kind: MissKind
    """Why: "timeout", "lost", "refused", "rejected" or "unneeded"."""
    waited_s: float
    """From when the round's jobs were offered until the server waited no longer, on the server's clock."""
    latency_s: float
    """The same at the emulated scale, all of it counted as communication. That is a lower bound of the latency as far
    as the client did not compute meanwhile: nothing tells how much of the wait was device time."""
    reason: str = ""
    """The reason told; may be empty."""
    at_work_s: float = 0.0
    """From when its job was handed out until the server waited no longer, as elapsed time (`rounds.elapsed`)."""
    teaches: bool = True
    """Whether estimates of latencies count it: not where the server itself was stopped or slept."""


@dataclass(frozen=True, slots=True)
class LogEvent:
    """Something that happened to one client outside an accepted update; the log could not be replayed without it."""

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
    """How often it happened: events like one another stand as one."""
    job_round: int = 0
    """With "given" and "withdrawn": the round of the job, whose model is the one after the round before."""
    job_attempt: int = 0
    """With these: which hand-out of that model it was."""


def unsettled(client_id: str, round: int, attempt: int) -> LogEvent:
    """The event of a client that may charge a job of which it says no more."""
    which = f"round {round}" if attempt == 1 else f"attempt {attempt} at round {round}"
    return LogEvent("unsettled", client_id, f"may have released for {which}")


ACCURACY = "accuracy"
"""The metric of classification."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """How good a model is on public data the clients never see."""

    split: Split
    subset: bool
    """True: on the split's fixed subset; False: on all of it."""
    n_examples: int
    accuracy: float
    """Share of right answers, or another task's mean score, in [0, 1]."""
    loss: float
    """Mean loss; infinite for a model that has diverged."""
    metric: str = field(default=ACCURACY, compare=False)
    """The name of the task's mean score, which `accuracy` holds. It is a run's own, and stands once in its log."""


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One committed round or step, or an attempt at one in which no client gave an update.

    `chosen` is in selection order and repeats a client drawn twice. Those of an asynchronous step are the clients that
    were given its model; observations and misses may be of earlier steps' jobs.
    """

    round: int
    attempt: int
    chosen: tuple[str, ...]
    weights: tuple[float, ...] | None
    observations: tuple[Observation, ...]
    events: tuple[LogEvent, ...]
    """In the order they happened: all the round's selection knew that the round before did not."""
    round_latency_s: float
    """Eq. (3) on the signal: the greatest latency of the round's observations and of its misses' `latency_s`.
    Clients that were not needed do not count."""
    wall_clock_s: float
    selection_s: float
    model_digest: str
    """Digest of θ_t, the model after this round, which was durable before this record was."""
    details: Mapping[str, float] = field(default_factory=dict)
    """The policy's own numbers about its choice (energy, gap, steps); never read back by a policy."""
    cluster_penalty_s: float = 0.0
    """R2's δ_τ term, eq. (22): a column of its own, never mixed into a measurement."""
    host: HostReport = field(default_factory=HostReport)
    """How well the server's host kept time during the round."""
    misses: tuple[Miss, ...] = ()
    """The chosen clients without an observation. With these, every chosen client has one or the other."""
    deadline_s: float = 0.0
    """How long the round waited for its clients at most, in seconds from when its jobs were sent."""
    elapsed_s: float = 0.0
    """From the run's first job to this commit, at the emulated scale (`rounds.elapsed`)."""
    failed_attempts: tuple["RoundRecord", ...] = ()
    """The attempts at this round before this one, in which no client gave an update: its model was the same."""
    suspect: tuple[str, ...] = ()
    """Why the round's measurements are in doubt (`host_limits.HostLimits.doubts`); empty: they are not."""

    @property
    def attempts(self) -> tuple["RoundRecord", ...]:
        """All attempts at this round in order, this one last."""
        return *self.failed_attempts, self

    @property
    def at_work_s(self) -> float:
        """How long clients had the jobs that ended here, all together, as elapsed time."""
        return sum(o.came_back_s - o.handed_out_s for o in self.observations) + sum(m.at_work_s for m in self.misses)

    @property
    def missed(self) -> tuple[Miss, ...]:
        """The misses but for those of clients that were not needed."""
        return tuple(miss for miss in self.misses if miss.kind != "unneeded")

    @property
    def measured_latency_s(self) -> float:
        """The greatest latency that was measured, 0 when none was."""
        return max((o.latency_s for o in self.observations), default=0.0)

    @property
    def is_censored(self) -> bool:
        """Whether a miss decides the round's latency: its wait, after which the answer had not come."""
        return self.round_latency_s > self.measured_latency_s
