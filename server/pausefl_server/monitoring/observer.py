"""The interface of a run's observers, and a fan-out to several of them."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from pausefl_server.records import Evaluation, LogEvent, RoundRecord
from pausefl_server.state import RunState


class RunObserver:
    """Receives every change of a run's state, and ignores it. Subclasses override the methods they need.

    Each change is reported once, on the event loop. A method must return at once and must not raise an error.
    """

    def waiting(self, minimum: int) -> None:
        """The server waits for `minimum` clients before it plays its first round."""

    def roll_call(self, round: int) -> None:
        """The server waits for the clients that join or leave with `round`."""

    def arrived(self, client_id: str, connected: int, round: int) -> None:
        """A client joined after `round` committed rounds. Now `connected` clients are connected."""

    def departed(self, client_id: str, reason: str, connected: int, round: int) -> None:
        """A client left after `round` committed rounds. Now `connected` clients are connected."""

    def rejected(self, reason: str) -> None:
        """A hello or an update was not accepted; `reason` names its client."""

    def pinged(self, row: int, ping_s: float) -> None:
        """The idle client of this row answered a ping after `ping_s` seconds."""

    def round_committed(self, record: RoundRecord, state: RunState, budgets_end: int | None = None) -> None:
        """A round is on disk. `budgets_end` is the round after which fewer than m clients have budget left."""

    def attempt_failed(self, record: RoundRecord, state: RunState) -> None:
        """An attempt at a round got no update. It is in the log, and the round will be tried again."""

    def evaluator(self, *, is_there: bool) -> None:
        """The evaluator was found or came back (`is_there`), or was lost."""

    def evaluated(self, round: int, evaluation: Evaluation) -> None:
        """The model of `round` was evaluated on one split."""

    def noticed(self, message: str, topic: str = "") -> None:
        """Something happened that the user should know: `message` says what."""

    def finished(self, state: RunState, reason: str, events: Sequence[LogEvent]) -> None:
        """No further round is played. `events` came after the last round, and `state` includes the ε they spent."""


class Observers(RunObserver):
    """Passes each change on to all given observers, in order."""

    def __init__(self, *observers: RunObserver) -> None:
        for change in vars(RunObserver):
            if not change.startswith("_"):
                setattr(self, change, partial(_tell, [getattr(observer, change) for observer in observers]))


def _tell(hooks: Sequence[Callable[..., None]], *arguments: Any, **named: Any) -> None:
    for hook in hooks:
        hook(*arguments, **named)
