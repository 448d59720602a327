"""Computes figures about a run. If one figure fails, its reason is noted and all others are still computed.

After `total = figures.compute("total", lambda: sum(parts))`, `total` is None if the sum raised an exception.
`figures.missing["total"]` then holds the reason.
"""

import logging
from collections.abc import Callable, Mapping
from typing import TypeVar

from pausefl_process.plugins import in_one_line

Figure = TypeVar("Figure")

log = logging.getLogger("pausefl.figures")


class Figures:
    """Computes named figures (numbers, tables or pictures) and notes why a figure is missing."""

    def __init__(self) -> None:
        self.missing: dict[str, str] = {}
        """The reason why a figure is missing, by the figure's name."""

    def compute(self, name: str, how: Callable[[], Figure]) -> Figure | None:
        """The result of `how`. If it raises, the reason is noted and logged, and None is returned."""
        try:
            return how()
        except Exception as error:
            self.missing[name] = in_one_line(error)
            log.warning("%s is missing: %s", name, self.missing[name])
            return None

    def compute_all(self, hows: Mapping[str, Callable[[], Figure | None]]) -> dict[str, Figure]:
        """The results by name, without the figures that failed or returned None."""
        found = {name: self.compute(name, how) for name, how in hows.items()}
        return {name: figure for name, figure in found.items() if figure is not None}
