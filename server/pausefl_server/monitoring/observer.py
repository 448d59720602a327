"""The one interface through which a run tells what happens in it, and the fan-out to several observers."""

from collections.abc import Callable, Sequence
from typing import Any

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

    def evaluator(self, *, is_there: bool) -> None:
        """The evaluator was found, or lost, or came back."""

    def evaluated(self, round: int, evaluation: Evaluation) -> None:
        """The model of `round` was evaluated on one split."""

    def noticed(self, message: str, topic: str = "") -> None:
        """Something happened that a person should read."""

    def finished(self, state: RunState, reason: str, events: Sequence[LogEvent]) -> None:
        """No further round is played; `events` came after the last one, and `state` includes what they spent."""


class Observers(RunObserver):
    """Passes each change on to all given observers, in order."""

    def __init__(self, *observers: RunObserver) -> None:
        for change in vars(RunObserver):
            if not change.startswith("_"):
                setattr(self, change, _telling([getattr(observer, change) for observer in observers]))


def _telling(hooks: Sequence[Callable[..., None]]) -> Callable[..., None]:
    """Returns a function that calls each of the hooks with what it is called with."""

    def tell(*arguments: Any, **named: Any) -> None:
        for hook in hooks:
            hook(*arguments, **named)

    return tell
