"""Writes and reads a run's observation log on disk (run.db)."""

import json
import logging
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from enum import StrEnum
from importlib import resources
from pathlib import Path

import numpy as np

from pausefl_process.databases import CommitCount, LogGrowth, begin, database_errors, refuse_lost
from pausefl_process.files import sqlite_synchronous
from pausefl_proto.wire import Vector
from pausefl_server.records import ACCURACY, STILL_AT_WORK, Evaluation, LogEvent, Ping, RoundRecord, unsettled
from pausefl_server.storage.round_log import (
    ATTEMPT_COLUMNS,
    EVENT_COLUMNS,
    MISS_COLUMNS,
    OBSERVATION_COLUMNS,
    SELECT_EVENTS,
    RoundLog,
    event_values,
    miss_values,
    observation_row,
    round_row,
)
from pausefl_server.storage.seals import SCHEMA_VERSION, check_version, seal_of, unusable_log, verify_log

SERVER_PHASE = "has_ended"
"""The key of the `ServerPhase` in `meta`. It is missing until a server sends a job or ends in order."""

_FIRST_HELLOS = "first hellos"
_BROKEN_OFF = "broken off"
_ATTEMPTS = "attempts"

log = logging.getLogger("pausefl.server")


class ServerPhase(StrEnum):
    """The phases of the server that plays a run, or played it last. Their texts in run.db come from older versions."""

    AT_WORK = "no"
    """A job has been sent, and the server has not ended in order since."""
    KILLED = "killed"
    """A server ended while it was at work, and another has started since."""
    ENDED = "ended"
    """The server has ended in order, so no client has a job. The summary of this end is not written yet."""
    SUMMARISED = "yes"
    """The server has ended in order, and the summary of this end is being written or is written."""


def _insert(table: str, columns: Sequence[str]) -> str:
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"


class Store:
    """run.db. Each round is one transaction, which is durable once `commit_round` returns (WAL, synchronous = FULL)."""

    def __init__(self, path: Path, *, verify: bool = True) -> None:
        """Open or create the log of one run. ConfigError if the file is something else, or damaged.

        `verify`: read the whole log and compare it with its seals.
        """
        self.tell: Callable[[str], object] = log.warning
        """Called, in the thread that writes, with a warning for the user about another program that uses the log."""
        self._path = path
        self._growth = LogGrowth(path)
        self._commit_count = CommitCount(path)
        try:
            with database_errors(path):
                if verify and path.exists():
                    _undo_unfinished(path)
                    verify_log(path, self._commit_count.read())
                self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
                try:
                    self._opened = path.stat()
                    self._open(path)
                except BaseException:
                    self._db.close()
                    raise
        except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter if SQLite's message quotes damaged text
            raise unusable_log(path, error) from error

    def _open(self, path: Path) -> None:
        self._db.execute(f"PRAGMA synchronous = {sqlite_synchronous()}")  # first, since the next one writes
        self._db.execute("PRAGMA journal_mode = WAL")
        # Empty if new, or if a crash interrupted the first transaction, which writes the schema and version.
        if self._db.execute("SELECT count(*) FROM sqlite_schema").fetchone() == (0,):
            schema = resources.files(__package__).joinpath("schema.sql").read_text("utf-8")
            self._db.executescript(f"BEGIN IMMEDIATE; {schema}")
            with self._transaction(is_begun=True):
                self._set_meta("schema_version", str(SCHEMA_VERSION))
        else:
            check_version(path, self.meta("schema_version"))

    def meta(self, key: str) -> str | None:
        """A value about the whole run; None if it was not set."""
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def set_meta(self, key: str, value: str) -> None:
        """Write a value about the whole run. ConfigError if it cannot be written."""
        with database_errors(self._path), self._transaction():
            self._set_meta(key, value)

    def commit_round(
        self,
        record: RoundRecord,
        pings: Iterable[Ping] = (),
        optimizer_state: Vector | None = None,
        later_events: Sequence[LogEvent] = (),
        before_commit: Callable[[], None] = lambda: None,
    ) -> None:
        """Write a round, its pings and optimizer's state, and events for the next round, in one transaction.

        `before_commit` returns when the data that the log refers to are durable. If it raises, nothing is committed.
        """
        with self._transaction():
            self._write_attempt(_INSERT_ROUND, record, pings)
            rows = [observation_row(record.round, o) for o in record.observations]
            self._db.executemany(_INSERT_OBSERVATION, rows)
            self._save_optimizer_state(record.round, optimizer_state)
            self._seal(f"round {record.round}")
            if later_events:
                self._insert_events(record.round + 1, 0, later_events)
                self._seal(f"round {record.round + 1}")
            before_commit()

    def save_failed_attempt(
        self, record: RoundRecord, pings: Iterable[Ping] = (), later_events: Iterable[LogEvent] = ()
    ) -> None:
        """Write an attempt at the next round that no client answered, and the events for the next attempt."""
        with self._transaction():
            self._write_attempt(_INSERT_FAILED, record, pings)
            self._insert_events(record.round, 0, later_events)
            self._seal(f"round {record.round}")

    def optimizer_state(self, round: int) -> Vector | None:
        """The server optimizer's state after one of the last two rounds; None if there is none."""
        query = "SELECT state FROM optimizer_states WHERE round = ?"
        row = self._db.execute(query, (round,)).fetchone()
        return None if row is None else np.frombuffer(row[0], "<f4").copy()  # as writable as before the restart

    def save_late_events(self, round: int, events: Iterable[LogEvent], *, is_end: bool = False) -> None:
        """Write events for `round`, which is not committed yet. Its commit writes them again.

        `is_end`: the server ends in order, and the log knows of every job that a client still has.
        """
        with self._transaction():
            self._replace_late_events(round, events)
            self._seal(f"round {round}")
            self._set_meta(SERVER_PHASE, ServerPhase.ENDED if is_end else ServerPhase.AT_WORK)

    def note_summarised(self) -> None:
        """Note that the summary of this end is being written. A summary of an earlier end must be gone by now."""
        self.set_meta(SERVER_PHASE, ServerPhase.SUMMARISED)

    @property
    def has_ended(self) -> bool:
        """Whether no client has a job, according to the log: the server ended in order, or never sent a job."""
        return self.meta(SERVER_PHASE) not in (ServerPhase.AT_WORK, ServerPhase.KILLED)

    @property
    def has_sent(self) -> bool:
        """Whether the server that plays the run, or played it last, has sent a job and has not ended in order."""
        return self.meta(SERVER_PHASE) == ServerPhase.AT_WORK

    def note_killed(self) -> None:
        """Note that a server which had sent a job did not end in order, and that another has begun."""
        if self.has_sent:
            self.set_meta(SERVER_PHASE, ServerPhase.KILLED)

    def save_evaluations(self, round: int, evaluations: Sequence[Evaluation]) -> None:
        """Write evaluations of θ_t. A second evaluation on the same data replaces the first."""
        rows = [(round, e.split, int(e.subset), e.n_examples, e.accuracy, e.loss) for e in evaluations]
        with self._transaction():
            self._db.executemany("INSERT OR REPLACE INTO evaluations VALUES (?, ?, ?, ?, ?, ?)", rows)
            self._seal(f"evaluations {round}")
            for metric in {e.metric for e in evaluations} - {self.meta("metric")}:
                self._set_meta("metric", metric)

    def evaluations(self) -> list[tuple[int, Evaluation]]:
        """All evaluations, by round."""
        rows = self._db.execute("SELECT round, split, subset, n_examples, accuracy, loss FROM evaluations ORDER BY 1")
        metric = self.meta("metric") or ACCURACY
        return [(r[0], Evaluation(r[1], bool(r[2]), r[3], r[4], r[5], metric)) for r in rows]

    def log(self) -> RoundLog:
        """The committed rounds, read one at a time."""
        return RoundLog(lambda: nullcontext(self._db))

    def rounds(self) -> list[RoundRecord]:
        """All committed rounds in memory. Only for short runs."""
        return list(self.log())

    def model_digest(self, round: int) -> str:
        """The digest of the model after a committed round; empty if there is no such round."""
        row = self._db.execute("SELECT model_digest FROM rounds WHERE round = ?", (round,)).fetchone()
        return "" if row is None else str(row[0])

    def late_events(self) -> list[LogEvent]:
        """The events since the last attempt at a round: no attempt knows of them yet."""
        query = f"SELECT {', '.join(EVENT_COLUMNS)} FROM events WHERE attempt = 0 ORDER BY round, sequence"
        return [LogEvent(*row) for row in self._db.execute(query)]

    def go_back_to(self, round: int, optimizer_state: Vector | None = None, *, is_private: bool = True) -> None:
        """Take back every round after this one. The ε that clients spent on these rounds, or may have, stays spent.

        The rounds are played again as new attempts, because clients have answered the old ones and those updates are
        gone. `optimizer_state`: the server optimizer's state after `round`, if the database does not have it. Unless
        the run `is_private`, no ε was spent.
        """
        self.keep_first_hellos()
        with self._transaction():
            self._db.execute(_COUNT_NO_LATER_EVENTS, {"round": round})
            jobs = self._unsettle_jobs_after(round)
            later = dict(self._db.execute(_SELECT_ROUNDS_AFTER, (round,)).fetchall())
            for taken_back, last_attempt in later.items():
                self._forget_round(taken_back, last_attempt, is_private=is_private)
            again = {t: last_attempt + 1 for t, last_attempt in later.items()}
            self._set_meta(_ATTEMPTS, json.dumps(self.attempts() | again))
            for changed in (*jobs, max(later, default=round) + 1):
                self._seal(f"round {changed}")
            ends_s = json.loads(self.meta(_BROKEN_OFF) or "{}").items()
            self._set_meta(_BROKEN_OFF, json.dumps({end: had_s for end, had_s in ends_s if int(end) <= round}))
            self._forget_later_clients(round, may_owe=is_private and not self.has_ended)
            self._db.execute("DELETE FROM optimizer_states WHERE round > ?", (round,))
            self._seal("optimizer_states")
            self._save_optimizer_state(round, optimizer_state)

    def keep_first_hellos(self) -> None:
        """Keep what each client reported at its first hello. A later hello replaces one that is not committed yet."""
        joins = {client_id: told for client_id, *told in self._db.execute(_SELECT_JOINS_FROM_THE_LAST_ON)}
        self.set_meta(_FIRST_HELLOS, json.dumps(joins | self.first_hellos()))

    def first_hellos(self) -> dict[str, tuple[int, float]]:
        """Client -> releases and ε at its first hello, for clients of which the log may have later hellos only.

        This happens after rounds were taken back, or after a restart before the round of a hello was committed.
        """
        return {client_id: tuple(spent) for client_id, spent in json.loads(self.meta(_FIRST_HELLOS) or "{}").items()}

    def add_broken_off(self, round: int, broken_off_s: Mapping[str, float]) -> list[Mapping[str, float]]:
        """Add what each client had worked on a job that an end after `round` broke off; returns that of each end."""
        ends_s: dict[str, Mapping[str, float]] = json.loads(self.meta(_BROKEN_OFF) or "{}")
        if broken_off_s:
            ends_s[str(round)] = dict(broken_off_s)  # a second end after this round has broken off nothing
            self.set_meta(_BROKEN_OFF, json.dumps(ends_s))
        return [*ends_s.values()]

    def attempts(self) -> dict[int, int]:
        """Round -> its next attempt, for rounds that were taken back, failed or have a job. All others begin with 1."""
        taken_back = {int(t): attempt for t, attempt in json.loads(self.meta(_ATTEMPTS) or "{}").items()}
        return taken_back | dict(self._db.execute(_SELECT_NEXT_ATTEMPTS).fetchall())

    def close(self) -> None:
        """Close the database. SQLite then merges its write-ahead log into it."""
        self._db.close()
        self._commit_count.close()

    def _forget_round(self, round: int, last_attempt: int, *, is_private: bool) -> None:
        spent = self._db.execute(
            "SELECT client_id, epsilon_spent, participation FROM observations WHERE round = ? AND participation > 0",
            (round,),
        ).fetchall()
        corrections = [LogEvent("reconciled", c, "its round was taken back", 0, s, i) for c, s, i in spent]
        told = []  # the events of its attempts, in order, without its answers
        for attempt in (*range(1, last_attempt + 1), 0):  # 0: events that no attempt knows of yet
            events = self._db.execute(SELECT_EVENTS, (round, attempt))
            told += [LogEvent(*event) for event in events.fetchall()]
            missed = self._db.execute(_SELECT_STILL_AT_WORK, (round, attempt)).fetchall() if is_private else []
            told += [unsettled(client_id, round, attempt) for (client_id,) in missed]
        self._db.execute("DELETE FROM events WHERE round = ?", (round,))
        self._insert_events(round, 0, [*told, *corrections])
        for table in ("observations", "misses", "evaluations", "failed_attempts", "rounds"):
            self._db.execute(f"DELETE FROM {table} WHERE round = ?", (round,))
        self._seal(f"round {round}")
        self._seal(f"evaluations {round}")

    def _unsettle_jobs_after(self, round: int) -> set[int]:
        """Mark the jobs that later rounds gave or answered as "unsettled": no answer to them will come any more.

        Returns the rounds whose events it changed.
        """
        given = self._db.execute(_SELECT_JOBS_AFTER, {"round": round}).fetchall()
        for sequence, _, client_id, *key in given:
            detail = unsettled(client_id, *key).detail
            self._db.execute("UPDATE events SET kind = 'unsettled', detail = ? WHERE sequence = ?", (detail, sequence))
        return {changed for _, changed, *_ in given}

    def _forget_later_clients(self, round: int, *, may_owe: bool) -> None:
        """Forget the clients that joined later: they are newcomers when they join again. Their spent ε is kept."""
        (last,) = self._db.execute("SELECT max(round) FROM events").fetchone()
        later = self._db.execute(_DELETE_LATER_CLIENTS, (round,)).fetchall()
        if may_owe:  # inserted last: a ledger's count after this event would settle it
            clients = sorted({client_id for _, client_id in later})
            self._insert_events(last, 0, [LogEvent("unsettled", c, "may have released in the end") for c in clients])
        for changed in {last, *(changed for changed, _ in later)} if later else ():
            self._seal(f"round {changed}")

    def _set_meta(self, key: str, value: str) -> None:
        self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))
        self._seal("meta")

    def _save_optimizer_state(self, round: int, state: Vector | None) -> None:
        if state is not None and state.size:
            slot = (round % 2, round, state.astype("<f4").tobytes())
            self._db.execute("INSERT OR REPLACE INTO optimizer_states VALUES (?, ?, ?)", slot)
            self._seal("optimizer_states")

    def _seal(self, subject: str) -> None:
        self._db.execute("INSERT OR REPLACE INTO seals VALUES (?, ?)", (subject, seal_of(self._db, subject)))

    @contextmanager
    def _transaction(self, *, is_begun: bool = False) -> Iterator[None]:
        """A transaction: all its writes are committed, or none. Commits are counted, so that a lost one is detected."""
        with self._db:  # which commits or, after an error, rolls back
            if not is_begun:
                begin(self._db, self._path, self.tell)
            yield
            refuse_lost(self._path, self._opened)
            (commits,) = self._db.execute("PRAGMA user_version").fetchone()
            self._db.execute(f"PRAGMA user_version = {commits + 1}")
        self._commit_count.write(commits + 1)
        if growth := self._growth.by_a_reader(self._db):
            self.tell(growth)

    def _write_attempt(self, insert: str, record: RoundRecord, pings: Iterable[Ping]) -> None:
        key = record.round, record.attempt
        self._db.execute(insert, round_row(record))
        self._replace_late_events(record.round, ())
        self._insert_events(*key, record.events)
        self._db.executemany(_INSERT_MISS, [(*key, *miss_values(miss)) for miss in record.misses])
        self._db.executemany(_INSERT_PING, [(record.round, p.client_id, p.ping_s) for p in pings])

    def _replace_late_events(self, round: int, events: Iterable[LogEvent]) -> None:
        """Replace the events that no attempt knows of yet. Some are stored with later rounds that were taken back."""
        known_to_none = "DELETE FROM events WHERE round >= ? AND attempt = 0 RETURNING round"
        changed = set(self._db.execute(known_to_none, (round,)))
        self._insert_events(round, 0, events)
        for (taken_back,) in changed - {(round,)}:
            self._seal(f"round {taken_back}")

    def _insert_events(self, round: int, attempt: int, events: Iterable[LogEvent]) -> None:
        self._db.executemany(_INSERT_EVENT, [(round, attempt, *event_values(event)) for event in events])


def _undo_unfinished(path: Path) -> None:
    """Let SQLite undo a first transaction that a kill interrupted. A connection that only reads cannot do this."""
    if path.with_name(f"{path.name}-journal").exists():
        with closing(sqlite3.connect(path)) as database:
            database.execute("SELECT count(*) FROM sqlite_schema").fetchone()


_INSERT_ROUND = _insert("rounds", ATTEMPT_COLUMNS)
_INSERT_OBSERVATION = _insert("observations", ("round", *OBSERVATION_COLUMNS))
_INSERT_FAILED = _insert("failed_attempts", ATTEMPT_COLUMNS)
_INSERT_MISS = _insert("misses", ("round", "attempt", *MISS_COLUMNS))
_INSERT_PING = _insert("pings", ("round", "client_id", "ping_s"))
_INSERT_EVENT = _insert("events", ("round", "attempt", *EVENT_COLUMNS))
_SELECT_ROUNDS_AFTER = (
    "SELECT round, max(attempt) FROM (SELECT round, attempt FROM rounds UNION ALL SELECT round, attempt FROM"
    " failed_attempts) WHERE round > ? GROUP BY round ORDER BY round DESC"
)
# The first attempt after the round knew of what happened before it. Later events are about jobs that were taken back,
# except those that tell how an earlier round's job ended.
_COUNT_NO_LATER_EVENTS = """
UPDATE events SET count = 0
WHERE (round, attempt) > (:round + 1, (SELECT min(attempt) FROM events WHERE round = :round + 1))
  AND job_round NOT BETWEEN 1 AND :round
"""
# A client has one job at a time: it was at work on its last one, unless it had answered or missed that by then.
_SELECT_JOBS_AFTER = """
WITH ends AS (SELECT client_id, round FROM observations UNION ALL SELECT client_id, round FROM misses),
     of_client AS (SELECT client_id, max(round) AS last, max(round * (round <= :round)) AS last_kept
                   FROM ends GROUP BY client_id)
SELECT sequence, round, client_id, job_round, job_attempt FROM events LEFT JOIN of_client USING (client_id)
WHERE kind = 'given' AND (round > :round OR (last > :round AND round > last_kept))
"""
_SELECT_NEXT_ATTEMPTS = (
    "SELECT round, max(attempt) + 1 FROM (SELECT round, attempt FROM failed_attempts UNION ALL"
    " SELECT job_round, job_attempt FROM events WHERE kind = 'given' AND attempt = 0) GROUP BY round"
)
_DELETE_LATER_CLIENTS = (
    "DELETE FROM events WHERE attempt = 0 AND kind IN ('joined', 'left') AND client_id NOT IN"
    " (SELECT client_id FROM events WHERE kind = 'joined' AND round <= ?) RETURNING round, client_id"
)
_SELECT_JOINS_FROM_THE_LAST_ON = (
    "SELECT client_id, released, epsilon_spent FROM events WHERE kind = 'joined' ORDER BY round DESC, sequence DESC"
)
_SELECT_STILL_AT_WORK = (
    f"SELECT client_id FROM misses WHERE round = ? AND attempt = ? AND kind IN {STILL_AT_WORK} ORDER BY client_id"
)
