"""summary.json, read again: whatever was done to it, what is wrong is one line."""

from pathlib import Path

import pytest

from pausefl.results.reading import read_run
from pausefl_proto.errors import ConfigError
from test_report import write_run


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("total_latency_s", "x", "total_latency_s = 'x': should be a valid number"),
        ("policy", 3, "policy = 3: should be a valid string"),
        ("timing_error_s", 3, "timing_error_s = 3: should be "),
        ("missed_jobs", [1], "missed_jobs = [1]: should be a valid dictionary"),
        ("privacy_unit", "meters", "privacy_unit = 'meters': should be 'coordinate' or 'vector'"),
        ("rounds", "12", "rounds = '12': should be a valid integer"),
        ("starts", [1], "starts.0 = 1: should be a valid dictionary"),
        ("max_epsilon_spent", None, "max_epsilon_spent = None: should be a number in a private run"),
        ("tau_min_s", [], "tau_min_s = []: should be a valid number"),
        ("clock", 5, "clock = 5: should be 'real' or 'virtual'"),
        ("selections_by_group", [], "selections_by_group = []: should be a valid dictionary"),
    ],
)
def test_a_value_of_another_type_in_a_summary_is_named(tmp_path: Path, key: str, value: object, said: str) -> None:
    run_dir = write_run(tmp_path / "run", **{key: value})
    with pytest.raises(ConfigError) as refused:
        read_run(run_dir)
    assert f"summary.json: {said}" in str(refused.value)


@pytest.mark.parametrize("text", ["[]", "null", "3"])
def test_a_summary_that_is_no_object_is_refused(tmp_path: Path, text: str) -> None:
    run_dir = write_run(tmp_path / "run")
    (run_dir / "summary.json").write_text(text)
    with pytest.raises(ConfigError, match="is no JSON object; delete it and resume the run"):
        read_run(run_dir)
