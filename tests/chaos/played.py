"""What came of a play."""

from collections import Counter
from dataclasses import dataclass, field

from chaos.schedule import Fault


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
