"""Seeds the generators of Python, numpy and torch that all code of a process shares. Users' code may draw from them."""

import random
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np


@contextmanager
def seeded_generators(seed: int) -> Iterator[None]:
    """Make draws within the block depend on `seed` alone. After it, the generators go on as if they had not drawn."""
    with ExitStack() as afterwards:
        afterwards.callback(random.setstate, random.getstate())
        random.seed(seed)
        afterwards.callback(np.random.set_state, np.random.get_state())  # noqa: NPY002  # users' code may draw from it
        np.random.seed(seed % (1 << 32))  # noqa: NPY002  # as above
        if (torch := sys.modules.get("torch")) is not None:  # a client with a synthetic model needs no torch
            of_cpu = torch.default_generator  # not CUDA's, which a process that forks later must not start
            afterwards.callback(of_cpu.set_state, of_cpu.get_state())
            of_cpu.manual_seed(seed)
        yield
