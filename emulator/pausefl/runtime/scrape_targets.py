"""Tells Prometheus where to scrape a run while it lasts: RUN_DIR/targets.json, a file for `file_sd_configs`."""

import json
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from pausefl_process.events import MetricsServed
from pausefl_process.files import write_durably

SERVER = "pausefl-server"
"""The name of the server process, and of its Prometheus job."""
_LOOPBACK = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}


class Targets:
    """Keeps targets.json up to date while processes report their metrics addresses; writes none without `run_dir`."""

    def __init__(self, run_dir: Path | None) -> None:
        self._run_dir = run_dir
        self._addresses: dict[str, str] = {}  # by process

    def add(self, process: str, served: MetricsServed) -> None:
        """Set a process's address. A process that listens on every address is listed under the loopback address."""
        host, _, port = urlsplit(served.url).netloc.rpartition(":")
        self._addresses[process] = f"{_LOOPBACK.get(host, host)}:{port}"
        self._write()

    def forget(self, process: str) -> None:
        """Remove a process that has ended normally."""
        if self._addresses.pop(process, None) is not None:
            self._write()

    def clear(self) -> None:
        """Remove all targets: the run is over, and Prometheus must not report them as missing."""
        self._addresses.clear()
        self._write()

    def _write(self) -> None:
        if self._run_dir is None:
            return
        by_job: dict[str, list[str]] = {}
        for process, address in self._addresses.items():
            by_job.setdefault(SERVER if process == SERVER else "pausefl-clients", []).append(address)
        run = self._run_dir.name
        groups = [{"targets": addresses, "labels": {"job": job, "run": run}} for job, addresses in by_job.items()]
        with suppress(OSError):  # a full disk or a moved folder, which the server reports
            # In one step: Prometheus reads the file whenever it changes.
            write_durably(self._run_dir / "targets.json", json.dumps(groups, indent=1) + "\n")
