"""Presence by round: groups that join and leave, and clients that come and go. Pure functions of a seed."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol, Self

import numpy as np

from pausefl.experiment.measured.formats import Row, bytes_of, csv_table, unpickled
from pausefl.experiment.measured.reading import quoted
from pausefl_process.plugins import in_one_line, name_of
from pausefl_process.registry import Registry
from pausefl_proto.arrays import BoolArray, form
from pausefl_proto.draws import generator
from pausefl_proto.errors import ConfigError
from pausefl_proto.number_types import Bounded, Count, Positive, Share

_SAY_ROUND_S = "; add round_s, how many seconds one round stands for"


class Availability(Protocol):
    """The rule that says when a client can be reached, within the rounds in which it takes part."""

    def on(self, client_id: str, rounds: int, rng: np.random.Generator) -> BoolArray:
        """(rounds,) whether the client can be reached in rounds 1, 2, ... `rng` is the client's own generator."""


@dataclass(frozen=True)
class Always:
    """A client that can be reached in every round."""

    def on(self, client_id: str, rounds: int, rng: np.random.Generator) -> BoolArray:
        """True for every round."""
        return np.ones(rounds, np.bool_)


@dataclass(frozen=True)
class Cycle(Bounded):
    """Clients are on for some rounds, then off for some, from round 1."""

    on_rounds: Count
    """How many rounds they are on."""
    off_rounds: Count
    """How many rounds they are off."""

    def on(self, client_id: str, rounds: int, rng: np.random.Generator) -> BoolArray:
        """(rounds,) the cycle, which is the same for every client."""
        period = min(self.on_rounds + self.off_rounds, rounds)  # a longer one may be more than numpy can divide by
        return np.arange(rounds) % period < self.on_rounds


@dataclass(frozen=True)
class MarkovAvailability(Bounded):
    """Clients are on in round 1. Then each leaves or returns with these probabilities (Gilbert's two states)."""

    leave_probability: Share
    """The probability that a client that is on is off in the next round."""
    return_probability: Share
    """The probability that a client that is off is on in the next round."""

    def on(self, client_id: str, rounds: int, rng: np.random.Generator) -> BoolArray:
        """(rounds,) the states of one client, which do not depend on other clients."""
        on, u = np.ones(rounds, np.bool_), rng.random(rounds)
        for t in range(1, rounds):
            on[t] = u[t] >= self.leave_probability if on[t - 1] else u[t] < self.return_probability
        return on


@dataclass(frozen=True)
class Trace(Bounded):
    """A file that says when clients are on. A CSV file has the columns client_id, round and on (1 or 0). A row holds
    until the client's next row. With `round_s`, times replace rounds, and FedScale's pickled traces can be read."""

    path: str
    """The file, relative to the experiment's file."""
    round_s: Positive | None = None
    """How many seconds of the file one round covers. The column is then time_s in place of round."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self._changes  # read once for all clients; ValueError that names the file and the line

    def on(self, client_id: str, rounds: int, rng: np.random.Generator) -> BoolArray:
        """(rounds,) whether the client is on. It is on before its first row, and always if it is not in the file."""
        on = np.ones(rounds, np.bool_)
        for when, is_on in sorted(self._changes.get(client_id, {}).items()):
            on[(int(when) if self.round_s is None else round_of(when, self.round_s)) - 1 :] = is_on
        return on

    @property
    def named(self) -> frozenset[str]:
        """The clients that the file names."""
        return frozenset(self._changes)

    @cached_property
    def _changes(self) -> dict[str, dict[float, bool]]:
        """By client: round or, with `round_s`, time in the file -> whether the client is on from then."""
        try:
            data = bytes_of(Path(self.path))
            return self._of_fedscale(data) if data.startswith(b"\x80") else self._of_csv(*csv_table(data))
        except ValueError as error:
            raise ValueError(f'path = "{self.path}": {error}') from None

    def _of_csv(self, header: list[str], rows: list[Row]) -> dict[str, dict[float, bool]]:
        when, other = ("round", "time_s") if self.round_s is None else ("time_s", "round")
        if missing := next((name for name in ("client_id", when, "on") if name not in header), ""):
            hint = _SAY_ROUND_S if other == "time_s" else "; leave round_s out"
            found = f'line 1 has no column "{missing}" (it has: {", ".join(header)})'
            raise ValueError(f"{found}{hint if missing == when and other in header else ''}")
        changes: dict[str, dict[float, bool]] = {}
        for line, row in rows:
            cells = dict.fromkeys(header, "") | dict(zip(header, row, strict=False))
            t = cells[when] if self.round_s is None else str(round_of(cells[when], self.round_s))
            for name, is_good, due in (
                ("client_id", bool(cells["client_id"]), "the id of a client"),
                (when, t.isdecimal() and int(t) > 0, f"a number from {'0, seconds of the run' if self.round_s else 1}"),
                ("on", cells["on"] in ("0", "1"), "1 or 0"),
            ):
                if not is_good:
                    raise ValueError(f"line {line} has {quoted(cells[name])} for {name}: must be {due}")
            changes.setdefault(cells["client_id"], {})[float(cells[when])] = cells["on"] == "1"
        return changes

    def _of_fedscale(self, data: bytes) -> dict[str, dict[float, bool]]:
        """The changes in a FedScale trace, which has them in seconds. Before its first change, a device is inactive."""
        if self.round_s is None:
            raise ValueError(f"is a trace of FedScale, in seconds{_SAY_ROUND_S}")
        try:
            changes = {}
            for client, trace in unpickled(data).items():
                on, off = ([float(s) for s in trace[state]] for state in ("active", "inactive"))
                if not all(round_of(s, self.round_s) for s in (*on, *off)):
                    raise ValueError("its times must be seconds from 0, the start of the run")
                changes[str(client)] = {**dict.fromkeys([0.0, *off], False), **dict.fromkeys(on, True)}
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ValueError(f"is no trace of FedScale ({in_one_line(error)})") from None
        return changes


def round_of(time_s: str | float, round_s: float) -> int:
    """The round in which a time lies. 0 if it is no time since the start of a run, such as seconds of the epoch."""
    try:
        return int(float(time_s) // round_s) + 1 if 0 <= float(time_s) < 1e8 else 0
    except (ValueError, OverflowError):
        return 0


AVAILABILITIES = Registry(
    "availabilities",
    {"always": Always, "cycle": Cycle, "markov": MarkovAvailability, "trace": Trace},
    base="pausefl.experiment.population.availability:Availability",
)


@dataclass(frozen=True)
class Presence:
    """The clients that are present in each round."""

    client_ids: tuple[str, ...]
    table: BoolArray
    """(rounds, clients) whether the client is present."""

    def __post_init__(self) -> None:
        if not self.table[0].any():
            raise ConfigError("clients.groups: no client is there in round 1")

    @classmethod
    def of_all(cls, client_ids: Iterable[str]) -> Self:
        """The presence of all these clients in every round."""
        ids = tuple(client_ids)
        return cls(ids, np.ones((1, len(ids)), np.bool_))

    def at(self, round: int) -> frozenset[str]:
        """The clients that are present in this round. After the table's last round, its last row holds."""
        row = self.table[min(round, len(self.table)) - 1]
        return frozenset(client_id for client_id, is_on in zip(self.client_ids, row, strict=True) if is_on)

    def changes(self, round: int) -> tuple[list[str], list[str]]:
        """The clients that join, and the clients that leave, just before this round."""
        if round > len(self.table):
            return [], []
        now = self.table[round - 1]
        before = self.table[round - 2] if round > 1 else np.zeros_like(now)
        come, gone = now & ~before, before & ~now
        return [self.client_ids[k] for k in np.flatnonzero(come)], [self.client_ids[k] for k in np.flatnonzero(gone)]


def reached(availability: Availability, client_id: str, rounds: int, seed: int) -> BoolArray:
    """(rounds,) whether a client can be reached: a copy of what `Availability.on` returns for this seed and client.

    Raises ConfigError if that is no (rounds,) bool array, or another one the next time.
    """
    purpose = seed, "availability", client_id
    on: object = availability.on(client_id, rounds, generator(*purpose))
    method = f"clients.groups: {name_of(availability)}.on"
    if not (isinstance(on, np.ndarray) and on.dtype == np.bool_ and on.shape == (rounds,)):
        raise ConfigError(f"{method}: must return a bool array of shape ({rounds},); returned {form(on)}")
    on, is_own = on.copy(), type(availability) not in AVAILABILITIES.values()
    if is_own and not np.array_equal(on, availability.on(client_id, rounds, generator(*purpose))):
        raise ConfigError(f"{method}: differs where `rng`, its only source of chance, is the same")
    return on
