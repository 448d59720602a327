"""What a run knows: a fold over its log, so that resuming is replaying."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pausefl_proto.wire import Vector
from pausefl_server.clients import ClientTable
from pausefl_server.model.global_model import GlobalModel
from pausefl_server.records import LogEvent, RoundRecord
from pausefl_server.selection.base import Policy
from pausefl_server.selection.observed import seen_by_policy


@dataclass
class RunState:
    """The client table, the policy's own state, and the sums a summary needs, after `round` committed rounds."""

    policy: Policy
    table: ClientTable
    policy_state: Any
    round: int = 0
    total_latency_s: float = 0.0
    """Σ of eq. (3) over the rounds, and over the attempts without an answer."""
    wall_clock_s: float = 0.0
    measured_latency_s: float = 0.0
    """Σ over the rounds of the greatest measured latency: what total_latency_s is without the waits for misses."""
    missed_jobs: int = 0
    censored_rounds: int = 0
    """Rounds whose latency a miss decided: its wait, after which the answer had not come."""
    suspect_rounds: int = 0
    """Rounds whose measurements are in doubt."""
    failed_attempts: int = 0
    """How many attempts at the next round have had no answer."""

    @staticmethod
    def start(
        policy: Policy, seed: int, *, tau_min_s: float | None = None, examples_max: int | None = None
    ) -> "RunState":
        """Before round 1, when no client is known; the last two are `ClientTable`'s."""
        return RunState(policy, ClientTable(seed, tau_min_s, examples_max), policy.start())

    def before_round(self, round: int, events: Iterable[LogEvent]) -> None:
        """Fold the events that `round`'s selection gets to know."""
        self.table.apply_events(events, round)

    def after_round(self, record: RoundRecord) -> None:
        """Fold a committed round, whose events `before_round` has taken already."""
        self._fold(record)
        self.round, self.failed_attempts = record.round, 0
        self.measured_latency_s += record.measured_latency_s
        self.censored_rounds += record.is_censored
        self.suspect_rounds += bool(record.suspect)

    def after_failed_attempt(self, record: RoundRecord) -> None:
        """Fold an attempt at the next round in which no client gave an update."""
        self._fold(record)
        self.failed_attempts += 1

    def _fold(self, record: RoundRecord) -> None:
        """What every attempt changes: what is known of its clients, and the time it took."""
        self.table.apply_round(record)
        self.policy_state = self.policy.observe(self.policy_state, seen_by_policy(record), self.table)
        self.total_latency_s += record.round_latency_s
        self.missed_jobs += len(record.missed)
        self.wall_clock_s = record.wall_clock_s


@dataclass(frozen=True)
class StartingPoint:
    """Where a run begins, or goes on after an interruption."""

    state: RunState
    model: GlobalModel
    late_events: tuple[LogEvent, ...] = ()
    """Events since the last committed round."""
    unevaluated: Mapping[int, Vector | None] = field(default_factory=dict)
    """The model of each round whose evaluation was due and is missing; None: the model is gone."""
    attempts: Mapping[int, int] = field(default_factory=dict)
    """Which attempt at a round comes next, for each that was taken back or has failed; 1 for all others."""


def replay(
    policy: Policy,
    seed: int,
    records: Iterable[RoundRecord],
    after_each: Callable[[RoundRecord, RunState], None] = lambda *_: None,
    *,
    tau_min_s: float | None = None,
    examples_max: int | None = None,
    unfinished: Iterable[RoundRecord] = (),
    before_each: Callable[[RoundRecord, RunState], None] = lambda *_: None,
) -> RunState:
    """The state after a recorded log: the one an uninterrupted run would have. `after_each` sees it grow.

    `unfinished`: the failed attempts at the round after the last.
    `before_each` sees the state that each attempt, failed or not, chose its clients by.
    """
    state = RunState.start(policy, seed, tau_min_s=tau_min_s, examples_max=examples_max)

    def fold(attempt: RoundRecord, take: Callable[[RoundRecord], None]) -> None:
        state.before_round(attempt.round, attempt.events)
        before_each(attempt, state)
        take(attempt)

    for record in records:
        for failed in record.failed_attempts:
            fold(failed, state.after_failed_attempt)
        fold(record, state.after_round)
        after_each(record, state)
    for failed in unfinished:
        fold(failed, state.after_failed_attempt)
    return state
