"""What a play has of its own of a machine: a wall clock that can be made to jump, and a small disk to be filled."""

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

_SOURCE = Path(__file__).with_name("wall_clock.c")


class WallClock:
    """What processes see as the time of day, which is off by as much as `jump` said last."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "clock"
        self._library = folder / "wall_clock.so"
        self._file.write_bytes(bytes(8))
        self.missing = self._build()
        """Why there is none; empty where there is."""

    @property
    def environment(self) -> Mapping[str, str]:
        """What a process needs to be started with."""
        return {} if self.missing else {"LD_PRELOAD": str(self._library), "PAUSEFL_CHAOS_CLOCK": str(self._file)}

    def jump(self, offset_s: int) -> None:
        """Set the clocks of all running processes to the true time and this much."""
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
    """A disk of this size at `folder` until the end of the block; yields why there is none, empty where there is."""
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
    """Leave no byte free on the disk of `folder` until the end of the block."""
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
