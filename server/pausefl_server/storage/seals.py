"""Seals: digests of the rows written to run.db. With them, a resume detects changed bits that SQLite cannot detect."""

import hashlib
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from pausefl_process.databases import open_read_only
from pausefl_proto.errors import ConfigError
from pausefl_server.storage.round_log import (
    ATTEMPT_COLUMNS,
    EVENT_COLUMNS,
    MISS_COLUMNS,
    SELECT_FAILED,
    SELECT_OBSERVATIONS,
)

SCHEMA_VERSION = 7
"""The version of run.db's tables and views."""

_SELECT_ROUND = (
    f"SELECT {', '.join(ATTEMPT_COLUMNS)} FROM rounds WHERE round = ?",
    SELECT_FAILED,
    SELECT_OBSERVATIONS,
    f"SELECT attempt, {', '.join(MISS_COLUMNS)} FROM misses WHERE round = ? ORDER BY attempt, client_id",
    f"SELECT attempt, {', '.join(EVENT_COLUMNS)} FROM events WHERE round = ? ORDER BY sequence",
)
_SELECT_EVALUATIONS = "SELECT * FROM evaluations WHERE round = ? ORDER BY split, subset"


def verify_log(path: Path, commits: int) -> None:
    """Raise ConfigError unless the log matches its seals and has at least `commits` commits. Only reads."""
    with closing(open_read_only(path)) as database:
        (found,) = database.execute("PRAGMA integrity_check(1)").fetchone()
        if found != "ok":
            raise unusable_log(path, " ".join(found.split()))
        (held,) = database.execute("PRAGMA user_version").fetchone()
        if held < commits:
            raise unusable_log(path, f"its last {commits - held} commits, which stood in {path.name}-wal, are lost")
        has_seals = database.execute("SELECT 1 FROM sqlite_schema WHERE name = 'seals'").fetchone() is not None
        version = "SELECT value FROM meta WHERE key = 'schema_version'"
        # Else it is empty, or of another program or version: opening it will raise the error.
        if has_seals and database.execute(version).fetchone() == (str(SCHEMA_VERSION),):
            check_seals(path, database)


def check_version(path: Path, found: str | None) -> None:
    """Raise ConfigError unless `found`, the schema_version of the log at `path`, is the one of this program."""
    if found != str(SCHEMA_VERSION):
        has = f"has schema_version {found}, this version of pausefl reads {SCHEMA_VERSION}"
        raise ConfigError(f"{path}: {has}; use the version that began the run")


def check_seals(path: Path, database: sqlite3.Connection) -> None:
    """Raise ConfigError unless all rows of the open log at `path` match their seals."""
    seals = dict(database.execute("SELECT subject, digest FROM seals"))
    subjects = {f"round {row[0]}" for row in database.execute("SELECT round FROM rounds")} | {"meta"}
    subjects |= {f"evaluations {row[0]}" for row in database.execute("SELECT DISTINCT round FROM evaluations")}
    for subject in sorted(seals.keys() | subjects):
        if seals.get(subject) != seal_of(database, subject):
            raise unusable_log(path, f"{subject} is not what was written")


def seal_of(database: sqlite3.Connection, subject: str) -> str:
    """The digest of a subject: "round 17" in all tables of the log, "evaluations 17", or the name of a sealed table."""
    kind, _, number = subject.partition(" ")
    rows: list[Any]
    if kind == "round" and number.isdecimal():
        rows = [database.execute(query, (int(number),)).fetchall() for query in _SELECT_ROUND]
    elif kind == "evaluations" and number.isdecimal():  # they may be written long after the round's commit
        rows = database.execute(_SELECT_EVALUATIONS, (int(number),)).fetchall()
    elif subject in ("meta", "optimizer_states"):
        rows = database.execute(f"SELECT * FROM {subject} ORDER BY 1, 2").fetchall()
    else:
        return "of a table that is not sealed"
    return hashlib.sha256(repr(rows).encode()).hexdigest()


def unusable_log(path: Path, reason: object) -> ConfigError:
    """The error for a damaged log at `path`."""
    name = path.name
    return ConfigError(
        f"{path}: cannot be used as a run's log ({reason}); restore it from a copy, and delete {name}-wal and"
        f" {name}-head unless they are the copy's"
    )
