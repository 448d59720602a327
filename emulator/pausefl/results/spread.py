"""A number over the seeds, as tables show it."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pausefl.results.statistics import mean_interval


@dataclass(frozen=True)
class Spread:
    """A number over the seeds."""

    mean: float
    sd: float | None
    """Of the sample; None for a single seed."""
    least: float
    greatest: float
    n_seeds: int
    low: float | None = None
    """The lower end of the bootstrap's 95 % interval of the mean; None with too few seeds for an interval."""
    high: float | None = None
    """Its upper end."""

    @classmethod
    def of(cls, values: Sequence[float | None]) -> "Spread | None":
        """None where some seed has no value."""
        known = [value for value in values if value is not None]
        if len(known) < len(values):
            return None
        sd = statistics.stdev(known) if len(known) > 1 else None
        found = mean_interval(known)
        return cls(statistics.fmean(known), sd, min(known), max(known), len(known), found.low, found.high)

    def text(self, form: Callable[[float], str]) -> tuple[str, str]:
        """The mean, and its 95 % interval or, with too few seeds, least–greatest; empty where there is no spread."""
        if self.sd is None or self.least == self.greatest:
            return form(self.mean), ""
        if self.low is None or self.high is None:
            return form(self.mean), f"{form(self.least)}–{form(self.greatest)}"
        return form(self.mean), f"[{form(self.low)}, {form(self.high)}]"
