"""A reader of a command's output that goes before its end, as `| head -1` does, gets no traceback for it."""

import os
import subprocess
from pathlib import Path

import pytest

from pausefl.exit_status import FAILED
from rigs.command import PAUSEFL, synthetic

pytestmark = pytest.mark.end_to_end


def read_one_line(*arguments: object) -> tuple[bytes, int, bytes]:
    """The first line of a command's output, which is closed then; its exit status, and what it complained of."""
    with subprocess.Popen([*PAUSEFL, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        line = process.stdout.readline()
        process.stdout.close()
        complaint = process.stderr.read()
        return line, process.wait(60), complaint


@pytest.mark.parametrize("json", [True, False])
def test_a_run_ends_in_order_when_its_reader_goes(tmp_path: Path, json: bool) -> None:
    config, run_dir = synthetic(tmp_path, rounds=100_000), tmp_path / "run"
    line, status, complaint = read_one_line("run", config, "--run-dir", run_dir, *(["--json"] if json else []))
    assert line.startswith(b"{") == json
    assert (status, complaint) == (FAILED, b"")
    assert (run_dir / "summary.json").exists(), "the server was asked to end, not killed"


def test_output_that_no_process_reads_is_no_traceback() -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    try:
        done = subprocess.run([*PAUSEFL, "validate", "--list"], stdout=theirs, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(theirs)
    assert (done.returncode, done.stderr) == (FAILED, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", [["validate", "demo"], ["validate", "--list"]])
def test_output_that_cannot_be_written_is_one_line(arguments: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run([*PAUSEFL, *arguments], stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == FAILED
    assert done.stderr == b"pausefl: its output or a connection failed (No space left on device)\n"


def test_what_the_encoding_of_the_output_lacks_is_escaped(tmp_path: Path) -> None:
    config = synthetic(tmp_path, rounds=2)
    done = subprocess.run(
        [*PAUSEFL, "run", config, "--virtual", "--run-dir", tmp_path / "run"],
        capture_output=True, check=False, env={**os.environ, "PYTHONIOENCODING": "latin-1"},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"\u03b5" in done.stdout
    assert (tmp_path / "run/report.html").exists()
