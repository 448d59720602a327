"""Latency laws from TOML tables: `{ kind = "lognormal", mean_s = 0.2, sd_s = 0.1 }` and what is built of such tables.

Any decimal key of a law also accepts a law: a distribution, sampled once per client.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from pausefl.experiment import delay_laws as delays
from pausefl.experiment.delay_laws import Delay, Floor, MarkovDelay, published_delay, sampled
from pausefl.experiment.delays.files import ClientPlace, MeasuredDelays
from pausefl.experiment.kinds import made, plain_value, read_kind
from pausefl_process.plugins import OWN_CODE_ERRORS, with_place
from pausefl_process.registry import Registry
from pausefl_proto.arrays import FloatArray
from pausefl_proto.draws import generator
from pausefl_proto.errors import ConfigError
from pausefl_proto.number_types import Bounded, NonNegative, PositiveShare

_TRIED = 16


@dataclass(frozen=True)
class Halves(Bounded):
    """The published latencies: normal, floored at τ_min, with a fast and a slow half of the clients."""

    floor_s: NonNegative = 0.05
    """The least delay, τ_min."""
    sd_s: NonNegative = 0.05
    """The standard deviation before the floor."""

    def law(self, client: ClientPlace) -> Floor:
        """The law of one client; ValueError that names the key."""
        return published_delay(client.place, len(client.client_ids), floor_s=self.floor_s, sd_s=self.sd_s)


def markov(good: Delay, bad: Delay, to_bad: PositiveShare, to_good: PositiveShare) -> MarkovDelay:
    """A link with two states, good and bad, that change at random between rounds (Gilbert and Elliott).

    A client's path through the states is its own, so it is no key.
    """
    return MarkovDelay(good, bad, to_bad, to_good)


DELAYS = Registry(
    "delays",
    {
        "none": delays.NoDelay,
        "constant": delays.Constant,
        "normal": delays.Normal,
        "lognormal": delays.LogNormal,
        "exponential": delays.Exponential,
        "gamma": delays.Gamma,
        "weibull": delays.Weibull,
        "pareto": delays.Pareto,
        "empirical": MeasuredDelays,
        "values": delays.Empirical,
        "sum": delays.Sum,
        "mixture": delays.Mixture,
        "floor": Floor,
        "scale": delays.Scale,
        "schedule": delays.Schedule,
        "drift": delays.DelayDrift,
        "day": delays.DayCycle,
        "outage": delays.Outage,
        "markov": markov,
    },
)
"""The kinds of laws. Any kind also takes `floor_s`."""

EXCHANGE_DELAYS = DELAYS.including(halves=Halves)
"""Those of `latency.delay`: it holds for all clients, so it alone can differ by a client's place among them."""


@dataclass(frozen=True)
class LawReader:
    """Reads the laws of one client's link."""

    client: ClientPlace
    rng_for: Callable[[str], np.random.Generator]
    """key -> the generator of what is drawn once for that key of the client's link."""
    alike: dict[str, Any] = field(default_factory=dict)
    """Shared by all readers of an experiment: the records of keys whose tables say the same of every client, once they
    were read and tried."""

    kinds: Registry = field(default_factory=lambda: DELAYS)
    """The kinds that a table, and one within it, may name."""

    def read(self, table: Mapping[str, Any], key: str) -> Delay:
        """The law a table describes; ConfigError naming the key. Draws of the whole must not be negative."""
        if (record := self.alike.get(key)) is not None:
            return self._law_of(record, table, key)
        record = self._record(table, key)
        law = self._law_of(record, table, key)
        draws = _drawn(law, key)
        if np.isnan(draws).any():
            raise ConfigError(f"{key}: draws NaN, which is no delay")
        if not np.isfinite(draws).all():
            raise ConfigError(f"{key}: draws delays too great to be numbers; its parameters are out of proportion")
        if law.minimum_s < 0 or draws.min() < 0:
            raise ConfigError(f"{key}: can draw a negative delay; floor_s = 0.0 (or more) keeps it from that")
        parts = [part for value in table.values() for part in (value if isinstance(value, list) else [value])]
        if table["kind"] in self.kinds and not any(isinstance(part, dict) for part in parts):  # drawn for each client
            self.alike[key] = record
        return law

    def _record(self, table: Any, key: str) -> Any:
        return read_kind(self.kinds, table, key, read_value=self._value, other_keys=["floor_s"])

    def _law_of(self, record: Any, table: Any, key: str) -> Delay:
        law: Delay = record
        if isinstance(record, MeasuredDelays | Halves):
            law = made(record.law, {"client": self.client}, key)
        _check_is_law(law, key)
        if isinstance(law, MarkovDelay):
            law = replace(law, path=int(self.rng_for(f"{key}.path").integers(1 << 63)))
        if "floor_s" not in table or isinstance(law, Floor):
            return law
        floor_s = self._value(float, table["floor_s"], f"{key}.floor_s")
        floored: Delay = made(Floor, {"of": law, "floor_s": floor_s}, key)
        return floored

    def _law(self, table: Any, key: str) -> Delay:
        return self._law_of(self._record(table, key), table, key)

    def _value(self, annotation: Any, value: Any, key: str) -> Any:
        if annotation is Delay:
            return self._law(value, key)
        if annotation == tuple[Delay, ...]:
            if not isinstance(value, list):
                raise ConfigError(f"{key} = {value!r}: must be a list of tables")
            return tuple(self._law(part, f"{key}.{place}") for place, part in enumerate(value))
        if getattr(annotation, "__origin__", annotation) is float and isinstance(value, dict):
            return float(sampled(self._law(value, key), self.rng_for(key), 1)[0])
        return plain_value(annotation, value, key)


def plan_training_times(table: dict[str, Any], client_ids: Sequence[str], seed: int) -> dict[str, Delay]:
    """Each client's law of the seconds that training takes; empty for an empty table. ConfigError names the key."""
    if not table:
        return {}
    everyone, alike = frozenset(client_ids), dict[str, Any]()
    laws = {}
    for place, client_id in enumerate(client_ids):
        rng_for = partial(generator, seed, "training-parameter", client_id)
        reader = LawReader(ClientPlace(client_id, place, everyone), rng_for, alike)
        laws[client_id] = reader.read(table, "workload.training_time")
    return laws


def _check_is_law(made_by_kind: object, key: str) -> None:
    """ConfigError where what a user's kind made has not all that a law offers."""
    offered = (name for name in vars(Delay) if not name.startswith("_"))
    kind, own = type(made_by_kind), getattr(made_by_kind, "__dict__", ())  # not `hasattr`, which would compute
    if missing := [f"`{name}`" for name in offered if not (hasattr(kind, name) or name in own)]:
        name = kind.__name__
        raise ConfigError(f"{key}: {name} has no {' and '.join(missing)}; derive it from pausefl.SampledDelay")


def _drawn(law: Delay, key: str) -> FloatArray:
    """A few draws: parameters may be sound one by one and absurd together, and the law a user's own."""
    try:
        draws, again = (sampled(law, np.random.default_rng(0), _TRIED) for _ in range(2))
        if not np.array_equal(draws, again, equal_nan=True):
            raise ConfigError("draws differ where `rng` is the same; it must be the only source of chance")
        return draws
    except OverflowError:
        return np.full(_TRIED, np.inf)
    except ConfigError as error:
        raise ConfigError(f"{key}: {error}") from None
    except OWN_CODE_ERRORS as error:
        raise ConfigError(f"{key}: {with_place(error)}") from error
