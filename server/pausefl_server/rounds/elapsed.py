"""Elapsed time: from a run's first job on, on the server's clock, with injected delays at the emulated scale.

Its definition is the same for rounds and for asynchronous steps, so that these compare. An exchange, from the hand-out
of its job on, counts with its time at the emulated scale: device time as it is, communication divided by `time_scale`.
The server's own work in between, such as selection, aggregation and commit, counts in real time. At `time_scale` 1
this is a wall clock.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Elapsed:
    """Elapsed time as of the last event: a job handed out, an answer, or a wait that ended."""

    elapsed_s: float
    at_s: float
    """The server's clock at that event."""

    def at(self, now_s: float) -> float:
        """Elapsed time at `now_s`: since the last event it grows with the server's clock."""
        return self.elapsed_s + max(0.0, now_s - self.at_s)

    def after(self, began_s: float, took_s: float, now_s: float) -> "Elapsed":
        """Elapsed time after an exchange or a wait that began at elapsed time `began_s` and took `took_s` of it.

        Events may come in another order than at the emulated scale. Elapsed time never goes back.
        """
        return Elapsed(max(self.elapsed_s, began_s + took_s), now_s)
