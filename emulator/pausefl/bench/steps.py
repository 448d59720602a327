"""Measures asynchronous steps without training: steps per second, and the server's processor time for each.

That time is for the K updates of a step. It does not grow with C or with delays, as the server polls nothing.
"""

from collections.abc import Iterator
from typing import Any

from pausefl.bench.scale import figures

_CASES = (
    *((10, 10, buffer, 0.0, 600) for buffer in (1, 5)),
    *((10, 10, 5, delay_s, 60) for delay_s in (0.05, 0.5)),
    *((40, at_work, 1, 0.0, 600) for at_work in (5, 10, 40)),
)
"""For each case: clients, C, K, the delay of each exchange in seconds, and the number of steps."""


def cases() -> Iterator[dict[str, Any]]:
    """A synthetic model of 4 kB: ten clients at work with K = 1 and 5, then with delays; 5, 10 and 40 of 40 clients."""
    for clients, concurrency, buffer, delay_s, steps in _CASES:
        overrides = [
            "server.mode=asynchronous",
            f"asynchronous.concurrency={concurrency}",
            f"asynchronous.buffer={buffer}",
            f"latency.delay={{kind='constant', value_s={delay_s}}}",
        ]
        found = figures(clients, steps, overrides)
        yield {
            "name": "steps",
            "case": f"{clients} clients, C = {concurrency}, K = {buffer}, delays of {1e3 * delay_s:g} ms",
            **{f"{name}_s": found[f"{name}_s"] for name in ("median", "p99")},
            "steps_per_s": found["rounds_per_s"],
            "server_cpu_per_step_s": found["server_cpu_per_round_s"],
        }
