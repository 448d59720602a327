"""Files, locks and logs under kill -9, on a full disk, and shared: files are whole or absent, logs stay bounded."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from pausefl.results.tables import write_csv
from pausefl.runtime.processes.log_file import write_output_to
from pausefl_process.files import locked, write_durably, write_over
from pausefl_proto.errors import ConfigError, PauseflError
from pausefl_server.storage.checkpoint import Checkpoint
from rigs.command import python

SIZE = 2_000_000
WRITER = """
import sys
from pathlib import Path
from pausefl_process.files import write_durably
for i in range(10**6):
    write_durably(Path(sys.argv[1]), bytes([i % 256]) * int(sys.argv[2]))
    print(i, flush=True)
"""
HOLDER = """
import sys
from pathlib import Path
from pausefl_process.files import locked
with locked(Path(sys.argv[1]), "it"):
    print("held", flush=True)
    sys.stdin.read()
"""


def start(program: str, *arguments: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    mounted = subprocess.run(mount, capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("after", range(1, 6))
def test_a_file_is_whole_whenever_its_writer_is_killed(tmp_path: Path, after: int) -> None:
    path = tmp_path / "file"
    with start(WRITER, path, SIZE) as writer:
        assert writer.stdout is not None
        for _ in range(after):
            assert writer.stdout.readline()
        writer.kill()
    data = path.read_bytes()
    assert (len(data), len(set(data))) == (SIZE, 1)


@pytest.fixture
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What reaches the disk, in order. A kill does not test that: a crash of the machine may lose unsynced writes."""
    steps, replace = list[str](), Path.replace

    def synced(file: int) -> None:
        found = os.fstat(file)
        steps.append("folder" if os.path.samestat(found, tmp_path.stat()) else f"{found.st_size} bytes")

    def renamed(file: Path, to: Path) -> None:
        steps.append("name")
        replace(file, to)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "fdatasync", synced)
    monkeypatch.setattr(Path, "replace", renamed)
    return steps


def test_the_data_reach_the_disk_before_the_name(tmp_path: Path, steps: list[str]) -> None:
    write_durably(tmp_path / "file", b"data")
    assert steps == ["4 bytes", "name", "folder"]


def test_a_model_reaches_the_disk_with_the_name_of_its_slot(tmp_path: Path, steps: list[str]) -> None:
    with closing(Checkpoint(tmp_path)) as checkpoint:
        for round_ in (1, 2, 3):
            checkpoint.write(round_, np.zeros(5, np.float32))
            checkpoint.sync()
    assert steps == ["folder", *("folder", "20 bytes") * 2, "20 bytes"]


def test_a_process_that_is_all_of_a_run_syncs_nothing(tmp_path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path; from pausefl_process import files\n"
        "os.fsync = os.fdatasync = lambda _: print('synced')\n"
        "def write(): files.write_durably(Path(sys.argv[1]), b'data'); print(files.sqlite_synchronous())\n"
        "write(); files.skip_fsync(); write()"
    )
    assert python("-c", program, str(tmp_path / "file")).split() == ["synced", "synced", "FULL", "OFF"]


def test_a_full_disk_leaves_what_was_there(small_disk: Path) -> None:
    write_durably(small_disk / "file", "as it was")
    for write in (partial(write_durably, data=bytes(SIZE)), partial(write_csv, columns=["a"], rows=[[0]] * SIZE)):
        with pytest.raises(OSError, match=r"No space left.*/file'$"):
            write(small_disk / "file")
    assert [(path.name, path.read_text()) for path in small_disk.iterdir()] == [("file", "as it was")]


def test_an_error_names_the_file_that_was_to_be_written(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/file").touch()
    for path in (tmp_path / "none/file", tmp_path / "folder"):
        with pytest.raises(OSError) as error:
            write_durably(path, b"data")
        assert str(error.value).endswith(f": '{path}'")


def test_a_lock_is_held_by_one_process_and_let_go_by_kill_9(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with start(HOLDER, path) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(ConfigError, match="it: another process is using it"), locked(path, "it"):
            pass
        holder.kill()
        holder.wait()
        with locked(path, "it"):
            pass


def test_a_lock_that_was_deleted_before_it_was_taken_is_taken_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, flock = tmp_path / "lock", fcntl.flock

    def flock_late(file: int, how: int) -> None:
        monkeypatch.undo()
        path.unlink()
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", flock_late)
    with locked(path, "it"), pytest.raises(ConfigError, match="another process"), locked(path, "it"):
        pass


def test_a_file_that_the_kernel_writes_in_several_calls_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, data, at: pwrite(file, data[:3], at))
    with (tmp_path / "file").open("wb") as file:
        write_over(file.fileno(), b"abcdefgh")
    assert (tmp_path / "file").read_bytes() == b"abcdefgh"


ROTATING = """
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
    writers = [start(ROTATING, path) for _ in range(2)]
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
    python("-c", OVERTAKEN, str(path))
    assert path.with_name("clients.log.1").read_text() == "mine" * 500 + "\n"
    assert path.read_text() == "of another\n" * 200 + "mine again\n"


def test_a_folder_that_is_taken_away_before_the_first_line_is_named(tmp_path: Path) -> None:
    """This once printed a traceback, and the message named a log that did not exist."""
    with pytest.raises(PauseflError, match=r"run: was moved or deleted while the run began$"):
        write_output_to(tmp_path / "run/server.log")
