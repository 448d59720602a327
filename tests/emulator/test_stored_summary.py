"""A run read again: whatever was done to its summary.json or its log, what is wrong is one line."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from pausefl.results.reading import read_run
from pausefl.studies.offline.latencies import latencies_of
from pausefl.studies.offline.replay import read_log
from pausefl_proto.errors import ConfigError
from rigs.reports import write_run


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("total_latency_s", "x", "total_latency_s = 'x': must be a valid number"),
        ("policy", 3, "policy = 3: must be a valid string"),
        ("timing_error_s", 3, "timing_error_s = 3: must be "),
        ("missed_jobs", [1], "missed_jobs = [1]: must be a valid dictionary"),
        ("privacy_unit", "meters", "privacy_unit = 'meters': must be 'coordinate' or 'vector'"),
        ("rounds", "12", "rounds = '12': must be a valid integer"),
        ("starts", [1], "starts.0 = 1: must be a valid dictionary"),
        ("max_epsilon_spent", None, "max_epsilon_spent = None: must be a number in a private run"),
        ("tau_min_s", [], "tau_min_s = []: must be a valid number"),
        ("clock", 5, "clock = 5: must be 'real' or 'virtual'"),
        ("selections_by_group", [], "selections_by_group = []: must be a valid dictionary"),
    ],
)
def test_a_value_of_another_type_in_a_summary_is_named(tmp_path: Path, key: str, value: object, said: str) -> None:
    run_dir = write_run(tmp_path / "run", **{key: value})
    with pytest.raises(ConfigError) as refused:
        read_run(run_dir)
    assert f"summary.json: {said}" in str(refused.value)


def test_a_log_that_was_changed_makes_no_report(tmp_path: Path) -> None:
    """Its figures would be others than summary.json's."""
    run_dir = write_run(tmp_path / "run")
    with closing(sqlite3.connect(run_dir / "run.db")) as database, database:
        database.execute("DELETE FROM observations WHERE round = 2")
    for read in (read_run, read_log, latencies_of):
        with pytest.raises(ConfigError, match=r"\(round 2 is not what was written\); restore it from a copy"):
            read(run_dir)


@pytest.mark.parametrize("text", ["[]", "null", "3"])
def test_a_summary_that_is_no_object_is_refused(tmp_path: Path, text: str) -> None:
    run_dir = write_run(tmp_path / "run")
    (run_dir / "summary.json").write_text(text)
    with pytest.raises(ConfigError, match="is no JSON object; delete it and resume the run"):
        read_run(run_dir)
