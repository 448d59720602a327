"""Random draws as functions of (seed, purpose, key). They do not depend on the order of events.

Privacy noise is not drawn here: it uses the operating system's entropy (`pausefl_client.privacy.mechanism`).
"""

import hashlib

import numpy as np


def generator(seed: int, purpose: str, *key: int | str) -> np.random.Generator:
    """A new generator for one purpose and key, such as `generator(seed, "delay", client_id, round)`.

    The parts of the key are hashed with their types and lengths, so ("a", "bc") and ("ab", "c") differ.
    """
    return np.random.Generator(np.random.PCG64(np.frombuffer(_digest(seed, purpose, *key), "<u4", 4)))


def stable_hash(seed: int, purpose: str, text: str) -> int:
    """A 63-bit hash that depends only on the arguments. It breaks ties between clients, for example."""
    return int.from_bytes(_digest(seed, purpose, text)[:8], "little") >> 1


def _digest(seed: int, purpose: str, *key: int | str) -> bytes:
    return hashlib.sha256(repr((seed, purpose, *key)).encode()).digest()
