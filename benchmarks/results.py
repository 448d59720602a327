"""The results file. Its first line states the machine and the versions; each other line is one play."""

import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import psutil

from benchmarks.environments import SYSTEMS, versions_of
from benchmarks.plan import Turn
from pausefl_process.machine import processor_name
from pausefl_process.version import __version__
from pausefl_proto.errors import ConfigError


class Results:
    """The plays measured so far. Every change is written to the file at once."""

    def __init__(self, path: Path, lines: list[dict[str, Any]]) -> None:
        self._path = path
        self._lines = lines

    @classmethod
    def opened(cls, path: Path, anew: Sequence[str]) -> Self:
        """The results in a file, without those of the cells `anew`, which are to be played again.

        ConfigError if the remaining results were measured on another machine.
        """
        lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []
        kept = [line for line in lines[1:] if line["cell"] not in anew]
        if kept and lines[0]["machine"] != _machine():
            raise ConfigError(
                f"{path}: was measured on another machine; play every cell anew, or name another --results"
            )
        return cls(path, kept)

    def has(self, turn: Turn) -> bool:
        """Whether the results contain this play."""
        return any(_key(line) == (turn.cell.name, turn.repetition, turn.system) for line in self._lines)

    def add(self, turn: Turn, found: dict[str, Any]) -> None:
        """Add the measurements of a play, and write the file with the current machine and versions."""
        self._lines.append({"cell": turn.cell.name, "repetition": turn.repetition, "system": turn.system, **found})
        played = [SYSTEMS[name] for name in SYSTEMS if any(line["system"] == name for line in self._lines)]
        versions = {system.name: versions_of(system) for system in played}
        head = {"machine": _machine(), "pausefl": __version__, "versions": versions}
        self._path.write_text("".join(f"{json.dumps(line)}\n" for line in (head, *self._lines)), "utf-8")


def _key(line: dict[str, Any]) -> tuple[str, int, str]:
    return line["cell"], line["repetition"], line["system"]


def _machine() -> dict[str, Any]:
    memory_gib = round(psutil.virtual_memory().total / 2**30)
    return {
        "processor": processor_name(),
        "cores": os.cpu_count(),
        "memory_gib": memory_gib,
        "system": platform.system(),
    }
