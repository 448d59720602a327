"""How the values of an update travel: as float32, rounded to fewer bits, or the greatest of them alone.

A client encodes what it has clipped and noised. The encoded vector is a function of the noised one alone, so it is no
less private (post-processing: Dwork and Roth, "The Algorithmic Foundations of Differential Privacy", 2014, prop. 2.1).
"""

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from pausefl_proto.errors import WireError

Values = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
_BLOCK = 256
_GREATEST_FLOAT16 = 65504.0


class Encoding:
    """float32, as it is. Every encoding gives equal bytes for equal vectors, and never makes a value finite."""

    step: float = 0.0
    """No absolute value grows by more than this share of the vector's greatest, or by `least_step` if that is more."""
    least_step: float = 0.0

    def size_bytes(self, n: int) -> int:
        """How many bytes `n` values take."""
        return 4 * n

    def encode(self, vector: Values) -> Values | Bytes:
        """The array whose bytes travel, of (n,) float32."""
        return vector

    def decode(self, data: bytes | memoryview, n: int) -> Values:
        """The (n,) float32 that `size_bytes(n)` bytes stand for."""
        vector: Values = np.frombuffer(data, "<f4", n)
        return vector if vector.flags.aligned else vector.copy()

    def beside(self, plain: int) -> "Encoding":
        """The same for all but the last `plain` values, which travel as they are."""
        return self if plain == 0 or self is FLOAT32 else Beside(self, plain)


class Beside(Encoding):
    """Another encoding, beside values that travel as float32 behind it."""

    def __init__(self, encoding: Encoding, plain: int) -> None:
        self.step, self.least_step = encoding.step, encoding.least_step
        self._encoding, self._plain = encoding, plain

    def size_bytes(self, n: int) -> int:
        return self._encoding.size_bytes(n - self._plain) + 4 * self._plain

    def encode(self, vector: Values) -> Bytes:
        d = vector.size - self._plain
        return np.concatenate([part.view(np.uint8) for part in (self._encoding.encode(vector[:d]), vector[d:])])

    def decode(self, data: bytes | memoryview, n: int) -> Values:
        d = n - self._plain
        plain = np.frombuffer(data, "<f4", self._plain, offset=self._encoding.size_bytes(d))
        return np.concatenate((self._encoding.decode(memoryview(data)[: self._encoding.size_bytes(d)], d), plain))


class Float16(Encoding):
    """IEEE 754 half precision: 11 significant bits from 6.1e-5 on, and multiples of 6e-8 below.

    Values beyond ±65,504 become that.
    """

    step = 2.0**-11
    least_step = 2.0**-25

    def size_bytes(self, n: int) -> int:
        return 2 * n

    def encode(self, vector: Values) -> Bytes:
        with np.errstate(over="ignore"):
            half = vector.astype("<f2")
        if (is_too_great := np.isinf(half) & np.isfinite(vector)).any():
            half[is_too_great] = np.copysign(_GREATEST_FLOAT16, vector[is_too_great])
        return half.view(np.uint8)

    def decode(self, data: bytes | memoryview, n: int) -> Values:
        return np.frombuffer(data, "<f2", n).astype(np.float32)


class BFloat16(Encoding):
    """The upper half of float32: its whole range with 8 significant bits, rounded to the nearest, ties to even."""

    step = 2.0**-8

    def size_bytes(self, n: int) -> int:
        return 2 * n

    def encode(self, vector: Values) -> Bytes:
        bits = np.ascontiguousarray(vector, "<f4").view("<u4")
        upper = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype("<u2")
        upper[np.isnan(vector)] = 0x7FC0  # rounding might carry its bits into another number's
        encoded: Bytes = upper.view(np.uint8)
        return encoded

    def decode(self, data: bytes | memoryview, n: int) -> Values:
        vector: Values = (np.frombuffer(data, "<u2", n).astype("<u4") << 16).view("<f4")
        return vector


class Int8(Encoding):
    """Whole numbers from −127 to 127, in blocks of 256 values that share a float32 scale: block maximum / 127.

    The scales come first, then a byte for each value.
    """

    step = 1 / 250  # half a quantum, and the rounding of its scale

    def size_bytes(self, n: int) -> int:
        return n + 4 * -(-n // _BLOCK)

    def encode(self, vector: Values) -> Bytes:
        blocks = np.pad(vector, (0, -vector.size % _BLOCK)).reshape(-1, _BLOCK)
        scales = (np.abs(blocks).max(axis=1) / np.float32(127)).astype("<f4")
        with np.errstate(divide="ignore", invalid="ignore"):
            # A block that is not finite has such a scale, with which its values come back as no numbers.
            quanta = np.nan_to_num(np.rint(blocks / scales[:, None]), posinf=127, neginf=-127)
        values = quanta.clip(-127, 127).astype(np.int8).reshape(-1)[: vector.size]
        encoded: Bytes = np.concatenate((scales.view(np.uint8), values.view(np.uint8)))
        return encoded

    def decode(self, data: bytes | memoryview, n: int) -> Values:
        n_blocks = -(-n // _BLOCK)
        scales = np.frombuffer(data, "<f4", n_blocks)
        values = np.frombuffer(data, np.int8, n, offset=4 * n_blocks)
        with np.errstate(over="ignore", invalid="ignore"):
            vector: Values = values * np.repeat(scales, _BLOCK)[:n]
        return vector


class TopShare(Encoding):
    """The values greatest in absolute value, a share of all, in the encoding `values`; the others arrive as zero.

    Which they are comes first: their indices as unsigned 32 bits, or a bit for each value where that is shorter. Of
    equal values the first stay. (Aji and Heafield, "Sparse communication for distributed gradient descent", 2017;
    without their residuals.)
    """

    def __init__(self, share: float, values: Encoding) -> None:
        self._share, self._values = share, values
        self.step, self.least_step = values.step, values.least_step

    def size_bytes(self, n: int) -> int:
        k = self._kept(n)
        return (4 * k if _indices_are_shorter(k, n) else -(-n // 8)) + self._values.size_bytes(k)

    def encode(self, vector: Values) -> Bytes:
        k = self._kept(vector.size)
        # What is not finite counts as the greatest, so that it arrives and is rejected.
        is_kept = _are_greatest(np.nan_to_num(np.abs(vector), nan=np.inf, posinf=np.inf), k)
        places = np.flatnonzero(is_kept)
        where = places.astype("<u4").view(np.uint8) if _indices_are_shorter(k, vector.size) else np.packbits(is_kept)
        encoded: Bytes = np.concatenate((where, self._values.encode(vector[places]).view(np.uint8)))
        return encoded

    def decode(self, data: bytes | memoryview, n: int) -> Values:
        """The (n,) float32; WireError where the indices are not k different ones in order, below n."""
        k, vector = self._kept(n), np.zeros(n, np.float32)
        n_where = self.size_bytes(n) - self._values.size_bytes(k)
        if _indices_are_shorter(k, n):
            places = np.frombuffer(data, "<u4", k).astype(np.int64)
        else:
            places = np.flatnonzero(np.unpackbits(np.frombuffer(data, np.uint8, n_where), count=n))
        if places.size != k or (np.diff(places) <= 0).any() or places.max(initial=-1) >= n:
            raise WireError(f"does not say where its {k} values belong among {n}")
        vector[places] = self._values.decode(memoryview(data)[n_where:], k)
        return vector

    def _kept(self, n: int) -> int:
        return math.ceil(self._share * n)


def _indices_are_shorter(k: int, n: int) -> bool:
    return 4 * k < -(-n // 8)


def _are_greatest(sizes: Values, k: int) -> npt.NDArray[np.bool_]:
    """Whether each of (n,) values is among the k greatest; of equal values the first are."""
    if k == 0:
        return np.zeros(sizes.size, bool)
    least = np.partition(sizes, sizes.size - k)[sizes.size - k]
    is_greatest: npt.NDArray[np.bool_] = sizes > least
    as_great = np.flatnonzero(sizes == least)
    is_greatest[as_great[: k - np.count_nonzero(is_greatest)]] = True
    return is_greatest


FLOAT32 = Encoding()
ENCODINGS: Mapping[str, Encoding] = {"float32": FLOAT32, "float16": Float16(), "bfloat16": BFloat16(), "int8": Int8()}
"""The encodings, by the value of `wire.dtype`."""


def encoding_of(dtype: str, top_share: float) -> Encoding:
    """The encoding of `wire.dtype` and `wire.top_share`, above 0."""
    return ENCODINGS[dtype] if top_share == 1 else TopShare(top_share, ENCODINGS[dtype])
