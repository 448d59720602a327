"""The logs that processes write their output to stay bounded, also where several share one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pausefl.runtime.processes.log_file import write_output_to
from pausefl_proto.errors import PauseflError

WRITER = """
import os, sys
from pathlib import Path
from pausefl.runtime.processes.log_file import rotate_output, write_output_to
path = Path(sys.argv[1])
write_output_to(path)
for line in sys.stdin:
    print(line, end="", flush=True)
    rotate_output(path, 1000)
"""


def test_processes_that_share_a_log_rotate_it_together(tmp_path: Path) -> None:
    path = tmp_path / "clients.log"
    command = [sys.executable, "-c", WRITER, str(path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    writers = [subprocess.Popen(command, stdin=subprocess.PIPE, text=True, env=environment) for _ in range(2)]
    for k in range(100):
        for name, writer in enumerate(writers):
            assert writer.stdin is not None
            writer.stdin.write(f"{name} {k} {'x' * 50}\n")
            writer.stdin.flush()
    for writer in writers:
        writer.communicate(timeout=150)
        assert writer.returncode == 0
    assert {p.name for p in tmp_path.iterdir()} == {"clients.log", "clients.log.1"}
    assert sum(p.stat().st_size for p in tmp_path.iterdir()) < 3000
    assert not any(p.stat().st_mode & 0o077 for p in tmp_path.iterdir())  # errors in it may quote the clients' data
    last = (path.with_name("clients.log.1").read_text() + path.read_text()).splitlines()[-10:]
    assert all(line.endswith("x" * 50) for line in last)


OVERTAKEN = """
import fcntl, sys
from pathlib import Path
from pausefl.runtime.processes import log_file
path = Path(sys.argv[1])
log_file._redirect_output(path)
print("mine" * 500, flush=True)

def lock(*_):  # while this process waited, another has rotated the log and written to the new one
    path.replace(path.with_name("clients.log.1"))
    path.write_text("of another\\n" * 200)

fcntl.flock = lock
log_file.rotate_output(path, 1000)
print("mine again", flush=True)
"""


def test_a_process_that_is_overtaken_while_it_waits_rotates_nothing(tmp_path: Path) -> None:
    path = tmp_path / "clients.log"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", OVERTAKEN, str(path)], env=environment, check=True, timeout=150)
    assert path.with_name("clients.log.1").read_text() == "mine" * 500 + "\n"
    assert path.read_text() == "of another\n" * 200 + "mine again\n"


def test_a_folder_that_is_taken_away_before_the_first_line_is_named(tmp_path: Path) -> None:
    """It was a traceback on the terminal, and a log to look into that was not there."""
    with pytest.raises(PauseflError, match=r"run: was moved or deleted while the run began$"):
        write_output_to(tmp_path / "run/server.log")
