"""Why jobs failed, read from the clients' own log: in a private run the server is not told, as it might hold data."""

import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

# As `pausefl_client.session` writes it.
_FAILED = re.compile(r"(?:.* WARNING )?(\S+): round (\d+) failed: (.*)")
_SHOWN = 10


class FailureLog:
    """Follows clients.log, whose reader is the data holder: all clients run on this machine."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode, self._read_bytes = 0, 0
        if path.exists():
            self._inode, self._read_bytes = path.stat().st_ino, path.stat().st_size
        self._seen: set[str] = set()

    def news(self) -> Iterator[str]:
        """A sentence for each reason that was not there before; of ten reasons at most."""
        for line in self._unread().decode("utf-8", "replace").splitlines():
            match = _FAILED.fullmatch(_message(line)) if " failed: " in line else None
            if match is not None and match[3] not in self._seen and len(self._seen) < _SHOWN:
                self._seen.add(match[3])
                yield f"client {match[1]} failed at round {match[2]}: {match[3]}"

    def _unread(self) -> bytes:
        """Whole lines written since the last call, also those before the log was rotated (`log_file`)."""
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
        """The text that was written to the file before its name became another's."""
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
    """The exit code of a process, and its last words, if it has come so far as to have any."""
    seen = f", see {log}: {last_line(log)}" if log.exists() else " before it had a log"
    return f" (exit code {exit_code}){seen}"


def last_line(path: Path) -> str:
    """The last line of a log, to quote in an error."""
    try:
        lines = path.read_text("utf-8", "replace").strip().splitlines()
    except OSError:
        return "no log was written"
    return lines[-1] if lines else "its log is empty"
