"""Measures how busy a device is during a computation."""

import time
from collections.abc import Callable, Iterable

import torch
from torch.profiler import ProfilerActivity, profile

_ACTIVITIES = {"cpu": ProfilerActivity.CPU, "cuda": ProfilerActivity.CUDA}


def busy_share(work: Callable[[], object], device: torch.device) -> float | None:
    """The share of the time of `work` in which an operation ran on the device, in [0, 1]. None if none was recorded.

    `work` must return only when the device is done. The profiler slows it down, so the true share is at least this.
    """
    with profile(activities=[_ACTIVITIES[device.type]], acc_events=True) as profiler:
        began_s = time.perf_counter()
        work()
        took_s = time.perf_counter() - began_s
    on_device = (e for e in profiler.events() or () if e.device_type.name.lower() == device.type)
    # Spans that the program marks, such as an optimizer's step, contain times without an operation.
    operations = [(e.time_range.start, e.time_range.end) for e in on_device if not e.is_user_annotation]
    return min(covered(operations) / (took_s * 1e6), 1.0) if operations else None


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """The length of the union of the spans (start, end), in their unit. Overlaps count once."""
    length, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        length += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return length
