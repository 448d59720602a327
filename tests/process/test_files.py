"""Files and locks under kill -9 and on a full disk: whole or not there, held or free."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pausefl_process.files import locked, write_durably
from pausefl_proto.errors import ConfigError
from rigs.waiting import wait_for

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
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True, check=False
    )
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
    assert len(data) == SIZE
    assert len(set(data)) == 1


def test_the_data_reach_the_disk_before_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill does not test fsync: a crash of the machine may lose what was not asked to be kept, in any order."""
    steps: list[str] = []

    def synced(file: int) -> None:
        steps.append("folder" if os.path.samestat(os.fstat(file), tmp_path.stat()) else "data")

    replace = Path.replace

    def renamed(file: Path, to: Path) -> None:
        steps.append("name")
        replace(file, to)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "fdatasync", synced)
    monkeypatch.setattr(Path, "replace", renamed)
    write_durably(tmp_path / "file", b"data")
    assert steps == ["data", "name", "folder"]


def test_a_process_that_is_all_of_a_run_syncs_nothing(tmp_path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path; from pausefl_process import files\n"
        "os.fsync = os.fdatasync = lambda _: print('synced')\n"
        "def write(): files.write_durably(Path(sys.argv[1]), b'data'); print(files.sqlite_synchronous())\n"
        "write(); files.skip_fsync(); write()"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "file")]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert said == ["synced", "synced", "FULL", "OFF"]


def test_a_full_disk_leaves_what_was_there(small_disk: Path) -> None:
    write_durably(small_disk / "file", "as it was")
    with pytest.raises(OSError, match="No space left"):
        write_durably(small_disk / "file", bytes(SIZE))
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
        with (
            pytest.raises(ConfigError, match="run directory here: another process is using it"),
            locked(path, "run directory here"),
        ):
            pass
        holder.kill()
        holder.wait()
        with locked(path, "it"):
            pass


def test_whoever_waits_for_a_lock_that_is_deleted_takes_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with locked(path, "it"):
        second = start(HOLDER, path)
        wait_for(lambda: _opened(second.pid, path), "the second process to open the lock")
        path.unlink()
    with second:
        assert second.stdout is not None
        assert second.stdout.readline() == "held\n"
        with pytest.raises(ConfigError, match="another process"), locked(path, "it"):
            pass
        second.kill()


def _opened(pid: int, path: Path) -> bool:
    files = Path(f"/proc/{pid}/fd")
    try:
        return str(path) in {str(file.readlink()) for file in files.iterdir()}
    except OSError:  # it was closed meanwhile
        return False
