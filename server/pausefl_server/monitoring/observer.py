"""The one interface through which a run tells what happens in it, and the fan-out to several observers."""

from collections.abc import Sequence

from pausefl_server.records import Evaluation, LogEvent, RoundRecord
from pausefl_server.state import RunState


class RunObserver:
    """Ignores every change of a run's state; subclasses override what concerns them.

    Each change is told once, on the event loop. An observer must return at once and must not raise.
    """

    def waiting(self, minimum: int) -> None:
        """The server waits for `minimum` clients before it plays its first round."""

    def roll_call(self, round: int) -> None:
        """The server waits for the clients that join or leave with `round`."""

    def arrived(self, client_id: str, connected: int, round: int) -> None:
        """A client joined after `round` committed rounds; `connected` clients are there now."""

    def departed(self, client_id: str, reason: str, connected: int, round: int) -> None:
        """A client left after `round` committed rounds; `connected` clients are there now."""

    def rejected(self, reason: str) -> None:
        """A hello or an update was not accepted; `reason` names its client."""

    def pinged(self, row: int, ping_s: float) -> None:
        """The idle client of this row answered a ping after `ping_s` seconds."""

    def round_committed(self, record: RoundRecord, state: RunState, budgets_end: int | None = None) -> None:
        """A round is on disk; `budgets_end` is the round after which fewer than m clients have budget left."""

    def attempt_failed(self, record: RoundRecord, state: RunState) -> None:
        """An attempt at a round gave no update and is in the log; the round is tried again."""

    def evaluated(self, round: int, evaluation: Evaluation) -> None:
        """The model of `round` was evaluated on one split."""

    def noticed(self, message: str) -> None:
        """Something happened that a person should read."""

    def finished(self, state: RunState, reason: str, events: Sequence[LogEvent]) -> None:
        """No further round is played; `events` came after the last one, and `state` includes what they spent."""


class Observers(RunObserver):
    """Passes each change on to all given observers, in order."""

    def __init__(self, *observers: RunObserver) -> None:
        self._observers = observers

    def waiting(self, minimum: int) -> None:
        """Pass it on to every observer."""
        for observer in self._observers:
            observer.waiting(minimum)

    def roll_call(self, round: int) -> None:
        """Pass it on to every observer."""
        for observer in self._observers:
            observer.roll_call(round)

    def arrived(self, client_id: str, connected: int, round: int) -> None:
        """Pass it on to every observer."""
        for observer in self._observers:
            observer.arrived(client_id, connected, round)

    def departed(self, client_id: str, reason: str, connected: int, round: int) -> None:
        """Pass it on to every observer."""
        for observer in self._observers:
            observer.departed(client_id, reason, connected, round)

    def rejected(self, reason: str) -> None:
        """Pass it on to every observer."""
        for observer in self._observers:
            observer.rejected(reason)

    def pinged(self, row: int, ping_s: float) -> None:
        """Pass it on to every observer."""
        for observer in self._observers:
            observer.pinged(row, ping_s)

    def round_committed(self, record: RoundRecord, state: RunState, budgets_end: int | None = None) -> None:
        """Pass it on to every observer."""
        for observer in self._observers:
            observer.round_committed(record, state, budgets_end)

    def attempt_failed(self, record: RoundRecord, state: RunState) -> None:
        """Pass it on to every observer."""
        for observer in self._observers:
            observer.attempt_failed(record, state)

    def evaluated(self, round: int, evaluation: Evaluation) -> None:
        """Pass it on to every observer."""
        for observer in self._observers:
            observer.evaluated(round, evaluation)

    def noticed(self, message: str) -> None:
        """Pass it on to every observer."""
        for observer in self._observers:
            observer.noticed(message)

    def finished(self, state: RunState, reason: str, events: Sequence[LogEvent]) -> None:
        """Pass it on to every observer."""
        for observer in self._observers:
            observer.finished(state, reason, events)
