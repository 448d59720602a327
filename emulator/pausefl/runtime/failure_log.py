"""Why jobs failed, read from the clients' own log: in a private run the server is not told, as it might hold data."""

import re
from collections.abc import Iterator
from pathlib import Path

# As `pausefl_client.session` writes it.
_FAILED = re.compile(rb"WARNING (\S+): round (\d+) failed: (.*)\n")
_SHOWN = 10


class FailureLog:
    """Follows clients.log, whose reader is the data holder: all clients run on this machine."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_bytes = path.stat().st_size if path.exists() else 0
        self._seen: set[bytes] = set()

    def news(self) -> Iterator[str]:
        """A sentence for each reason that was not there before; of ten reasons at most."""
        for client_id, number, reason in _FAILED.findall(self._unread()):
            if reason not in self._seen and len(self._seen) < _SHOWN:
                self._seen.add(reason)
                yield f"client {client_id.decode()} failed at round {int(number)}: {reason.decode('utf-8', 'replace')}"

    def _unread(self) -> bytes:
        """Whole lines written since the last call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._read_bytes)
                data = file.read()
        except FileNotFoundError:
            return b""
        whole = data[: data.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        return whole
