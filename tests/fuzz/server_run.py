"""A real server and real honest clients, a process each, and the memory and disk that they use."""

import json
import os
import re
import signal
import subprocess
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from pausefl.experiment.experiment import Experiment, load_experiment
from rigs.command import PAUSEFL, rounds_in, toml_of
from rigs.waiting import wait_for

MODEL_BYTES = 4_000
HONEST, M = 6, 3
_PATIENCE_S = 60.0
# The server imports the policy `fuzz.policy` from here.
_TESTS = str(Path(__file__).parents[1])
_ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join([_TESTS, os.environ.get("PYTHONPATH", "")])}


def experiment_of(hostile: int, mode: str) -> dict[str, object]:
    """An experiment of honest and `hostile` clients; asynchronously, two places are left for hostile ones."""
    return {
        "experiment.rounds": 1_000_000,
        "clients.minimum": HONEST,
        "clients.connect_timeout_s": 60.0,
        "clients.groups": {"honest": {"count": HONEST}, "hostile": {"count": hostile}},
        "selection.policy": "fuzz.policy:HonestAndOneMore",
        "selection.m": M,
        "privacy.epsilon_budget": 1000.0,
        "privacy.eta": 0.0001,
        "latency.delay": {"kind": "constant", "value_s": 0.5},
        "workload.model": "synthetic",
        "workload.model_bytes": MODEL_BYTES,
        "server": {"mode": mode, "round_timeout_s": 10.0, "rejoin_timeout_s": 0.25},
        "asynchronous": {"concurrency": HONEST + 2, "buffer": M},
    }


@dataclass(frozen=True)
class Footprint:
    """The server's memory and disk use at one moment."""

    rss_bytes: int
    peak_rss_bytes: int
    """The peak since the server's start."""
    disk_bytes: int
    """The run's log and the server's output."""


class ServerRun:
    """A server and its honest clients; both are killed when the block ends."""

    def __init__(self, folder: Path, hostile: int, mode: str = "rounds") -> None:
        """`mode` is `server.mode`."""
        self.folder = folder
        self._run_dir = folder / "run"
        config = folder / "fuzz.toml"
        config.write_text(toml_of(experiment_of(hostile, mode)), encoding="utf-8")
        self.server = self._start("server", "server", config, "--run-dir", self._run_dir)
        ready = self._event("ready")
        self.port = int(ready["port"])
        self.metrics_url = str(self._event("metrics")["url"])
        address = f"127.0.0.1:{self.port}"
        self._clients = self._start(
            "clients", "client", config, "--server", address, "--slot", 0, "--count", HONEST, "--ledger-dir", folder
        )

    def __enter__(self) -> "ServerRun":
        return self

    def __exit__(self, *_: object) -> None:
        for process in (self.server, self._clients):
            if process.poll() is None:
                process.kill()
            process.wait()

    def rounds(self) -> int:
        """The number of committed rounds."""
        return rounds_in(self._run_dir)

    def experiment(self) -> Experiment:
        """The experiment as clients of this run read it."""
        return load_experiment(str(self.folder / "fuzz.toml"))

    def footprint(self) -> Footprint:
        """The server process's memory, and its disk use."""
        pid = self.server.pid
        files = [*self._run_dir.glob("run.db*"), *self.folder.glob("server.*")]
        rss_bytes: int = psutil.Process(pid).memory_info().rss
        return Footprint(rss_bytes, peak_rss_bytes(pid), sum(file.stat().st_size for file in files))

    def metric(self, name: str) -> float:
        """The sum of a metric's samples."""
        with urllib.request.urlopen(self.metrics_url, timeout=20) as answer:
            text = answer.read().decode()
        return sum(float(value) for value in re.findall(rf"^{name}(?:\{{.*\}})? (\S+)$", text, re.MULTILINE))

    def complaints(self) -> list[str]:
        """Each traceback in the server's and the clients' output, with the lines around it."""
        outputs = (self.folder / f"{name}.{kind}" for name in ("server", "clients") for kind in ("out", "err"))
        return [text for output in outputs for text in tracebacks(output.read_text("utf-8", "replace"))]

    def end(self) -> int:
        """Stop the server by SIGTERM, as a user does; returns its exit status."""
        self.server.send_signal(signal.SIGTERM)
        return self.server.wait(_PATIENCE_S)

    def _start(self, name: str, *arguments: object) -> "subprocess.Popen[bytes]":
        with (self.folder / f"{name}.out").open("wb") as out, (self.folder / f"{name}.err").open("wb") as err:
            return subprocess.Popen([*PAUSEFL, *map(str, arguments)], stdout=out, stderr=err, env=_ENVIRONMENT)

    def _event(self, kind: str) -> dict[str, Any]:
        """The server's first event of this kind."""

        def said() -> list[dict[str, Any]]:
            lines = (self.folder / "server.out").read_text("utf-8").splitlines()
            events = (json.loads(line) for line in lines if line.startswith("{") and line.endswith("}"))
            return [event for event in events if event["kind"] == kind]

        wait_for(said, f"{kind} of the server", _PATIENCE_S, running=self.server)
        return said()[0]


def tracebacks(output: str) -> list[str]:
    """Each traceback of a process's output, with the lines around it."""
    lines = output.splitlines()
    begin = [i for i, line in enumerate(lines) if line.startswith("Traceback") or "Task exception was never" in line]
    return ["\n".join(lines[max(0, i - 3) : i + 40]) for i in begin]


def peak_rss_bytes(pid: int) -> int:
    """A process's peak resident memory in bytes."""
    status = Path(f"/proc/{pid}/status").read_text("utf-8")
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) * 1024
