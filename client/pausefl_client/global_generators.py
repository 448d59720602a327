"""Seeds the generators of Python, numpy and torch that all code of a process shares. Users' code may draw from them."""

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np


def seed_generators(seed: int) -> None:
    """Seed the shared generators. Of torch's, only the CPU's: a process that forks later must not start CUDA."""
    random.seed(seed)
    np.random.seed(seed % (1 << 32))  # noqa: NPY002  # the generator that users' code may draw from
    if (torch := sys.modules.get("torch")) is not None:  # a client with a synthetic model needs no torch
        torch.default_generator.manual_seed(seed)


def states() -> tuple[Any, ...]:
    """The states of the shared generators of Python, numpy and torch."""
    torch = sys.modules.get("torch")
    of_torch = () if torch is None else (torch.default_generator.get_state(),)
    return random.getstate(), np.random.get_state(), *of_torch  # noqa: NPY002  # as above


@contextmanager
def seeded_generators(seed: int) -> Iterator[None]:
    """Make draws within the block depend on `seed` alone. After it, the generators go on as if they had not drawn."""
    of_python, of_numpy, *of_torch = states()
    seed_generators(seed)
    try:
        yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)  # noqa: NPY002  # as above
        for state in of_torch:
            sys.modules["torch"].default_generator.set_state(state)
