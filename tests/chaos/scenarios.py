"""The scenarios by name, and the order in which they are played."""

import random
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, count, repeat
from pathlib import Path

from chaos.federation import Federation, Shape
from chaos.whole_run import RunShape, WholeRun

Play = Federation | WholeRun
"""A run to its last round, with faults on the way."""


def _federation(seed: int, folder: Path) -> Play:
    rng = random.Random(f"shape {seed}")
    shape = Shape(
        rounds=rng.choice((200, 400)),
        faults=1200,
        hosts=12,
        clients_each=2,
        m=rng.choice((4, 8, 16)),
        pause_s=0.04,
        policy=rng.choice(("random", "pause")),
        delay_s=rng.choice((0.02, 0.1, 0.2)),
        model_bytes=rng.choice((4_000, 20_000, 1_200_000)),
        mode=rng.choice(("rounds", "rounds", "asynchronous")),
        rule=rng.choice(("fedbuff", "fedasync", "fedat")),
    )
    return Federation(seed, shape, folder)


_STORM = Shape(250, faults=60, hosts=20, clients_each=50, m=20, pause_s=0.5, line_weight=0.0, clients_weight=1.0)
_PROCESSES = RunShape(rounds=150, faults=10, pause_s=1.0, is_learning=False)
_LEARNING = RunShape(rounds=80, faults=10, pause_s=1.0, is_learning=True)
_DISK = RunShape(rounds=150, faults=8, pause_s=1.0, is_learning=False, disk_bytes=48 << 20)
SCENARIOS: Mapping[str, Callable[[int, Path], Play]] = {
    "federation": _federation,
    "storm": lambda seed, folder: Federation(seed, _STORM, folder),
    "processes": lambda seed, folder: WholeRun(seed, _PROCESSES, folder),
    "learning": lambda seed, folder: WholeRun(seed, _LEARNING, folder),
    "disk": lambda seed, folder: WholeRun(seed, _DISK, folder),
}
"""Name -> (seed, folder) -> the play."""


def in_turn(first_seed: int) -> Iterator[tuple[str, int]]:
    """Scenarios and seeds without end. Each other scenario comes once, after a "federation", which has most faults."""
    others = (name for other in SCENARIOS if other != "federation" for name in ("federation", other))
    return zip(chain(others, repeat("federation")), count(first_seed), strict=False)
