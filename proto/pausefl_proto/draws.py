"""Random draws as functions of (seed, purpose, key). They do not depend on the order of events.

Privacy noise is not drawn here: it uses the operating system's entropy (`pausefl_client.privacy.mechanism`).
"""

import hashlib
from collections.abc import Iterable, Iterator
from itertools import islice, permutations

import numpy as np
import numpy.typing as npt
from numpy.random.bit_generator import ISeedSequence

_AT_ONCE = 256
"""How many generators are seeded at once."""
_Words = npt.NDArray[np.uint32]
_LEFT, _RIGHT, _HALF = map(np.uint32, (0xCA01F9DD, 0x4973F715, 16))
_INTO, _OUT = (
    np.array([[first * factor**power % 2**32] for power in range(n)], np.uint32)
    for first, factor, n in ((0x43B0D7E5, 0x931E8875, 17), (0x8B51F9DD, 0x58F38DED, 9))
)


def generator(seed: int, purpose: str, *key: int | str) -> np.random.Generator:
    """A new generator for one purpose and key, such as `generator(seed, "delay", client_id, round)`.

    The parts of the key are hashed with their types and lengths, so ("a", "bc") and ("ab", "c") differ.
    """
    return np.random.Generator(np.random.PCG64(np.frombuffer(_digest(seed, purpose, *key), "<u4", 4)))


def generators(seed: int, purpose: str, keys: Iterable[tuple[int | str, ...]]) -> Iterator[np.random.Generator]:
    """The `generator` of each key. Many are seeded at once, which is several times faster."""
    digests = (_digest(seed, purpose, *key) for key in keys)
    while some := b"".join(islice(digests, _AT_ONCE)):
        for words in _seeds(np.frombuffer(some, "<u4").reshape(-1, 8)[:, :4]):
            yield np.random.Generator(np.random.PCG64(_Seed(words)))  # type: ignore[arg-type]  # an ISeedSequence, too


def stable_hash(seed: int, purpose: str, text: str) -> int:
    """A 63-bit hash that depends only on the arguments. It breaks ties between clients, for example."""
    return int.from_bytes(_digest(seed, purpose, text)[:8], "little") >> 1


def _digest(seed: int, purpose: str, *key: int | str) -> bytes:
    return hashlib.sha256(repr((seed, purpose, *key)).encode()).digest()


class _Seed(ISeedSequence):
    """A seed of known words."""

    def __init__(self, words: npt.NDArray[np.uint64]) -> None:
        self._words = words

    def generate_state(self, n_words: int, dtype: object = np.uint32) -> npt.NDArray[np.uint64]:
        """The words, (4,) uint64, which is what PCG64 asks for."""
        return self._words


def _seeds(entropy: _Words) -> npt.NDArray[np.uint64]:
    """`np.random.SeedSequence(row).generate_state(4, np.uint64)` of (n, 4) rows: O'Neill's seed_seq (NEP 19)."""
    pool = _hashed(entropy.T, _INTO[:4], _INTO[1:5])
    for n, (source, target) in enumerate(permutations(range(4), 2), start=4):
        mixed = _LEFT * pool[target] - _RIGHT * _hashed(pool[source], _INTO[n], _INTO[n + 1])
        pool[target] = mixed ^ mixed >> _HALF
    return np.ascontiguousarray(_hashed(np.tile(pool, (2, 1)), _OUT[:8], _OUT[1:]).T).view(np.uint64)


def _hashed(words: _Words, before: _Words, factor: _Words) -> _Words:
    words = (words ^ before) * factor
    return words ^ words >> _HALF
