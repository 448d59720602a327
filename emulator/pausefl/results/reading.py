"""Reads a run directory. Every report, figure and comparison starts from this."""

import sqlite3
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pausefl.experiment.tables import ClientGroup
from pausefl.experiment.validation import as_json
from pausefl.results.stored_summary import Summary, check_is_last, read_summary, text_in
from pausefl_process.databases import open_read_only
from pausefl_proto.errors import ConfigError
from pausefl_proto.privacy_unit import PrivacyUnit
from pausefl_server.records import RoundRecord, Split
from pausefl_server.storage.round_log import RoundLog
from pausefl_server.storage.seals import check_seals, check_version

Columns = Mapping[str, NDArray[Any]]
"""A table: arrays of the same length, by column name."""

VIEWS = ("round_latency", "suspect_rounds", "ping_baseline", "greatest_leakage", "accuracy")
"""The documented views of run.db that reports read whole. None of them has a row per exchange, so they stay small."""

# Rows are fetched in batches: as Python objects, a row takes about ten times the memory of its columns.
_ROWS_AT_ONCE = 10_000


# All clients that ever said hello, including those never chosen. The greatest ε is the reconciled one: if the update of
# a release never arrived, an event counts it and no observation does.
CLIENTS = """
SELECT client_id, max(n_examples) AS n_examples, coalesce(max(times_chosen), 0) AS times_chosen,
       sum(accepted) AS accepted, max(released) AS released, max(epsilon_spent) AS epsilon_spent,
       coalesce(max(came_with), max(joined_with)) AS spent_before,
       coalesce(max(retired), 0) AS retired_before,
       coalesce(max(0.0, 1 - sum(at_work_s) / (SELECT nullif(max(elapsed_s), 0.0) FROM (
           SELECT elapsed_s FROM rounds UNION ALL SELECT elapsed_s FROM failed_attempts))), 1.0) AS idle_share
FROM (SELECT client_id, n_examples, participation AS released, epsilon_spent, 1 AS accepted, NULL AS retired,
             came_back_s - handed_out_s AS at_work_s FROM observations
      UNION ALL
      SELECT client_id, n_examples, released, epsilon_spent, 0, CASE kind WHEN 'retired' THEN round END, 0.0 FROM events
      UNION ALL
      SELECT client_id, 0, 0, 0.0, 0, NULL, at_work_s FROM misses
      UNION ALL
      SELECT job.key, 0, 0, 0.0, 0, NULL, job.value
      FROM meta, json_each(meta.value) AS ended, json_each(ended.value) AS job WHERE meta.key = 'broken off') AS log
LEFT JOIN selections USING (client_id)
LEFT JOIN (SELECT client_id, epsilon_spent AS joined_with, min(sequence) FROM events WHERE kind = 'joined'
           GROUP BY client_id) USING (client_id)
LEFT JOIN (SELECT hello.key AS client_id, json_extract(hello.value, '$[1]') AS came_with
           FROM meta, json_each(meta.value) AS hello WHERE meta.key = 'first hellos') USING (client_id)
GROUP BY client_id ORDER BY client_id
"""


def latency_unit(summaries: Iterable[Mapping[str, Any]]) -> str:
    """The unit of latencies: "s" if every run has time scale 1, else "emulated s". Drawn delays have this unit too."""
    return "s" if all(summary.get("time_scale", 1) == 1 for summary in summaries) else "emulated s"


TimeAxis = Literal["total_latency_s", "elapsed_s"]
TIME_LABELS: Mapping[TimeAxis, str] = {"total_latency_s": "total latency", "elapsed_s": "elapsed time"}


def time_axis(summaries: Iterable[Mapping[str, Any]]) -> TimeAxis:
    """The time that accuracies are drawn against. In asynchronous runs latencies overlap, so they do not add up."""
    return "elapsed_s" if any(s.get("mode") == "asynchronous" for s in summaries) else "total_latency_s"


EPSILON_LABELS: Mapping[PrivacyUnit, str] = {"coordinate": "ε per coordinate", "vector": "ε of the whole upload vector"}
"""The label of ε by privacy unit. Every ε is shown with its unit."""


@dataclass(frozen=True)
class PrivacyFigures:
    """The privacy unit of a private run, and each client's budget in it."""

    unit: PrivacyUnit
    epsilon_budget: float

    @property
    def label(self) -> str:
        return EPSILON_LABELS[self.unit]


class ExchangeTable(Mapping[str, NDArray[Any]]):
    """A view of run.db with a row per exchange, sorted by round and client. Each access reads one column from disk.

    Columns are not kept in memory: a long run has millions of rows, and a figure needs only a few columns.
    """

    def __init__(self, run_dir: Path, view: str, last_round: int) -> None:
        self._run_dir = run_dir
        self._view = view
        self._last_round = last_round  # a run in progress may add rounds, which are left out
        self._names = tuple(self._read("SELECT * FROM {view} LIMIT 0"))

    def __getitem__(self, column: str) -> NDArray[Any]:
        if column not in self._names:
            raise KeyError(column)
        query = f"SELECT {column} FROM {{view}} WHERE round <= ? ORDER BY round, client_id"
        return self._read(query, self._last_round)[column]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def of_round(self, number: int) -> Columns:
        """All columns of the rows of one round."""
        return self._read("SELECT * FROM {view} WHERE round = ? ORDER BY client_id", number)

    def _read(self, query: str, *values: int) -> Columns:
        with open_database(self._run_dir) as database:
            return read_columns(database, query.format(view=self._view), *values)


@dataclass(frozen=True, eq=False)
class RunData:
    """One run on disk. Each table has the name and the columns of a view of run.db, except `clients`."""

    path: Path
    config: str
    """The text of config.toml."""
    summary: Summary
    clients: Columns
    """A row per client, sorted by id: client_id, n_examples, times_chosen, accepted, released, epsilon_spent;
    spent_before: the ε spent when it first joined; retired_before: the round before which it retired, 0 if it did not;
    idle_share: the share of the run's elapsed time in which it had no job."""
    round_latency: Columns
    suspect_rounds: Columns
    ping_baseline: Columns
    greatest_leakage: Columns
    accuracy: Columns
    breakdown: ExchangeTable
    leakage: Columns
    choices: ExchangeTable
    records: RoundLog | Sequence[RoundRecord]
    """The log's rounds, for computations that go through all of them. Each pass may read them from disk anew."""

    @property
    def owners(self) -> Mapping[str, str]:
        """The owner of each client's examples, by client id. Empty if the partition is not by owner."""
        with open_database(self.path) as database:
            return dict(database.execute("SELECT client_id, owner FROM owners"))

    @property
    def groups(self) -> Mapping[str, ClientGroup]:
        """The groups of clients by name, as configured; empty in a run without groups."""
        try:
            tables = self.settings.get("clients", {}).get("groups", {})
            return {name: ClientGroup.model_validate_json(as_json(table)) for name, table in tables.items()}
        except (ValueError, AttributeError) as error:  # pydantic's ValidationError is a ValueError
            raise self._damaged(error) from error

    @property
    def settings(self) -> Mapping[str, Any]:
        """The parsed content of config.toml. ConfigError if the file is damaged."""
        try:
            return tomllib.loads(self.config)
        except ValueError as error:
            raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> ConfigError:
        said = str(error).partition("\n")[0]
        return ConfigError(f"{self.path / 'config.toml'}: is damaged ({said}); restore it from a copy")

    @property
    def privacy(self) -> PrivacyFigures | None:
        """Unit and budget of the run; None in a run without privacy."""
        unit = self.summary["privacy_unit"]
        return None if unit is None else PrivacyFigures(unit, self.summary["epsilon_budget"] or 0.0)

    @property
    def has_total_delays(self) -> bool:
        """Whether a drawn delay is the duration of the whole exchange (`latency.mode` "total"), not an added delay."""
        return bool(self.settings.get("latency", {}).get("mode") == "total")

    @property
    def metric(self) -> str:
        """The name of the task's mean score. The fields named "accuracy" hold this score."""
        return self.summary["metric"]

    def curve(
        self, split: Split, by: TimeAxis | Literal["round", "n_examples"] = "total_latency_s"
    ) -> tuple[NDArray[Any], NDArray[np.float64]]:
        """Two arrays with an entry per evaluated round: its value of the column `by`, and the accuracy after it.

        A run evaluates a fixed subset now and then and at its end, and the full set when it ends or is interrupted. The
        curve is of the subset, or of the full set if the subset has no evaluation or only the one at the end.
        """
        of_split = self.accuracy["split"] == split
        on_subset, on_full = (of_split & (self.accuracy["subset"] == subset) for subset in (1, 0))
        rows: NDArray[np.bool_] = on_subset
        in_series = self.accuracy["round"][on_subset]
        if in_series.size == 0:
            rows = on_full
        elif in_series.size == 1 and (at_the_end := on_full & np.isin(self.accuracy["round"], in_series)).any():
            rows = at_the_end
        return self.accuracy[by][rows], self.accuracy["accuracy"][rows]


def read_run(path: Path) -> RunData:
    """Read the run directory `path`. A ConfigError says what is missing or damaged."""
    if not path.is_dir():
        raise ConfigError(f"{path}: no such run directory")
    config, summary = text_in(path, "config.toml"), read_summary(path)
    with open_database(path) as database:
        check_is_last(summary, path, database)
        check_seals(path / "run.db", database)
        tables = {view: read_columns(database, f"SELECT * FROM {view}") for view in VIEWS}
        clients = read_columns(database, CLIENTS)
    log = RoundLog(partial(open_database, path))
    return RunData(
        path=path,
        config=config,
        summary=summary,
        clients=clients,
        breakdown=ExchangeTable(path, "breakdown", log.last),
        leakage=ExchangeTable(path, "leakage", log.last),
        choices=ExchangeTable(path, "choices", log.last),
        records=log,
        **tables,
    )


def read_log(path: Path) -> RoundLog:
    """The log of a run directory, also of a run in progress. ConfigError if it was changed after it was written."""
    with open_database(path) as database:
        check_seals(path / "run.db", database)
    return RoundLog(partial(open_database, path))


@contextmanager
def open_database(path: Path) -> Iterator[sqlite3.Connection]:
    """Open the run's database, read-only and as of one instant, so that a run in progress can be read as well."""
    file = path / "run.db"
    if not file.is_file():
        raise ConfigError(f"{path}: not a run directory, it has no run.db")
    try:
        with closing(open_read_only(file)) as database:
            database.execute("BEGIN")
            row = database.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchone()
            check_version(file, row and row[0])
            yield database
    except sqlite3.Error as error:
        raise ConfigError(f"{file}: cannot be read as a run's database ({error})") from error


def read_columns(database: sqlite3.Connection, query: str, *values: int) -> Columns:
    """The result of a query as arrays by column name."""
    cursor = database.execute(query, values)
    names = [column[0] for column in cursor.description]
    parts: dict[str, list[NDArray[Any]]] = {name: [] for name in names}
    while rows := cursor.fetchmany(_ROWS_AT_ONCE):
        for name, column in zip(names, zip(*rows, strict=True), strict=True):
            parts[name].append(np.array(column))
    table = {name: np.concatenate(parts.pop(name) or [np.array([])]) for name in names}
    for name in {"total_latency_s", "elapsed_s"} & table.keys():
        # NULL for the evaluation of θ_0, which happens before any round and so has no latency yet.
        table[name] = np.nan_to_num(table[name].astype(np.float64), nan=0.0)
    return table
