"""Describes the machine on which a figure was measured, and how many of its cores a process may use."""

import math
import os
import platform
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def processor_name() -> str:
    """The CPU's name, from Linux if possible, else from Python."""
    lines: list[str] = []
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "processor"


def available_cores(proc: Path = Path("/proc/self"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """The number of cores that this process may use by its affinity and control groups. The machine may have more."""
    given = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([given, *map(math.ceil, _quotas(proc, cgroups))]))


def _quotas(proc: Path, cgroups: Path) -> Iterator[float]:
    """Yield the core limit of each control group around this process that has one (man 7 cgroups)."""
    groups = (proc / "cgroup").read_text("utf-8").splitlines() if (proc / "cgroup").exists() else []
    for _, controllers, path in (line.split(":", 2) for line in groups):
        if controllers and "cpu" not in controllers.split(","):
            continue
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if controllers else ("cpu.max",)
        group = cgroups / controllers / path.lstrip("/")
        for folder in (group, *group.parents):  # a group's limit holds for all groups inside it
            with suppress(OSError, ValueError):  # there is no limit, or the quota is "max"
                quota, period = map(float, " ".join((folder / name).read_text("utf-8") for name in names).split())
                if quota > 0:
                    yield quota / period


def machine_in_words() -> str:
    """The number of usable cores and the CPU's name, as text."""
    cores = available_cores()
    return f"{cores} core{'s' * (cores > 1)}, {processor_name()}"
