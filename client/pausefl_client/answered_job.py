"""Tells of each job that a client process answered: to its metrics and its log."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AnsweredJob:
    """One job answered, in the numbers a data holder may watch."""

    status: str
    """"ok"; "resent": the same bytes once more; else why there was no update, as in the Status of the protocol."""
    queue_s: float = 0.0
    train_s: float = 0.0
    privatise_s: float = 0.0
    injected_down_s: float = 0.0
    injected_up_s: float = 0.0
    loop_lag_s: float = 0.0
    """The worst of the event loop meanwhile."""
    round: int = 0
    client_id: str = ""


OnAnswered = Callable[[AnsweredJob], None]
"""Called with every job once its answer has left."""
