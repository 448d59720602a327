"""Seeds the generators of Python, numpy and torch that all code of a process shares. Users' code may draw from them."""

import random
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext

import numpy as np

from pausefl_proto.draws import stable_hash

_ONE_AT_A_TIME = threading.RLock()


@contextmanager
def seeded_generators(seed: int, *, waits: bool = True) -> Iterator[bool]:
    """Make draws within the block depend on `seed` alone. After it, the generators go on as if they had not drawn.

    One thread at a time has such a block, but others may draw from the same generators meanwhile. Without `waits`, the
    block begins at once, and has seeded nothing if another thread has one. Yields whether it has.
    """
    if not _ONE_AT_A_TIME.acquire(blocking=waits):
        yield False
        return
    with ExitStack() as afterwards:
        afterwards.callback(_ONE_AT_A_TIME.release)
        afterwards.callback(random.setstate, random.getstate())
        random.seed(seed)
        afterwards.callback(np.random.set_state, np.random.get_state())  # noqa: NPY002  # users' code may draw from it
        np.random.seed(seed % (1 << 32))  # noqa: NPY002  # as above
        # Not CUDA's generator, which a process that forks later must not start. Synthetic models need no torch at all.
        if generator := getattr(sys.modules.get("torch"), "default_generator", None):
            afterwards.callback(generator.set_state, generator.get_state())
            generator.manual_seed(seed)
        yield True


def seeded_server_code(seed: int, purpose: str, key: object, *code: object) -> AbstractContextManager[object]:
    """`seeded_generators` if `code` is not all ours, which draws from no shared generator: seeding takes time."""
    is_ours = all(type(each).__module__.startswith(("pausefl_server.", "builtins")) for each in code)
    return nullcontext() if is_ours else seeded_generators(stable_hash(seed, purpose, str(key)))
