"""Reads latencies to fit laws to, from a run's log or from a file with a row per exchange."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pausefl.experiment.measured.reading import Reading, as_option, in_order
from pausefl.results.reading import read_log
from pausefl_proto.arrays import BoolArray, FloatArray, IntArray
from pausefl_proto.errors import ConfigError

_BOUNDING = ("unneeded", "timeout")
_AS_SAID = Reading()


@dataclass(frozen=True, eq=False)
class ClientLatencies:
    """One client's latencies in the order in which they were measured."""

    seconds: FloatArray
    """(n,) latencies in seconds, all above 0."""
    round: IntArray
    """(n,) the round of each latency's job, ascending. If rounds are unknown, its position counted from 1."""
    bounds_s: FloatArray = field(default_factory=lambda: np.empty(0))
    """(k,) lower bounds of further latencies, for answers that were not waited for or came too late."""
    missed: int = 0
    """How many other jobs had no answer. They tell nothing about a latency."""


def latencies_of(source: Path, reading: Reading = _AS_SAID) -> Mapping[str, ClientLatencies]:
    """The latencies in a run directory or a file, by client. ConfigError, with the file's line, for invalid input."""
    if source.is_dir() and reading != Reading():
        raise ConfigError(f"{source}: is a run, whose latencies are in seconds; options of files do not go with it")
    found = _of_run(source) if source.is_dir() else _of_file(source, reading)
    if not any(of_client.seconds.size for of_client in found.values()):
        raise ConfigError(f"{source}: holds no latencies")
    return found


def _of_run(run_dir: Path) -> dict[str, ClientLatencies]:
    """The latencies in a run's log, by client: the signal of its policy (`latency.signal`), at the emulated scale."""
    seconds, bounds_s = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
    rounds, missed = defaultdict[str, list[int]](list), Counter[str]()
    for record in read_log(run_dir):
        for o in (o for o in record.observations if o.teaches):
            rounds[o.client_id].append(record.round - o.staleness)  # its job's, for which the delay was drawn
            seconds[o.client_id].append(o.latency_s)
        for miss in (m for attempt in record.attempts for m in attempt.misses if m.teaches):
            if miss.kind in _BOUNDING and miss.latency_s > 0:
                bounds_s[miss.client_id].append(miss.latency_s)
            else:
                missed[miss.client_id] += 1
    return {
        c: ClientLatencies(np.array(seconds[c]), np.array(rounds[c], np.int64), np.array(bounds_s[c]), missed[c])
        for c in sorted(seconds.keys() | bounds_s.keys())
    }


def _of_file(file: Path, reading: Reading) -> dict[str, ClientLatencies]:
    try:
        found = reading.measured(file, as_option, by_client=True, above_zero=True)
    except ValueError as error:
        raise ConfigError(f"{file}: {error}") from error
    return {name: _of_probes(*in_order(probes)) for name, probes in found.items()}


def _of_probes(seconds: FloatArray, is_lost: BoolArray) -> ClientLatencies:
    """A client's latencies from a file. Each row counts as one round; lost rows are lower bounds."""
    return ClientLatencies(seconds[~is_lost], np.flatnonzero(~is_lost) + 1, seconds[is_lost])
