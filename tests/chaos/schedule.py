"""What happens when: an endless list of faults that the seed alone decides, and what came of those that were played."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

Side = Literal["up", "down"]
"""Which way bytes go: from clients to the server, or back."""


@dataclass(frozen=True)
class Choice:
    """A kind of fault, how often it comes relative to the others, and whom it may strike."""

    kind: str
    weight: float
    targets: Sequence[str]


@dataclass(frozen=True)
class Fault:
    """One fault of a schedule."""

    number: int
    after_s: float
    """Since the fault before."""
    kind: str
    target: str
    side: Side
    size: float
    """In [0, 1): how much or how long, as the kind says."""

    def __str__(self) -> str:
        return f"{self.number} +{self.after_s:.3f} s {self.kind} {self.target} {self.side} {self.size:.3f}"


def schedule(seed: int, menu: Sequence[Choice], pause_s: float) -> Iterator[Fault]:
    """Faults without end, `pause_s` apart on average."""
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
    """Those that struck, by kind."""
    checks: "Counter[str]" = field(default_factory=Counter)
    """How often each invariant was found to hold."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Kinds of faults that cannot be had here, and why."""
    struck: list[Fault] = field(default_factory=list)
    """The schedule so far, also those that found nothing to strike."""
    reasons: list[str] = field(default_factory=list)
    """Why client processes ended by themselves."""
