"""The schedule of faults, endless and determined by the seed alone, and the counts of a play."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

Side = Literal["up", "down"]
"""The direction of bytes: up from clients to the server, or down."""


@dataclass(frozen=True)
class Choice:
    """A kind of fault, its weight relative to others, and its possible targets."""

    kind: str
    weight: float
    targets: Sequence[str]


@dataclass(frozen=True)
class Fault:
    """One fault of a schedule."""

    number: int
    after_s: float
    """The time since the previous fault in seconds."""
    kind: str
    target: str
    side: Side
    size: float
    """In [0, 1): how strong or how long, depending on the kind."""

    def __str__(self) -> str:
        return f"{self.number} +{self.after_s:.3f} s {self.kind} {self.target} {self.side} {self.size:.3f}"


def schedule(seed: int, menu: Sequence[Choice], pause_s: float) -> Iterator[Fault]:
    """Faults without end, `pause_s` seconds apart on average."""
    rng = random.Random(seed)
    weights = [choice.weight for choice in menu]
    number = 0
    while True:
        number += 1
        (choice,) = rng.choices(menu, weights)
        yield Fault(
            number,
            after_s=rng.expovariate(1 / pause_s),
            kind=choice.kind,
            target=rng.choice(choice.targets),
            side=rng.choice(("up", "down")),
            size=rng.random(),
        )


@dataclass
class Played:
    """Counts of one play."""

    rounds: int = 0
    faults: "Counter[str]" = field(default_factory=Counter)
    """The faults that struck, by kind."""
    checks: "Counter[str]" = field(default_factory=Counter)
    """By invariant, how often it was checked and held."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Kinds of faults that are impossible on this machine, and why."""
    struck: list[Fault] = field(default_factory=list)
    """The schedule so far, including faults that found no target."""
    reasons: list[str] = field(default_factory=list)
    """Why client processes ended by themselves."""
