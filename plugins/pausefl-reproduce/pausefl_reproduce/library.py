"""`pausefl.reproduce`: plays a published figure again as the library's function."""

import json
from argparse import Namespace
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pausefl.extras import needs
from pausefl.library import check_list, count_of, path_of, player_of
from pausefl.results.tables import data_frame, flat
from pausefl_process.files import reason
from pausefl_proto.errors import ConfigError
from pausefl_reproduce import playing
from pausefl_reproduce.command import requested
from pausefl_reproduce.summary import REPRODUCTION

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Reproduction:
    """The result of playing a published figure again."""

    folder: Path
    """The folder of its runs and its figure."""
    summary: Mapping[str, Any]
    """The content of reproduction.json."""

    def to_frame(self) -> "pd.DataFrame":
        """A row per series, with the mean and the interval of each figure."""
        rows = [{"series": name, **flat(found)} for name, found in self.summary["series"].items()]
        return data_frame(rows)

    def __repr__(self) -> str:
        return f"<Reproduction of {', '.join(self.summary['series'])}: {self.folder}>"


def finished(folder: Path) -> Reproduction:
    """The finished reproduction in a folder. ConfigError if its results cannot be read."""
    file = folder / REPRODUCTION
    try:
        return Reproduction(folder, json.loads(file.read_text("utf-8")))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: cannot be read ({reason(error)}); go on with --resume") from error


@needs("server", "client", "report", "reproduce")
def reproduce(
    name: str,
    folder: str | Path | None = None,
    *,
    scale: Literal["quick", "full"] | None = None,
    seeds: int | None = None,
    series: Sequence[str] = (),
    each_seed: bool = False,
    resume: bool = False,
    progress: bool = True,
    jobs: int = 1,
    executor: Executor | None = None,
) -> Reproduction:
    """Play the runs of a published figure or table by name, and draw it with the published values.

    `scale` is "quick" by default. `folder` is runs/reproduce-NAME by default. With `resume`, the reproduction there
    goes on. With `each_seed`, each seed is also drawn as a thin line.
    """
    check_list("series", series, str, "names")
    if scale not in (None, "quick", "full"):
        raise ConfigError(f"scale = {scale!r:.80}: must be quick or full")
    out = None if folder is None else str(path_of("folder", folder))
    asked = Namespace(name=name, out=out, scale=scale, resume=resume, overrides=[], series=",".join(series) or None)
    asked.seeds, asked.each_seed = None if seeds is None else count_of("seeds", seeds), each_seed
    request = requested(asked)
    player = player_of(progress, count_of("jobs", jobs), executor)
    return Reproduction(request.folder.absolute(), playing.reproduce(request, player, resume=resume))
