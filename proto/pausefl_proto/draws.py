"""Random draws as functions of (seed, purpose, key). They do not depend on the order of events.

Privacy noise is not drawn here: it uses the operating system's entropy (`pausefl_client.privacy.mechanism`).
"""

import hashlib
from collections.abc import Iterable, Iterator
from itertools import accumulate, islice, pairwise, permutations, repeat

import numpy as np
import numpy.typing as npt
from numpy.random.bit_generator import ISeedSequence

_AT_ONCE = 1024
"""How many generators are seeded at once."""
_HALF = np.uint32(16)


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


def _seeds(entropy: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint64]:
    """`np.random.SeedSequence(row).generate_state(4, np.uint64)` for each row of entropy, (n, 4).

    numpy promises to keep this algorithm, O'Neill's seed_seq (NEP 19).
    """
    into, out = _constants(0x43B0D7E5, 0x931E8875), _constants(0x8B51F9DD, 0x58F38DED)
    left, right = np.uint32(0xCA01F9DD), np.uint32(0x4973F715)
    pool = [_hashed(words, into) for words in entropy.T]
    for source, target in permutations(range(4), 2):
        mixed = left * pool[target] - right * _hashed(pool[source], into)
        pool[target] = mixed ^ mixed >> _HALF
    return np.stack([_hashed(words, out) for words in pool * 2], axis=1).view(np.uint64)


def _constants(first: int, factor: int) -> Iterator[tuple[np.uint32, np.uint32]]:
    """The two constants of each call of `_hashed`."""
    return pairwise(map(np.uint32, accumulate(repeat(factor), lambda last, by: last * by % 2**32, initial=first)))


def _hashed(words: npt.NDArray[np.uint32], constants: Iterator[tuple[np.uint32, np.uint32]]) -> npt.NDArray[np.uint32]:
    before, factor = next(constants)
    words = (words ^ before) * factor
    return words ^ words >> _HALF
