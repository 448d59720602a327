"""A wall clock of the processes' own that can be made to jump; the machine's stays as it is."""

import shutil
import subprocess
from collections.abc import Mapping
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
