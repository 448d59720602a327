"""Random draws as functions of (seed, purpose, key), never of the order in which things happen.

Privacy noise does not come from here: it takes the operating system's entropy (`pausefl_client.privacy.mechanism`).
"""

import hashlib

import numpy as np


def generator(seed: int, purpose: str, *key: int | str) -> np.random.Generator:
    """A fresh generator for one purpose, e.g. `generator(seed, "delay", client_id, round)`.

    The key's parts are hashed with their types and lengths, so ("a", "bc") and ("ab", "c") differ.
    """
    text = repr((seed, purpose, *key)).encode()
    return np.random.Generator(np.random.PCG64(int.from_bytes(hashlib.sha256(text).digest()[:16], "little")))


def stable_hash(seed: int, purpose: str, text: str) -> int:
    """A 63-bit integer that depends on nothing but its arguments; breaks ties between clients."""
    return int.from_bytes(hashlib.sha256(repr((seed, purpose, text)).encode()).digest()[:8], "little") >> 1
