"""The machine a figure was measured on, and how much of it a process may use."""

import math
import os
import platform
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def processor_name() -> str:
    """Its name where Linux tells it, else what Python knows."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "processor"


def available_cores(proc: Path = Path("/proc/self"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """How many cores this process was given, by its affinity and its control groups; the machine may have more."""
    given = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([given, *map(math.ceil, _quotas(proc, cgroups))]))


def _quotas(proc: Path, cgroups: Path) -> Iterator[float]:
    """The cores that each group around this process may use, where that is bounded (man 7 cgroups)."""
    groups = (proc / "cgroup").read_text("utf-8").splitlines() if (proc / "cgroup").exists() else []
    for _, controllers, path in (line.split(":", 2) for line in groups):
        if controllers and "cpu" not in controllers.split(","):
            continue
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if controllers else ("cpu.max",)
        group = cgroups / controllers / path.lstrip("/")
        for folder in (group, *group.parents):  # a bound holds for all groups within
            with suppress(OSError, ValueError):  # there is none, or its quota is "max"
                quota, period = map(float, " ".join((folder / name).read_text("utf-8") for name in names).split())
                if quota > 0:
                    yield quota / period


def machine_in_words() -> str:
    """How many cores there are, and the processor's name."""
    cores = available_cores()
    return f"{cores} core{'s' * (cores > 1)}, {processor_name()}"
