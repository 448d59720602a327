"""Plays one system once, and measures it from outside."""

import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from benchmarks.environments import ROOT, System, python_of
from benchmarks.plan import Window
from benchmarks.processes import end_family, usage
from benchmarks.systems.task import Task

_PACKAGES = ("proto", "process", "server", "client", "emulator")
# Turns off the telemetry of Flower and Ray.
_SILENT = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}


class PlayError(Exception):
    """A system failed to play. The message has the last lines that it printed."""


def play(system: System, task: Task, window: Window) -> dict[str, Any]:
    """Time, processor time and memory of one play, as an object for JSON. PlayError if the system fails.

    A task with a rated round is measured from its first round to the rated one. Other tasks are measured in the window.
    """
    # The processes have their temporary files here too. The path is short, since Ray puts sockets there.
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
        running = _Running(system, task, Path(folder), window.within_s)
        try:
            return running.whole() if task.rated_round else running.part(window)
        finally:
            running.end()


class _Running:
    """A system's processes while they play."""

    def __init__(self, system: System, task: Task, folder: Path, within_s: float) -> None:
        self._name = system.name
        self._task = task
        self._began_s = time.monotonic()
        self._ends_by_s = self._began_s + within_s
        self._output = folder / "output"
        os.mkfifo(folder / "progress")
        # Opened for writing too: otherwise the pipe would end whenever the last writer closes it.
        self._pipe = os.open(folder / "progress", os.O_RDWR | os.O_NONBLOCK)
        self._unread = b""
        self._rated: dict[str, Any] | None = None  # the line with the accuracy of the rated round
        paths = os.pathsep.join(str(ROOT / part) for part in (".", *(() if system.requirements else _PACKAGES)))
        python = python_of(system)
        path = os.pathsep.join((str(python.parent), os.environ["PATH"]))  # as in an activated environment
        told = task.environment(folder / "progress") | {"TMPDIR": str(folder), "PYTHONPATH": paths, "PATH": path}
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                [python, "-m", f"benchmarks.systems.{system.module}"],
                env=os.environ | _SILENT | told,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._root = psutil.Process(self._process.pid)

    def part(self, window: Window) -> dict[str, Any]:
        """The measurements of the rounds in the window."""
        warm_at_s = self._line(lambda line: line["round"] >= 0)["at_s"] + window.warm_up_s
        first = self._line(lambda line: line["round"] >= window.warm_up and line["at_s"] >= warm_at_s)
        return self._between(
            first,
            lambda line: (
                line["at_s"] >= first["at_s"] + window.seconds and line["round"] >= first["round"] + window.rounds_min
            ),
        )

    def whole(self) -> dict[str, Any]:
        """The measurements of all rounds up to the rated one, the time of the whole command, and the accuracy."""
        found = self._between(
            self._line(lambda line: line["round"] == 0), lambda line: line["round"] >= self._task.rated_round
        )
        whole_s = time.monotonic() - self._began_s
        # The accuracy may have been read already: quick rounds are not all reported, and perhaps the rated one was not.
        rated = self._rated or self._line(lambda line: "accuracy" in line)
        return found | {"whole_s": round(whole_s, 3), "accuracy": rated["accuracy"]}

    def end(self) -> None:
        """Kill all processes of the system."""
        end_family(self._root)
        self._process.wait()
        os.close(self._pipe)

    def _between(self, first: dict[str, Any], is_last: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        before, busy_s, began_s = usage(self._root, memory=False), _busy_s(), time.monotonic()
        last = self._line(is_last)
        machine_s, busy_s = (time.monotonic() - began_s) * (os.cpu_count() or 1), _busy_s() - busy_s
        after = usage(self._root, memory=True)
        rounds, cpu_s = last["round"] - first["round"], after.cpu_s - before.cpu_s
        return {
            "rounds": rounds,
            "round_s": round((last["at_s"] - first["at_s"]) / rounds, 7),
            "cpu_s": round(cpu_s / rounds, 7),
            "others": round(max(busy_s - cpu_s, 0.0) / machine_s, 3),
            "peak_rss_bytes": after.peak_rss_bytes,
            "pss_bytes": after.pss_bytes,
        }

    def _line(self, is_wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Reads lines of progress up to the next one that `is_wanted` accepts; returns that line."""
        while True:
            while b"\n" not in self._unread:
                self._read()
            text, _, self._unread = self._unread.partition(b"\n")
            line: dict[str, Any] = {"round": -1, "at_s": 0.0} | json.loads(text)
            if "accuracy" in line:
                self._rated = line
            if is_wanted(line):
                return line

    def _read(self) -> None:
        is_late = time.monotonic() > self._ends_by_s
        if not is_late and select.select([self._pipe], [], [], 0.2)[0]:
            self._unread += os.read(self._pipe, 1 << 16)
        elif is_late or self._process.poll() is not None:
            how = "too slow" if self._process.returncode is None else f"ended with {self._process.returncode}"
            last = self._output.read_text("utf-8", "replace").splitlines()[-20:]
            raise PlayError("\n".join([f"{self._name}: {how}; it printed last:", *last]))


def _busy_s() -> float:
    """Processor time that all processes of this machine took since it started."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq)
