"""Figures computed beside a run: one that fails is missing with its reason, and costs nothing else.

With `total = figures.compute("total", lambda: sum(parts))`, `total` is None where that raised, and
`figures.missing["total"]` says why.
"""

import logging
from collections.abc import Callable, Mapping
from typing import TypeVar

from pausefl_process.plugins import in_one_line

Figure = TypeVar("Figure")

log = logging.getLogger("pausefl.figures")


class Figures:
    """Computes named figures, be they numbers, tables or pictures, and notes why one is missing."""

    def __init__(self) -> None:
        self.missing: dict[str, str] = {}
        """Why, by name."""

    def compute(self, name: str, how: Callable[[], Figure]) -> Figure | None:
        """The result of `how`; None where it raises, with the reason noted and logged."""
        try:
            return how()
        except Exception as error:
            self.missing[name] = in_one_line(error)
            log.warning("%s is missing: %s", name, self.missing[name])
            return None

    def compute_all(self, hows: Mapping[str, Callable[[], Figure | None]]) -> dict[str, Figure]:
        """Those figures that there are, by name: one may fail, or have nothing to show."""
        found = {name: self.compute(name, how) for name, how in hows.items()}
        return {name: figure for name, figure in found.items() if figure is not None}
