"""What the coordinator and the evaluator tell to whoever watches the run from outside: `now` is a picture of it."""

import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from pausefl_server.monitoring.snapshot import Picture, after_evaluation, after_round
from pausefl_server.records import Evaluation, RoundRecord
from pausefl_server.settings import ServerSettings
from pausefl_server.state import RunState


class Telemetry:
    """Told by the event loop; `now` may be read by any thread. Never waits for a reader."""

    def __init__(
        self, settings: ServerSettings, *, is_watched: bool = True, clock: Callable[[], float] = time.time
    ) -> None:
        """Unless `is_watched`, nobody can read it, and rounds are spared the work."""
        self.settings = settings
        self._is_watched = is_watched
        self._clock = clock
        self.now = Picture(clock())

    def arrived(self, connected: int) -> None:
        """A client's stream opened; so many are open now."""
        self.now = replace(self.now, connected=connected, arrivals=self.now.arrivals + 1)

    def departed(self, connected: int) -> None:
        """A client's stream ended; so many are open now."""
        self.now = replace(self.now, connected=connected, departures=self.now.departures + 1)

    def rejected(self) -> None:
        """Something a client sent was not accepted."""
        self.now = replace(self.now, rejected=self.now.rejected + 1)

    def pinged(self, row: int, ping_s: float) -> None:
        """The idle client of this row answered a ping."""
        if self._is_watched and row < len(self.now.clients.ids):
            self.now = replace(self.now, clients=self.now.clients.pinged(row, ping_s))

    def evaluated(self, round: int, evaluation: Evaluation) -> None:
        """θ of this round was judged."""
        self.now = after_evaluation(self.now, round, evaluation)

    def round_committed(self, record: RoundRecord, state: RunState, budgets_end: int | None = None) -> None:
        """A round is on disk; `budgets_end` is the round after which fewer than m clients have budget left."""
        if self._is_watched:
            self._fold(record, state)
            self.now = replace(self.now, last_round_at_s=self._clock(), budgets_end=budgets_end)

    def replayed(self, record: RoundRecord, state: RunState) -> None:
        """A round stands in the log of the run that is gone on with."""
        if self._is_watched:
            self._fold(record, state)

    def resumed(self, evaluations: Iterable[tuple[int, Evaluation]], budgets_end: int | None) -> None:
        """All rounds of the log were replayed; these are its evaluations, by round."""
        for number, evaluation in evaluations:
            self.evaluated(number, evaluation)
        self.now = replace(self.now, status="waiting for clients", budgets_end=budgets_end)

    def finished(self, state: RunState, reason: str) -> None:
        """No further round will be played; what was spent since the last one is in `state`."""
        clients = self.now.clients.after_round((), state.table)
        self.now = replace(self.now, clients=clients, status=f"finished: {reason}")

    def kept(self) -> None:
        """The run has ended in order, and its results are written."""
        self.now = replace(self.now, is_over=True)

    def _fold(self, record: RoundRecord, state: RunState) -> None:
        self.now = after_round(self.now, record, state, total_delays=self.settings.total_delays)
