"""`make results`: run directories out of their volume, as far as they can be copied without an engine."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from rigs.docker import make


def test_results_are_copied_out_of_their_volume(engine: dict[str, str], tmp_path: Path) -> None:
    volume, results = tmp_path / "volume", tmp_path / "results"
    (volume / "first").mkdir(parents=True)
    (volume / "first/summary.json").write_text("{}")
    done = make("results", **engine, VOLUME=str(volume), RESULTS=str(results))
    assert (done.returncode, done.stdout) == (0, f"{results}/first\n")
    assert (results / "first/summary.json").read_text() == "{}"


@pytest.mark.parametrize(("in_the_way", "status"), [("first/kept", "0"), ("second", "1")])
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


def test_a_file_is_no_folder_for_results(engine: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "results").touch()
    done = make("results", **engine, RESULTS=str(tmp_path / "results"))
    assert done.returncode == 2
    assert done.stderr == f"make results: RESULTS={tmp_path}/results: cannot be made a folder (File exists)\n"
