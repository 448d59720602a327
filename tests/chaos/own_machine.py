"""Parts of a machine for one play alone: a wall clock that can jump, and a small disk that can be filled."""

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

_SOURCE = Path(__file__).with_name("wall_clock.c")


class WallClock:
    """The time of day as processes see it: the true time plus the offset of the last `jump`."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "clock"
        self._library = folder / "wall_clock.so"
        self._file.write_bytes(bytes(8))
        self.missing = self._build()
        """Why there is no such clock; empty if there is one."""

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment variables that give a process this clock."""
        return {} if self.missing else {"LD_PRELOAD": str(self._library), "PAUSEFL_CHAOS_CLOCK": str(self._file)}

    def jump(self, offset_s: int) -> None:
        """Set the clocks of all running processes to the true time plus `offset_s`."""
        with self._file.open("r+b") as file:
            file.write(offset_s.to_bytes(8, "little", signed=True))

    def _build(self) -> str:
        compiler = shutil.which("cc")
        if compiler is None:
            return "no C compiler is here to make wall clocks jump with"
        command = (compiler, "-shared", "-fPIC", "-O1", "-o", self._library, _SOURCE, "-ldl")
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stderr.strip()


@contextmanager
def mounted_disk(folder: Path, size_bytes: int) -> Iterator[str]:
    """Mount a disk of this size at `folder` for the block; yields why there is none, or an empty string."""
    folder.mkdir()
    command = ("mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", folder)
    try:
        missing = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        yield f"no disk can be mounted here: {error}"
        return
    if missing.returncode:
        yield f"no disk can be mounted here: {missing.stderr.strip()}"
        return
    try:
        yield ""
    finally:
        subprocess.run(("umount", "--lazy", folder), check=False)


@contextmanager
def filled(folder: Path) -> Iterator[None]:
    """Leave no free byte on the disk of `folder` until the block ends."""
    ballast = folder / "ballast"
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 20))
    with suppress(OSError), ballast.open("ab", buffering=0) as file:
        while True:
            file.write(bytes(512))
    try:
        yield
    finally:
        ballast.unlink(missing_ok=True)
