"""Compares the clients' token bucket with the kernel's (tbf on veth pairs) on the same exchanges; needs root."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from pausefl.bench.runs import play

_BYTES_PER_S = 4_000_000
_BURST_BYTES = 16_384
_ROUNDS = 15
_SIZES_BYTES = (50_000, 200_000, 800_000)


def cases(payload_bytes: int | None = None) -> Iterator[dict[str, Any]]:
    """Yields a case per model size: one client at a time, 4 MB/s in each direction."""
    for size_bytes in (payload_bytes,) if payload_bytes else _SIZES_BYTES:
        link, kernel = _communication_s(size_bytes, "link"), _communication_s(size_bytes, "netem")
        yield {
            "name": "shaping",
            "case": f"{size_bytes} bytes down and up at {_BYTES_PER_S} bytes/s",
            "payload_bytes": size_bytes,
            "computed_s": 2 * max(0, size_bytes - _BURST_BYTES) / _BYTES_PER_S,
            "median_s": float(np.median(link)),
            "tbf_median_s": float(np.median(kernel)),
            "ratio": float(np.median(kernel) / np.median(link)),
        }


def _communication_s(size_bytes: int, injection: str) -> list[float]:
    """The communication times, in seconds, of all exchanges after the first three rounds."""
    rates = f"down_bytes_per_s={_BYTES_PER_S}, up_bytes_per_s={_BYTES_PER_S}, burst_bytes={_BURST_BYTES}"
    records = play(
        [
            "clients.count=3",
            "selection.m=1",
            "selection.policy=random",
            f"experiment.rounds={_ROUNDS}",
            f"workload.model_bytes={size_bytes}",
            f"latency.injection={injection}",
            f"latency.bandwidth={{{rates}}}",
        ]
    )
    return [o.timing.communication_s for record in records[3:] for o in record.observations]
