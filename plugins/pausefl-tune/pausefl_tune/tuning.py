"""The result of a search."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pausefl.results.tables import data_frame
from pausefl_tune.front import FrontPoint
from pausefl_tune.plan import TuningPlan
from pausefl_tune.study import SearchResult

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Tuning:
    """The result of a parameter search."""

    folder: Path
    """The folder of front.csv, front.png, the settings as TOML, and the study."""
    plan: TuningPlan
    """The plan of the search: its space, its seeds and its objectives."""
    tried: SearchResult
    """Every setting that was tried."""
    front: Sequence[FrontPoint]
    """The settings that no other setting dominates, the recommended one first. The published setting comes last."""
    confirmed: Sequence[FrontPoint]
    """The recommended and the published setting, measured on the real clock. Empty unless the plan has `real_seeds`."""

    def to_frame(self) -> "pd.DataFrame":
        """The rows of front.csv, one for each setting of the front."""
        return data_frame(self.folder / "front.csv")

    def __repr__(self) -> str:
        return f"<Tuning with {len(self.front)} settings on its front: {self.folder}>"
