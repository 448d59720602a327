"""Measures the processor time and memory of all processes of a system together."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True)
class Usage:
    """The processor time and memory that a process and all its descendants have used so far."""

    cpu_s: float
    """User and system time, ended processes included."""
    peak_rss_bytes: int
    """The sum of the running processes' peak resident sets. A shared page counts once for each process."""
    pss_bytes: int
    """Memory in use now (PSS): a shared page is divided among the processes that share it."""


def usage(root: psutil.Process, *, memory: bool) -> Usage:
    """The usage of a process and all its descendants. Memory is read only if `memory` is set, since it takes longer."""
    cpu_s, peak, pss = 0.0, 0, 0
    for process in _family(root):
        try:
            times = process.cpu_times()
            cpu_s += times.user + times.system + times.children_user + times.children_system
            if memory:
                peak += _status_bytes(process.pid, "VmHWM")
                pss += process.memory_full_info().pss
        except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
            continue
    return Usage(cpu_s, peak, pss)


def end_family(root: psutil.Process) -> None:
    """Kill a process and all its descendants. Returns when they have ended.

    All are suspended first, so that none starts another process meanwhile.
    """
    stopped: set[psutil.Process] = set()
    while new := set(_family(root)) - stopped:
        for process in new:
            with suppress(psutil.NoSuchProcess):
                process.suspend()
        stopped |= new
    for process in stopped:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(stopped, timeout=10.0)


def _family(root: psutil.Process) -> list[psutil.Process]:
    try:
        return [root, *root.children(recursive=True)] if root.is_running() else []
    except psutil.NoSuchProcess:
        return []


def _status_bytes(pid: int, field: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text("ascii").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    return 0
