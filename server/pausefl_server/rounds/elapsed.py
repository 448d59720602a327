"""Elapsed time: from a run's first job on, on the server's clock, injected delays at the emulated scale.

It is the same in rounds and in asynchronous steps, so that these compare. An exchange ends when its job was handed
out, plus what it took at the emulated scale: device time as it is, communication divided by `time_scale`. The server's
own work in between, such as selection, aggregation and commit, takes as long as it takes. At `time_scale` 1 this is a
wall clock.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Elapsed:
    """Elapsed time as of the last event: a job handed out, an answer, or a wait that ended."""

    elapsed_s: float
    at_s: float
    """The server's clock at that event."""

    def at(self, now_s: float) -> float:
        """Elapsed time while the server itself works, since the last event."""
        return self.elapsed_s + max(0.0, now_s - self.at_s)

    def after(self, began_s: float, took_s: float, now_s: float) -> "Elapsed":
        """After an exchange, or a wait, that began at the elapsed time `began_s` and took so long at that scale.

        Events may come in another order than at the emulated scale: time does not run back.
        """
        return Elapsed(max(self.elapsed_s, began_s + took_s), now_s)
