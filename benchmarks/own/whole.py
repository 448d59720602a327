"""`python -m benchmarks.own all`: play all benchmarks in a short form, one after the other, in several repetitions.

Every figure has its value in each repetition, so that two such measurements can be compared (`changes`). Other work on
the machine affects all benchmarks alike. The machine's own speed is a figure too.
"""

import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module, metadata
from typing import Any, NamedTuple

import psutil

from benchmarks.own import INSTRUMENTS
from pausefl.runtime.forks import client_imports
from pausefl.runtime.processes.lifetime import begin_to_import
from pausefl.runtime.provenance import this_start
from pausefl_process.machine import available_cores, processor_name


class Part(NamedTuple):
    """One benchmark of the set."""

    name: str
    """The instrument's name, as in `INSTRUMENTS`; "machine" is the yardstick here."""
    options: Mapping[str, Any]
    """The options of its short form."""
    figures: tuple[str, ...]
    """The keys of a case that are stored."""


PARTS = (
    Part("machine", {}, ("yardstick_s",)),
    Part("startup", {}, ("connect_s", "client_uss_max_bytes", "first_s", "next_s")),
    Part("rounds", {"blocks": 1}, ("median_s", "baseline_median_s", "ratio")),
    Part(
        "training",
        {"steps": 40},
        ("train_s", "lean_s", "alone_s", "together_s", "ratio", "processor_ratio", "keep_state_s"),
    ),
    Part("scale", {}, ("connect_s", "rounds_per_s", "server_rss_bytes")),
    Part("selection", {"clients_max": 100_000}, ("median_s", "worst_s")),
    Part("privacy", {}, ("median_s", "noise_s", "ledger_s")),
    Part("scraping", {"blocks": 1, "runs_apart": 1}, ("median_s", "ratio")),
    Part("fidelity", {"exchanges": 100}, ("median_s", "error_p50_s", "error_p99_s")),
    Part("twin", {"rounds": 6}, ("residual_p99_ms",)),
    Part("overload", {"clients": 200, "lasts_s": 3.0}, ("lag_p99_ms", "rounds_per_s", "all_joined_s")),
)
_PACKAGES = ("grpcio", "numpy", "protobuf", "torch")
_FEWEST, _MOST = 3, 6
_BUDGET_S = 540.0


def measured(say: Callable[[str], None], parts: Sequence[Part] = PARTS, budget_s: float = _BUDGET_S) -> dict[str, Any]:
    """Play all parts 3 to 6 times, as often as `budget_s` allows; returns the figures, the machine and the versions.

    `say` receives a line after each part. An interruption ends the play and keeps what was measured.
    """
    # One fork server starts the clients of all parts, and some of these train.
    begin_to_import(client_imports(needs_torch=True))
    start, load = this_start(), os.getloadavg()
    began_s, longest_s = time.monotonic(), 0.0
    values: dict[tuple[str, str, str], list[float]] = {}
    done, was_interrupted = 0, False
    try:
        while done < _FEWEST or (done < _MOST and time.monotonic() - began_s + longest_s < budget_s):
            repetition_s = time.monotonic()
            for part in parts:
                part_s = time.monotonic()
                for case, figure, value in _played(part):
                    values.setdefault((part.name, case, figure), []).append(value)
                say(f"repetition {done + 1}: {part.name}: {time.monotonic() - part_s:.1f} s")
            done += 1
            longest_s = max(longest_s, time.monotonic() - repetition_s)
    except KeyboardInterrupt:
        was_interrupted = True
        say("interrupted: what was measured until now is kept")
    return {
        "name": "all",
        **{key: value for key, value in start.items() if key != "host"},
        "machine": _machine(),
        "versions": {package: metadata.version(package) for package in _PACKAGES},
        "load_before": load,
        "load_after": os.getloadavg(),
        "repetitions": done,
        "was_interrupted": was_interrupted,
        "took_s": time.monotonic() - began_s,
        "figures": [
            {"benchmark": benchmark, "case": case, "figure": figure, "values": found}
            for (benchmark, case, figure), found in values.items()
        ],
    }


def _played(part: Part) -> Iterator[tuple[str, str, float]]:
    """Yields the case, name and value of each figure of a part."""
    of_machine = part.name == "machine"
    cases = _yardstick() if of_machine else import_module(INSTRUMENTS[part.name].module).cases(**part.options)
    for case in cases:
        for figure in part.figures:
            if figure in case:
                yield case["case"], figure, case[figure]


def _yardstick() -> Iterator[dict[str, Any]]:
    """Yields the seconds that this machine takes for a fixed loop of Python."""
    began_s = time.perf_counter()
    sum(n * n for n in range(2_000_000))
    yield {"case": "a loop of Python", "yardstick_s": time.perf_counter() - began_s}


def _machine() -> dict[str, Any]:
    return {
        "processor": processor_name(),
        "cores": available_cores(),
        "memory_bytes": psutil.virtual_memory().total,
        "system": f"{platform.system()} {platform.release()}",
    }
