"""Where a run can be scraped while it lasts: RUN_DIR/targets.json, in the format of Prometheus's `file_sd_configs`."""

import json
import multiprocessing
from contextlib import closing, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from pausefl_process.files import write_durably

SERVER = "pausefl-server"
"""The name of the server's process, and of its job."""
_LOOPBACK = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}


class Targets:
    """Keeps the file while processes say where they listen."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._addresses: dict[str, str] = {}  # by process
        self.expected: dict[Connection[Any, Any], str] = {}
        """Where a client process that has not said so yet will say at which address it can be scraped: its name."""

    def expect(self, process: str) -> "Connection[Any, Any]":
        """The end at which the client process of this name, which is about to be started, says its address."""
        ours, theirs = multiprocessing.Pipe(duplex=False)
        self.expected[ours] = process
        return theirs

    def hear(self, connection: "Connection[Any, Any]") -> None:
        """Take an address that came, or learn that none will."""
        process = self.expected.pop(connection)
        with closing(connection), suppress(EOFError):  # the process has ended, which others tell
            self.add(process, connection.recv())

    def add(self, process: str, address: str) -> None:
        """Name a process's HOST:PORT, in place of an earlier one; what listens on every address does so on loopback."""
        host, _, port = address.rpartition(":")
        self._addresses[process] = f"{_LOOPBACK.get(host, host)}:{port}"
        self._write()

    def forget(self, process: str) -> None:
        """Name a process that has ended in order no more."""
        if self._addresses.pop(process, None) is not None:
            self._write()

    def clear(self) -> None:
        """Name no targets any more: the run is over, and none shall be reported missing."""
        for connection in self.expected:
            connection.close()
        self._addresses.clear()
        self._write()

    def _write(self) -> None:
        by_job: dict[str, list[str]] = {}
        for process, address in self._addresses.items():
            by_job.setdefault(SERVER if process == SERVER else "pausefl-clients", []).append(address)
        run = self._run_dir.name
        groups = [{"targets": addresses, "labels": {"job": job, "run": run}} for job, addresses in by_job.items()]
        # In one step: Prometheus reads it whenever it changes.
        write_durably(self._run_dir / "targets.json", json.dumps(groups, indent=1) + "\n")
