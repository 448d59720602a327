"""Reads from the clients' log why jobs failed. In a private run the server is not told: the text may quote data."""

import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

# The line that `pausefl_client.session` writes.
_FAILED = re.compile(r"(?:.* WARNING )?(\S+): round (\d+) failed: (.*)")
_SHOWN = 10


class FailureLog:
    """Follows clients.log. All clients run on this machine, so its reader already has access to their data."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode, self._read_bytes = 0, 0
        if path.exists():
            self._inode, self._read_bytes = path.stat().st_ino, path.stat().st_size
        self._seen: set[str] = set()

    def news(self) -> Iterator[str]:
        """Yields a sentence for each new reason of a failure, for ten reasons at most."""
        for line in self._unread().decode("utf-8", "replace").splitlines():
            match = _FAILED.fullmatch(_message(line)) if " failed: " in line else None
            if match is not None and match[3] not in self._seen and len(self._seen) < _SHOWN:
                self._seen.add(match[3])
                yield f"client {match[1]} failed at round {match[2]}: {match[3]}"

    def _unread(self) -> bytes:
        """Whole lines written since the last call, including those from before a rotation of the log (`log_file`)."""
        try:
            with self._path.open("rb") as file:
                found, rest = os.fstat(file.fileno()), b""
                if found.st_ino != self._inode or found.st_size < self._read_bytes:
                    rest = self._rest_of_rotated()
                    self._inode, self._read_bytes = found.st_ino, 0
                file.seek(self._read_bytes)
                data = file.read()
        except FileNotFoundError:
            return b""
        whole = data[: data.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        return rest + whole

    def _rest_of_rotated(self) -> bytes:
        """The unread rest of the file that a rotation has renamed."""
        with suppress(FileNotFoundError), self._path.with_name(f"{self._path.name}.1").open("rb") as file:
            if os.fstat(file.fileno()).st_ino == self._inode:
                file.seek(self._read_bytes)
                return file.read()
        return b""


def _message(line: str) -> str:
    """A line's message, as text or as JSON (`pausefl.runtime.processes.logs`)."""
    try:
        return str(json.loads(line)["message"])
    except (ValueError, TypeError, KeyError):
        return line


def how_it_ended(exit_code: int | None, log: Path) -> str:
    """How a process ended, in words: its exit code and, if it has a log, the log's last line."""
    seen = f", see {log}: {last_line(log)}" if log.exists() else " before it had a log"
    return f" (exit code {exit_code}){seen}"


def last_line(path: Path) -> str:
    """The last line of a log, to quote in an error."""
    try:
        lines = path.read_text("utf-8", "replace").strip().splitlines()
    except OSError:
        return "no log was written"
    return lines[-1] if lines else "its log is empty"
