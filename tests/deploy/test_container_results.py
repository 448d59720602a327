"""`make results`: run directories out of their volume, as far as they can be copied without an engine."""

import random
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from rigs.docker import RELEASE, make

ROWS = 2_000


def test_runs_that_are_copied_are_named_and_no_others(engine: dict[str, str], tmp_path: Path) -> None:
    """A run that goes on has no summary yet; the folder may hold runs of this machine."""
    volume, results = tmp_path / "volume", tmp_path / "results"
    (volume / "second").mkdir(parents=True)
    (results / "of-this-machine").mkdir(parents=True)
    (results / "of-this-machine/summary.json").touch()
    done = make("results", **engine, VOLUME=str(volume), RESULTS=str(results))
    assert (done.returncode, done.stdout) == (0, f"{results}/second (not at its end)\n")


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("volume", "no volume pausefl_runs here: nothing was run under this COMPOSE_PROJECT_NAME"),
        ("image", f"no image pausefl-server:{RELEASE} here to read the volume pausefl_runs: make images builds it"),
        ("nothing", "the volume pausefl_runs holds no run"),
    ],
)
def test_results_that_are_not_there_are_said(
    engine: dict[str, str], tmp_path: Path, missing: str, message: str
) -> None:
    (tmp_path / "volume").mkdir()
    places = {"VOLUME": str(tmp_path / "volume"), "RESULTS": str(tmp_path / "results")}
    done = make("results", **engine, **places, MISSING=missing)
    assert (done.returncode, done.stderr) == (2, f"make results: {message}\n")


@pytest.mark.parametrize(("in_the_way", "status"), [("first/kept", "0"), ("second", "2")])
def test_results_that_cannot_be_copied_are_said(
    engine: dict[str, str], tmp_path: Path, in_the_way: str, status: str
) -> None:
    """They cannot be written, or could not all be read."""
    (tmp_path / "volume").mkdir()
    (tmp_path / "volume/first").touch()
    (tmp_path / "results" / in_the_way).mkdir(parents=True)
    places = {"VOLUME": str(tmp_path / "volume"), "RESULTS": str(tmp_path / "results")}
    done = make("results", **engine, **places, STATUS=status)
    assert done.returncode == 2
    line = done.stderr.splitlines()[-1]
    assert line.startswith(f"make results: the volume pausefl_runs cannot be copied into {tmp_path}/results")
    assert not [*tmp_path.glob("results/.copy-*")]


def test_results_of_a_run_that_was_copied_while_it_was_played_are_those_of_its_end(
    engine: dict[str, str], tmp_path: Path
) -> None:
    places = {"VOLUME": str(tmp_path / "volume"), "RESULTS": str(tmp_path / "results")}
    (tmp_path / "volume/first").mkdir(parents=True)
    (tmp_path / "results/other").mkdir(parents=True)
    (tmp_path / "results/other/run.db-wal").touch()
    with closing(sqlite3.connect(tmp_path / "volume/first/run.db", isolation_level=None)) as log:
        log.execute("PRAGMA journal_mode = WAL")
        log.execute("CREATE TABLE rounds AS SELECT 1 AS round")
        assert make("results", **engine, **places).returncode == 0
        log.execute("INSERT INTO rounds VALUES (2)")
    (tmp_path / "results/first/report.html").touch()
    assert make("results", **engine, **places).returncode == 0
    with closing(sqlite3.connect(tmp_path / "results/first/run.db")) as copied:
        assert copied.execute("SELECT round FROM rounds").fetchall() == [(1,), (2,)]
    assert (tmp_path / "results/first/report.html").exists(), "drawn here"
    assert (tmp_path / "results/other/run.db-wal").exists(), "of a run that is not the volume's"


def test_results_are_whole_while_the_run_goes_on(engine: dict[str, str], tmp_path: Path) -> None:
    """The log is written, and taken into its database, all the time it is read."""
    places = {"VOLUME": str(tmp_path / "volume"), "RESULTS": str(tmp_path / "results")}
    (tmp_path / "volume/first").mkdir(parents=True)
    with written_all_the_time(tmp_path / "volume/first/run.db"):
        for _ in range(3):
            done = make("results", **engine, **places)
            assert done.returncode == 0, done.stderr
            with closing(sqlite3.connect(tmp_path / "results/first/run.db")) as copied:
                assert copied.execute("PRAGMA integrity_check").fetchone() == ("ok",)
                assert copied.execute("SELECT count(*), sum(gain) FROM rounds").fetchone() == (ROWS, 0)


@contextmanager
def written_all_the_time(path: Path) -> Iterator[None]:
    """A database of 8 MB, in which each commit lets one row gain what another loses."""
    stop, draws = threading.Event(), random.Random(1)

    def write() -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as log:
            log.execute("PRAGMA synchronous = OFF")
            while not stop.is_set():
                pair = draws.sample(range(1, ROWS + 1), 2)
                log.execute("UPDATE rounds SET gain = gain + 2 * (rowid = ?1) - 1 WHERE rowid IN (?1, ?2)", pair)

    with closing(sqlite3.connect(path, isolation_level=None)) as log:
        log.execute("PRAGMA journal_mode = WAL")
        log.execute("CREATE TABLE rounds (gain INTEGER, padding BLOB)")
        log.execute("BEGIN")
        log.executemany("INSERT INTO rounds VALUES (0, zeroblob(4000))", [()] * ROWS)
        log.execute("COMMIT")
        writer = threading.Thread(target=write)
        writer.start()
        try:
            yield
        finally:
            stop.set()
            writer.join()
