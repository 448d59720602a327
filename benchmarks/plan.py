"""The plan of the measurements: cells. Several systems play each cell in turn, several times."""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Window:
    """The measured part of a play: rounds after the warm-up, until both `rounds_min` and `seconds` are reached."""

    warm_up: int = 3
    warm_up_s: float = 1.0
    """Seconds from the first round's beginning. The warm-up ends when this and `warm_up` rounds are over."""
    seconds: float = 2.0
    rounds_min: int = 2
    within_s: float = 300.0
    """A play that takes longer than this in total has failed."""


TRAINING = "small MNIST"
"""The cell with real training."""
SEEDS = 8
"""The least number of plays of this cell. Accuracy varies more than times do."""
_SIZES = {"4 kB": 4_000, "1 MB": 1_000_000, "10 MB": 10_000_000}
_WARM_UP = {"4 kB": 10, "1 MB": 3, "10 MB": 1}
_SIMULATED = (
    ("small MNIST", "small_mnist", 30, 5, 300),
    ("large MNIST", "large_mnist", 300, 15, 100),
    ("small CIFAR-10", "small_cifar", 30, 5, 4),
)
# A SuperLink starts a process for each message, so a round takes 15 seconds or more. Only the second round is measured,
# since nodes install the app in the first.
_ONE_ROUND = Window(warm_up=1, warm_up_s=0.0, seconds=0.0, rounds_min=1)
# With its default settings, APPFL takes more than a second for each update.
_FEW_STEPS = Window(warm_up=2, warm_up_s=0.0, seconds=10.0)
_WINDOWS = {"superlink": _ONE_ROUND, "appfl-default": _FEW_STEPS}


@dataclass(frozen=True)
class Cell:
    """One federation that the systems play."""

    name: str
    clients: int
    per_round: int
    model_bytes: int
    window: Window
    rated_round: int = 0
    """The last round, after which accuracy is measured. 0: nothing is trained."""
    preset: str = ""
    """The preset that is trained. Empty: nothing is trained."""
    has_noise: bool = False
    buffer: int = 0
    """K, the number of updates in an asynchronous step. 0: the cell has rounds."""
    part: str = "benchmarks"
    """The name, without .jsonl, of the file in docs/results that stores its plays."""


CELLS = {
    cell.name: cell
    for cell in (
        *(
            Cell(f"{clients} clients, {size}", clients, clients, model_bytes, Window(_WARM_UP[size]))
            for clients in (10, 30)
            for size, model_bytes in _SIZES.items()
        ),
        Cell(TRAINING, 30, 5, 0, Window(), rated_round=300, preset="small_mnist"),
        *(
            Cell(
                f"simulated {name}{', noise' * noise}",
                clients,
                m,
                0,
                Window(),
                rounds,
                preset,
                noise,
                part="simulators",
            )
            for name, preset, clients, m, rounds in _SIMULATED
            for noise in (False, True)
        ),
        *(
            Cell(f"10 clients, 4 kB, K = {k}", 10, 10, 4_000, Window(_WARM_UP["4 kB"]), buffer=k, part="asynchronous")
            for k in (1, 5)
        ),
    )
}
"""The cells by name."""


def cells_of(part: str) -> list[str]:
    """The cells of a results file. Cells of "simulators" have no network, those of "asynchronous" no rounds."""
    return [cell.name for cell in CELLS.values() if cell.part == part]


@dataclass(frozen=True)
class Turn:
    """One play that is due."""

    cell: Cell
    repetition: int
    system: str
    window: Window


def turns(cells: list[str], repetitions: int) -> Iterator[Turn]:
    """Yields all plays, cell after cell in each repetition. Each repetition begins with another system."""
    for repetition in range(1, max(repetitions, SEEDS) + 1):
        for cell in (CELLS[name] for name in cells if repetition <= repetitions or name == TRAINING):
            systems = _systems(cell, repetition)
            first = (repetition - 1) % len(systems)
            for system in systems[first:] + systems[:first]:
                yield Turn(cell, repetition, system, _WINDOWS.get(system, cell.window))


def _systems(cell: Cell, repetition: int) -> list[str]:
    if cell.part == "simulators":
        return ["virtual", "pfl"]
    if cell.part == "asynchronous":
        return ["pausefl", "appfl", *(["appfl-default"] if (repetition, cell.buffer) == (1, 1) else [])]
    # These two are too slow to be played in every repetition.
    simulation = ["simulation"] if repetition <= (1 if cell.name == TRAINING else 2) else []
    superlink = ["superlink"] if (repetition, cell.name) == (1, "10 clients, 4 kB") else []
    return ["pausefl", "flower-1.17", "sockets", *simulation, *superlink]
