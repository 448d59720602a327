"""The record of an answered job, which a client process passes to its metrics and its log."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AnsweredJob:
    """One answered job, in numbers that the data holder may watch."""

    status: str
    """"ok"; "resent" if the same bytes were sent again; else why there was no update, named as in the protocol's Status
    (lower case), or "not_finite"."""
    queue_s: float = 0.0
    train_s: float = 0.0
    privatise_s: float = 0.0
    injected_down_s: float = 0.0
    injected_up_s: float = 0.0
    loop_lag_s: float = 0.0
    """The greatest lag of the event loop during the exchange."""
    round: int = 0
    client_id: str = ""


OnAnswered = Callable[[AnsweredJob], None]
"""Called with each job after its answer was sent."""
