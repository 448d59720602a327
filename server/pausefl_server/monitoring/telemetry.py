"""The current snapshot of a run, for metrics and the live page."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from pausefl_server.monitoring.observer import RunObserver
from pausefl_server.monitoring.snapshot import RunSnapshot
from pausefl_server.records import Evaluation, LogEvent, RoundRecord
from pausefl_server.settings import ServerSettings
from pausefl_server.state import RunState


class Telemetry(RunObserver):
    """Keeps the snapshot `now` up to date on the event loop. Any thread may read it."""

    def __init__(self, settings: ServerSettings, *, clock: Callable[[], float] = time.time) -> None:
        self.settings = settings
        self._clock = clock
        self._minimum = 0  # clients that the first round waits for; 0: not known yet, or no longer waiting
        self.now = RunSnapshot(clock())

    def waiting(self, minimum: int) -> None:
        self._minimum = minimum
        self._begin()

    def arrived(self, client_id: str, connected: int, round: int) -> None:
        self.now = replace(self.now, connected=connected, arrivals=self.now.arrivals + 1)
        self._begin()

    def departed(self, client_id: str, reason: str, connected: int, round: int) -> None:
        self.now = replace(self.now, connected=connected, departures=self.now.departures + 1)

    def rejected(self, reason: str) -> None:
        self.now = replace(self.now, rejected=self.now.rejected + 1)

    def pinged(self, row: int, ping_s: float) -> None:
        if row < len(self.now.clients.ids):
            self.now = replace(self.now, clients=self.now.clients.pinged(row, ping_s))

    def evaluator(self, *, is_there: bool) -> None:
        self.now = replace(self.now, has_evaluator=is_there)

    def evaluated(self, round: int, evaluation: Evaluation) -> None:
        self.now = self.now.after_evaluation(round, evaluation)

    def round_committed(self, record: RoundRecord, state: RunState, budgets_end: int | None = None) -> None:
        now = self.now.after_round(record, state, self.settings)
        self.now = replace(now, last_round_at_s=self._clock(), budgets_end=budgets_end)

    def attempt_failed(self, record: RoundRecord, state: RunState) -> None:
        self.now = self.now.after_failed_attempt(record, state)

    def replayed(self, record: RoundRecord, state: RunState) -> None:
        """Add an attempt at a round from the log of a resumed run. An attempt without observations has failed."""
        if record.observations:
            self.now = self.now.after_round(record, state, self.settings)
        else:
            self.attempt_failed(record, state)

    def resumed(
        self, state: RunState, events: Sequence[LogEvent], told: Iterable[tuple[int, Evaluation]], ends: int | None
    ) -> None:
        """Add what the log has beside its rounds, which were replayed: later events, and evaluations by round."""
        for number, evaluation in told:
            self.evaluated(number, evaluation)
        now, before = self.now.after_end(events, state, ""), self.now.events
        self.now = replace(now, status="waiting for clients", budgets_end=ends, ahead=now.events - before)

    def finished(self, state: RunState, reason: str, events: Sequence[LogEvent]) -> None:
        self.now = self.now.after_end(events, state, reason)
        self.broken_off(state.broken_off_s)

    def broken_off(self, had_s: Mapping[str, float]) -> None:
        """Count the jobs that an end of the run broke off. `had_s`: how long each client had had its job."""
        clients = self.now.clients
        at_work_s = clients.at_work_s + [had_s.get(client_id, 0.0) for client_id in clients.ids]
        self.now = replace(self.now, clients=replace(clients, at_work_s=at_work_s))

    def kept(self) -> None:
        """Note that the run has ended in order and its results are written."""
        self.now = replace(self.now, is_over=True)

    def _begin(self) -> None:
        """Set the status to "running" once the clients that the first round waits for are connected."""
        if self._minimum and self.now.connected >= self._minimum:
            self._minimum = 0
            self.now = replace(self.now, status="running")
