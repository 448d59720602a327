"""Where a run can be scraped while it lasts: RUN_DIR/targets.json, in the format of Prometheus's `file_sd_configs`."""

import json
import multiprocessing
from collections import defaultdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from pausefl_process.files import write_durably

_LOOPBACK = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}


class Targets:
    """Keeps the file while processes say where they listen."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._addresses: dict[str, list[str]] = defaultdict(list)  # by job
        self.expected: list[Connection[Any, Any]] = []
        """Where client processes that have not said so yet will say at which address they can be scraped."""

    def expect(self) -> "Connection[Any, Any]":
        """The end at which a client process that is about to be started says its address."""
        ours, theirs = multiprocessing.Pipe(duplex=False)
        self.expected.append(ours)
        return theirs

    def hear(self, connection: "Connection[Any, Any]") -> None:
        """Take an address that came, or learn that none will."""
        self.expected.remove(connection)
        try:
            self.add("pausefl-clients", connection.recv())
        except EOFError:  # the process has ended, which others tell
            pass
        finally:
            connection.close()

    def add(self, job: str, address: str) -> None:
        """One more HOST:PORT; what listens on every address does so on loopback."""
        host, _, port = address.rpartition(":")
        self._addresses[job].append(f"{_LOOPBACK.get(host, host)}:{port}")
        self._write()

    def clear(self) -> None:
        """Name no targets any more: the run is over, and none shall be reported missing."""
        for connection in self.expected:
            connection.close()
        self._addresses.clear()
        self._write()

    def _write(self) -> None:
        groups = [
            {"targets": addresses, "labels": {"job": job, "run": self._run_dir.name}}
            for job, addresses in self._addresses.items()
        ]
        # In one step: Prometheus reads it whenever it changes.
        write_durably(self._run_dir / "targets.json", json.dumps(groups, indent=1) + "\n")
