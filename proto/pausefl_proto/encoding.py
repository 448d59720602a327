"""Encodings of an update's values for upload: float32, rounded to fewer bits, or only the greatest values.

A client encodes the clipped and noised update. The encoded vector is a function of the noised one alone, so it is no
less private (post-processing: Dwork and Roth, "The Algorithmic Foundations of Differential Privacy", 2014, prop. 2.1).
"""

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from pausefl_proto.arrays import are_greatest
from pausefl_proto.errors import WireError

Values = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
_BLOCK = 256
_GREATEST_FLOAT16 = 65504.0


class Encoding:
    """Plain float32, and the base of all encodings: equal vectors give equal bytes; inf and NaN never become finite."""

    step: float = 0.0
    """No absolute value grows by more than this share of the vector's greatest, or `least_step` if that is more."""
    least_step: float = 0.0

    def size_bytes(self, n: int) -> int:
        """The number of bytes of `n` encoded values."""
        return 4 * n

    def encode(self, vector: Values) -> Values | Bytes:
        """The encoded array of (n,) float32. Its bytes are sent."""
        return vector

    def decode(self, data: bytes | memoryview, n: int) -> Values:
        """The decoded vector, (n,) float32, from `size_bytes(n)` bytes."""
        vector: Values = np.frombuffer(data, "<f4", n)
        return vector if vector.flags.aligned else vector.copy()

    def beside(self, plain: int) -> "Encoding":
        """This encoding for all but the last `plain` values, which are sent as float32."""
        return self if plain == 0 or self is FLOAT32 else Beside(self, plain)


class Beside(Encoding):
    """Another encoding for the first values, followed by the last `plain` values as float32."""

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
    """IEEE 754 half precision: 11 bits from 6.1e-5 up, multiples of 6e-8 below, and finite values up to ±65,504."""

    step = 2.0**-11
    least_step = 2.0**-25

    def size_bytes(self, n: int) -> int:
        return 2 * n

    def encode(self, vector: Values) -> Bytes:
        finite = vector.clip(-_GREATEST_FLOAT16, _GREATEST_FLOAT16)
        return np.where(np.isinf(vector), vector, finite).astype("<f2").view(np.uint8)

    def decode(self, data: bytes | memoryview, n: int) -> Values:
        return np.frombuffer(data, "<f2", n).astype(np.float32)


class BFloat16(Encoding):
    """The upper half of float32's bits: its whole range with 8 significant bits, rounded to nearest, ties to even."""

    step = 2.0**-8

    def size_bytes(self, n: int) -> int:
        return 2 * n

    def encode(self, vector: Values) -> Bytes:
        bits = np.ascontiguousarray(vector, "<f4").view("<u4")
        upper: npt.NDArray[np.uint16] = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype("<u2")
        upper[np.isnan(vector)] = 0x7FC0  # rounding could turn the bits of NaN into another number
        return upper.view(np.uint8)

    def decode(self, data: bytes | memoryview, n: int) -> Values:
        return (np.frombuffer(data, "<u2", n).astype("<u4") << 16).view("<f4")


class Int8(Encoding):
    """One byte for each value, −127 to 127, after a float32 scale for each 256: their greatest absolute value / 127."""

    step = 1 / 250  # half a quantum (1/254), and the rounding of its scale

    def size_bytes(self, n: int) -> int:
        return n + 4 * -(-n // _BLOCK)

    def encode(self, vector: Values) -> Bytes:
        blocks = np.pad(vector, (0, -vector.size % _BLOCK)).reshape(-1, _BLOCK)
        scales = (np.abs(blocks).max(axis=1) / np.float32(127)).astype("<f4")
        with np.errstate(divide="ignore", invalid="ignore"):
            # A block with a value that is not finite has a scale that is not finite. So it decodes to inf and NaN.
            quanta = np.nan_to_num(np.rint(blocks / scales[:, None]), posinf=127, neginf=-127)
        values = quanta.clip(-127, 127).astype(np.int8).reshape(-1)[: vector.size]
        return np.concatenate((scales.view(np.uint8), values.view(np.uint8)))

    def decode(self, data: bytes | memoryview, n: int) -> Values:
        n_blocks = -(-n // _BLOCK)
        scales = np.frombuffer(data, "<f4", n_blocks)
        values = np.frombuffer(data, np.int8, n, offset=4 * n_blocks)
        with np.errstate(over="ignore", invalid="ignore"):
            vector: Values = values * np.repeat(scales, _BLOCK)[:n]
        return vector


class TopShare(Encoding):
    """A share of the values, the greatest in absolute value, in the encoding `values`. The others arrive as zero.

    The positions of these values come first: as unsigned 32-bit indices, or as one bit for each value of the vector if
    that is shorter. Of equal values, the first are kept. (Aji and Heafield, "Sparse communication for distributed
    gradient descent", 2017; without their residuals.)
    """

    def __init__(self, share: float, values: Encoding) -> None:
        self._share, self._values = share, values
        self.step, self.least_step = values.step, values.least_step

    def size_bytes(self, n: int) -> int:
        k = self._kept(n)
        return (4 * k if _indices_are_shorter(k, n) else -(-n // 8)) + self._values.size_bytes(k)

    def encode(self, vector: Values) -> Bytes:
        k = self._kept(vector.size)
        # Values that are not finite count as the greatest, so that the receiver gets them and rejects the update.
        is_kept = are_greatest(np.nan_to_num(np.abs(vector), nan=np.inf, posinf=np.inf), k)
        places = np.flatnonzero(is_kept)
        where = places.astype("<u4").view(np.uint8) if _indices_are_shorter(k, vector.size) else np.packbits(is_kept)
        return np.concatenate((where, self._values.encode(vector[places]).view(np.uint8)))

    def decode(self, data: bytes | memoryview, n: int) -> Values:
        """The decoded vector, (n,) float32. WireError unless there are k different indices in order, all below n."""
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


FLOAT32 = Encoding()
ENCODINGS: Mapping[str, Encoding] = {"float32": FLOAT32, "float16": Float16(), "bfloat16": BFloat16(), "int8": Int8()}
"""The encodings, by the value of `wire.dtype`."""


def encoding_of(dtype: str, top_share: float) -> Encoding:
    """The encoding for these values of `wire.dtype` and `wire.top_share` (above 0)."""
    return ENCODINGS[dtype] if top_share == 1 else TopShare(top_share, ENCODINGS[dtype])
