"""Reads a run directory as data, for notebooks and scripts."""

import base64
import html
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from pausefl.results.reading import Columns, open_database, read_columns
from pausefl.results.stored_summary import check_is_last, read_summary
from pausefl.results.tables import data_frame
from pausefl_proto.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

# The queries behind the tables; the views' columns are documented in pausefl_server/storage/schema.sql.
_QUERIES = {
    "rounds": "SELECT * FROM round_latency ORDER BY round",
    "observations": "SELECT * FROM observations ORDER BY round, client_id",
    "evaluations": "SELECT * FROM accuracy ORDER BY round, split, subset",
    "releases": "SELECT * FROM leakage ORDER BY round, client_id",
    "breakdown": "SELECT * FROM breakdown ORDER BY round, client_id",
    "choices": "SELECT * FROM choices ORDER BY round, client_id",
    "owners": "SELECT * FROM owners ORDER BY client_id",
}
# numpy has no bfloat16. Its 16 bits are the upper half of a float32, so they are read as integers and shifted.
_NUMPY = {"BOOL": "?", "U8": "u1", "I8": "i1", "I16": "<i2", "I32": "<i4", "I64": "<i8", "BF16": "<u2"}
_NUMPY |= {"F16": "<f2", "F32": "<f4", "F64": "<f8"}
_SHOWN = (
    "policy",
    "rounds",
    "final_accuracy",
    "total_latency_s",
    "max_epsilon_spent",
    "epsilon_budget",
    "wall_clock_s",
)


class Run:
    """A run on disk. Each access reads the tables anew, so a run in progress can be watched.

    The DataFrames need pandas (`pip install "pausefl[pandas]"`); `columns` gives the same tables as numpy arrays.
    """

    path: Path
    """The run directory."""

    def __init__(self, path: Path) -> None:
        """Open the run directory `path`. Raises ConfigError if it is not a run directory."""
        self.path = path.absolute()  # tables are read later, and the working directory may have changed by then
        with open_database(path):
            pass

    @property
    def summary(self) -> Mapping[str, Any]:
        """The run's results: the content of summary.json. ConfigError if the run goes on or the file is damaged."""
        with open_database(self.path) as database:  # raises its own ConfigError if there is no run
            summary = {**read_summary(self.path)}
            check_is_last(summary, self.path, database)
        return summary

    def columns(self, table: str) -> Columns:
        """One table as arrays by column name, all of the same length.

        `table`: rounds, observations, evaluations, releases, breakdown, choices or owners. ConfigError for other names.
        """
        if table not in _QUERIES:
            raise ConfigError(f"table {table!r}: must be one of {', '.join(_QUERIES)}")
        with open_database(self.path) as database:
            return read_columns(database, _QUERIES[table])

    @property
    def rounds(self) -> "pd.DataFrame":
        """The committed rounds: latency, its running total, wall clock, selection time (view `round_latency`)."""
        return self._frame("rounds")

    @property
    def observations(self) -> "pd.DataFrame":
        """Measurements and charged ε, one row per round and client that answered (table `observations`)."""
        return self._frame("observations")

    @property
    def evaluations(self) -> "pd.DataFrame":
        """Accuracy and loss of models, by round and data split (view `accuracy`)."""
        return self._frame("evaluations")

    @property
    def releases(self) -> "pd.DataFrame":
        """The ε of each release whose update came in time (view `leakage`); the summary's ε count the others, too."""
        return self._frame("releases")

    @property
    def breakdown(self) -> "pd.DataFrame":
        """The time of each exchange by part, on the run's clock; `latency_s` is emulated (view `breakdown`)."""
        return self._frame("breakdown")

    def model(self, which: Literal["model", "best_model"] = "model") -> Mapping[str, NDArray[Any]]:
        """The last model, or the best one on validation data, as arrays by name; trained parameters are float32.

        ConfigError if there is no such model, or its file is damaged.
        """
        from safetensors import SafetensorError, deserialize

        if which not in ("model", "best_model"):
            raise ConfigError(f"model {which!r}: must be model or best_model")
        path = self.path / f"{which}.safetensors"
        if not path.is_file():
            raise ConfigError(f"{path}: there is none; the run goes on, or no model was evaluated")
        try:
            tensors = deserialize(path.read_bytes())  # type: ignore[no-untyped-call]  # of Rust code
            return {name: _array(tensor) for name, tensor in tensors}
        except SafetensorError as error:
            raise ConfigError(f"{path}: cannot be read as a model ({error})") from error

    def _frame(self, table: str) -> "pd.DataFrame":
        return data_frame(dict(self.columns(table)))

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    def _repr_html_(self) -> str:
        """HTML for a notebook: the run's main figures, and the plot of accuracy over time if there is one."""
        try:
            summary = self.summary
        except ConfigError as error:
            return html.escape(str(error))
        cells = "".join(
            f"<tr><th>{name}</th><td>{html.escape(str(summary[name]))}</td></tr>" for name in _SHOWN if name in summary
        )
        picture = self.path / "plots" / "accuracy.svg"
        image = ""
        if picture.is_file():
            url = "data:image/svg+xml;base64," + base64.b64encode(picture.read_bytes()).decode()
            image = f'<img alt="test score over time" width="480" src="{url}">'
        return f"<table>{cells}</table>{image}"


def _array(told: Mapping[str, Any]) -> NDArray[Any]:
    """The array of one tensor, as `safetensors.deserialize` describes it."""
    values = np.frombuffer(told["data"], _NUMPY[told["dtype"]]).reshape(told["shape"])
    return (values.astype("<u4") << 16).view("<f4") if told["dtype"] == "BF16" else values
