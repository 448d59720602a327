"""The state of a run. It is a fold over the run's log, so a run is resumed by replaying its log."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pausefl_process.global_generators import seeded_server_code
from pausefl_proto.errors import PauseflError
from pausefl_proto.wire import Vector
from pausefl_server.clients import ClientTable
from pausefl_server.model.global_model import GlobalModel
from pausefl_server.records import LogEvent, RoundRecord
from pausefl_server.selection.base import Policy
from pausefl_server.selection.observed import seen_by_policy


@dataclass
class RunState:
    """The client table, the policy's own state and the sums for a summary, after `round` committed rounds."""

    policy: Policy
    table: ClientTable
    policy_state: Any
    round: int = 0
    total_latency_s: float = 0.0
    """Σ of eq. (3) over the rounds and the attempts without an update."""
    wall_clock_s: float = 0.0
    measured_latency_s: float = 0.0
    """Σ over the rounds of the greatest measured latency: total_latency_s without the waits for misses."""
    missed_jobs: int = 0
    censored_rounds: int = 0
    """How many rounds had a miss's wait as their latency (`RoundRecord.is_censored`)."""
    suspect_rounds: int = 0
    """How many rounds had measurements in doubt."""
    suspect_observations: int = 0
    """How many observations were in doubt themselves."""
    usual_propagation_s: dict[str, float] = field(default_factory=dict)
    """Each client's `Timing.propagation_s`, smoothed as RFC 6298 smooths round-trip times; policies never see it."""
    failed_attempts: int = 0
    """How many attempts at the next round had no update."""
    elapsed_s: float = 0.0
    """Elapsed time at the last record (see `rounds.elapsed`)."""
    at_work: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Round and attempt of each working client's job, by client. Only jobs with a "given" event in the log appear."""
    broken_off_s: dict[str, float] = field(default_factory=dict)
    """By client: how long, up to the last commit, it had had the job that the run's end broke off; not from the log."""

    @staticmethod
    def start(
        policy: Policy, seed: int, *, tau_min_s: float | None = None, examples_max: int | None = None
    ) -> "RunState":
        """The state before round 1, without clients; for the last two parameters see `ClientTable`."""
        with seeded_server_code(seed, "policy", "start", policy):
            return RunState(policy, ClientTable(seed, tau_min_s, examples_max), policy.start())

    def before_round(self, round: int, events: Iterable[LogEvent]) -> None:
        """Fold the events that are new to the selection of `round`."""
        events = tuple(events)
        self.table.apply_events(events, round)
        for event in events:
            job = event.job_round, event.job_attempt
            if event.kind == "given":
                self.at_work[event.client_id] = job
            elif event.kind == "withdrawn" and self.at_work.get(event.client_id) == job:
                del self.at_work[event.client_id]

    def after_round(self, record: RoundRecord) -> None:
        """Fold a committed round. `before_round` must have folded its events already."""
        self._fold(record)
        self.round, self.failed_attempts = record.round, 0
        self.measured_latency_s += record.measured_latency_s
        self.censored_rounds += record.is_censored
        self.suspect_rounds += bool(record.suspect)
        self.suspect_observations += sum(bool(o.suspect) for o in record.observations)

    def after_failed_attempt(self, record: RoundRecord) -> None:
        """Fold an attempt at the next round in which no client gave an update."""
        self._fold(record)
        self.failed_attempts += 1

    def _fold(self, record: RoundRecord) -> None:
        """Fold the changes that every attempt makes: to its clients, to the policy's state and to the times."""
        self.table.apply_round(record)
        for o in record.observations:
            if o.teaches:
                usual_s = self.usual_propagation_s.get(o.client_id, o.timing.propagation_s)
                self.usual_propagation_s[o.client_id] = usual_s + (o.timing.propagation_s - usual_s) / 8
        with seeded_server_code(self.table.seed, "policy", (record.round, self.failed_attempts), self.policy):
            state = self.policy.observe(self.policy_state, seen_by_policy(record), self.table)
        if state is None and self.policy_state is not None:
            raise PauseflError(f"selection.policy: in round {record.round} its observe returned None: must be a state")
        self.policy_state = state
        self.total_latency_s += record.round_latency_s
        self.missed_jobs += len(record.missed)
        self.wall_clock_s = record.wall_clock_s
        self.elapsed_s = record.elapsed_s
        for client_id in (*(o.client_id for o in record.observations), *(miss.client_id for miss in record.misses)):
            self.at_work.pop(client_id, None)


@dataclass(frozen=True)
class StartingPoint:
    """The state from which a run begins, or resumes after an interruption."""

    state: RunState
    model: GlobalModel
    late_events: tuple[LogEvent, ...] = ()
    """Events since the last committed round."""
    attempts: Mapping[int, int] = field(default_factory=dict)
    """By round that was taken back, failed before or has a job: the number of the next attempt; 1 for other rounds."""
    at_work: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """By client whose job's answer no step has used: the job's round and attempt. `models` has its model."""
    models: Mapping[int, Vector] = field(default_factory=dict)
    """The models of these jobs, by the job's round."""


def replay(
    state: RunState,
    records: Iterable[RoundRecord],
    after_each: Callable[[RoundRecord, RunState], None] = lambda *_: None,
    *,
    unfinished: Iterable[RoundRecord] = (),
    before_each: Callable[[RoundRecord, RunState], None] = lambda *_: None,
) -> RunState:
    """The state after a recorded log, equal to that of an uninterrupted run. `state` is that before round 1.

    `unfinished` are the failed attempts at the round after the last. `before_each` receives the state from which each
    attempt, failed or not, chose its clients; `after_each` receives the state after it.
    """

    def fold(attempt: RoundRecord, take: Callable[[RoundRecord], None]) -> None:
        state.before_round(attempt.round, attempt.events)
        before_each(attempt, state)
        take(attempt)
        after_each(attempt, state)

    for record in records:
        for failed in record.failed_attempts:
            fold(failed, state.after_failed_attempt)
        fold(record, state.after_round)
    for failed in unfinished:
        fold(failed, state.after_failed_attempt)
    return state
