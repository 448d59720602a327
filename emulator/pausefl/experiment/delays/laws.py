"""Reads latency laws from TOML tables, such as `{ kind = "lognormal", mean_s = 0.2, sd_s = 0.1 }`, also nested ones.

Any decimal key of a law also accepts a law: a distribution, sampled once per client.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from pausefl.experiment.delay_laws import changing, combined, laws
from pausefl.experiment.delay_laws.base import Delay, sampled
from pausefl.experiment.delay_laws.changing import MarkovDelay
from pausefl.experiment.delay_laws.combined import Floor, published_delay
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
        """The law of one client. Raises ValueError that names the key."""
        return published_delay(client.place, len(client.client_ids), floor_s=self.floor_s, sd_s=self.sd_s)


def markov(good: Delay, bad: Delay, to_bad: PositiveShare, to_good: PositiveShare) -> MarkovDelay:
    """A link with two states, good and bad, that change at random between rounds (Gilbert and Elliott).

    Each client has its own path through the states, so `path` is no key of the table.
    """
    return MarkovDelay(good, bad, to_bad, to_good)


DELAYS = Registry(
    "delays",
    {
        "none": laws.NoDelay,
        "constant": laws.Constant,
        "normal": laws.Normal,
        "lognormal": laws.LogNormal,
        "exponential": laws.Exponential,
        "gamma": laws.Gamma,
        "weibull": laws.Weibull,
        "pareto": laws.Pareto,
        "empirical": MeasuredDelays,
        "values": laws.Values,
        "sum": combined.Sum,
        "mixture": combined.Mixture,
        "floor": Floor,
        "scale": combined.Scale,
        **{law.kind: law for law in (changing.Schedule, changing.DelayDrift, changing.DayCycle, changing.Outage)},
        "markov": markov,
    },
)
"""The kinds of laws. Any kind also takes `floor_s`."""

EXCHANGE_DELAYS = replace(DELAYS, built_in={**DELAYS.built_in, "halves": Halves})
"""The kinds of laws for `latency.delay`. It holds for all clients, so it alone can depend on a client's position."""


@dataclass(frozen=True)
class LawReader:
    """Reads the laws of one client's link."""

    client: ClientPlace
    rng_for: Callable[[str], np.random.Generator]
    """key -> the generator for values that are drawn once per client for that key."""
    alike: dict[str, Any] = field(default_factory=dict)
    """Records by key that are the same for every client, once checked. All readers of an experiment share them."""
    kinds: Registry = field(default_factory=lambda: DELAYS)
    """The kinds that a table, and the tables within it, may name."""

    def read(self, table: Mapping[str, Any], key: str) -> Delay:
        """The law that a table describes. ConfigError names the key. The whole law must not draw negative delays."""
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
        # A decimal key with a table of its own is sampled for each client.
        if table["kind"] in self.kinds and not any(isinstance(part, dict) for part in parts):
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


def law_readers(client_ids: Sequence[str], seed: int, purpose: str) -> Callable[[str], LawReader]:
    """A function of a client's id that makes the reader of its laws, which draws their parameters for `purpose`."""
    places, everyone, alike = {c: place for place, c in enumerate(client_ids)}, frozenset(client_ids), dict[str, Any]()
    return lambda c: LawReader(ClientPlace(c, places[c], everyone), partial(generator, seed, purpose, c), alike)


def plan_training_times(table: dict[str, Any], client_ids: Sequence[str], seed: int) -> dict[str, Delay]:
    """The law of each client's training time in seconds, by id. Empty for an empty table. ConfigError names the key."""
    reader = law_readers(client_ids, seed, "training-parameter")
    return {c: reader(c).read(table, "workload.training_time") for c in client_ids} if table else {}


def _check_is_law(made_by_kind: object, key: str) -> None:
    """Raise ConfigError if the object that a user's kind made lacks a method or property of `Delay`."""
    offered = (name for name in vars(Delay) if not name.startswith("_"))
    kind, own = type(made_by_kind), getattr(made_by_kind, "__dict__", ())  # `hasattr(made_by_kind, name)` would compute
    if missing := [f"`{name}`" for name in offered if not (hasattr(kind, name) or name in own)]:
        name = kind.__name__
        raise ConfigError(f"{key}: {name} has no {' and '.join(missing)}; derive it from pausefl.SampledDelay")


def _drawn(law: Delay, key: str) -> FloatArray:
    """A few draws, which test a law. It may be the user's own, or have parameters that do not fit together."""
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
