"""Latency laws from TOML tables: `{ kind = "lognormal", mean_s = 0.2, sd_s = 0.1 }` and what is built of such tables.

Any decimal key of a law also accepts a law: a distribution, sampled once per client.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pausefl import delays
from pausefl.config.delays.files import ClientPlace, MeasuredDelays
from pausefl.config.kinds import made, plain_value, read_kind
from pausefl.delays import Delay, Floor, MarkovDelay, published_delay, sampled
from pausefl_process.plugins import OWN_CODE_ERRORS, with_place
from pausefl_process.registry import Registry
from pausefl_proto.arrays import FloatArray
from pausefl_proto.errors import ConfigError

_TRIED = 16


@dataclass(frozen=True)
class Halves:
    """The published latencies: normal, floored at τ_min, with a fast and a slow half of the clients."""

    floor_s: float = 0.05
    """The least delay, τ_min."""
    sd_s: float = 0.05
    """The standard deviation before the floor."""

    def law(self, client: ClientPlace) -> Floor:
        """The law of one client; ValueError that names the key."""
        return published_delay(client.place, len(client.client_ids), floor_s=self.floor_s, sd_s=self.sd_s)


def markov(good: Delay, bad: Delay, to_bad: float, to_good: float) -> MarkovDelay:
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

    def read(self, table: object, key: str, kinds: Registry = DELAYS) -> Delay:
        """The law a table describes; ConfigError naming the key. Draws of the whole must not be negative."""
        law = self._law(table, key, kinds)
        draws = _drawn(law, key)
        if np.isnan(draws).any():
            raise ConfigError(f"{key}: draws NaN, which is no delay")
        if not np.isfinite(draws).all():
            raise ConfigError(f"{key}: draws delays too great to be numbers; its parameters are out of proportion")
        if law.minimum_s < 0 or draws.min() < 0:
            raise ConfigError(f"{key}: can draw a negative delay; floor_s = 0.0 (or more) keeps it from that")
        return law

    def _law(self, table: Any, key: str, kinds: Registry = DELAYS) -> Delay:
        read = read_kind(kinds, table, key, read_value=self._value, other_keys=["floor_s"])
        law: Delay = made(read.law, {"client": self.client}, key) if isinstance(read, MeasuredDelays | Halves) else read
        _check_is_law(law, key)
        if isinstance(law, MarkovDelay):
            law = replace(law, path=int(self.rng_for(f"{key}.path").integers(1 << 63)))
        if "floor_s" not in table or isinstance(law, Floor):
            return law
        floored: Delay = made(
            Floor, {"of": law, "floor_s": self._value(float, table["floor_s"], f"{key}.floor_s")}, key
        )
        return floored

    def _value(self, annotation: Any, value: Any, key: str) -> Any:
        if annotation is Delay:
            return self._law(value, key)
        if annotation == tuple[Delay, ...]:
            if not isinstance(value, list):
                raise ConfigError(f"{key} = {value!r}: must be a list of tables")
            return tuple(self._law(part, f"{key}.{place}") for place, part in enumerate(value))
        if annotation is float and isinstance(value, dict):
            return float(sampled(self._law(value, key), self.rng_for(key), 1)[0])
        return plain_value(annotation, value, key)


def _check_is_law(made_by_kind: object, key: str) -> None:
    """ConfigError where what a user's kind made has not all that a law offers."""
    offered = (name for name in vars(Delay) if not name.startswith("_"))
    kind, own = type(made_by_kind), getattr(made_by_kind, "__dict__", ())  # not `hasattr`, which would compute
    if missing := [f"`{name}`" for name in offered if not (hasattr(kind, name) or name in own)]:
        name = kind.__name__
        raise ConfigError(f"{key}: {name} has no {' and '.join(missing)}; derive it from pausefl.delays.SampledDelay")


def _drawn(law: Delay, key: str) -> FloatArray:
    """A few draws: parameters may be sound one by one and absurd together, and the law a user's own."""
    try:
        return sampled(law, np.random.default_rng(0), _TRIED)
    except OverflowError:
        return np.full(_TRIED, np.inf)
    except ConfigError as error:
        raise ConfigError(f"{key}: {error}") from None
    except OWN_CODE_ERRORS as error:
        raise ConfigError(f"{key}: {with_place(error)}") from error
