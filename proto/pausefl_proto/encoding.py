"""How the values of an update travel: as float32, or rounded to fewer bits.

A client rounds what it has clipped and noised. The rounded vector is a function of the noised one alone, so it is no
less private (post-processing: Dwork and Roth, "The Algorithmic Foundations of Differential Privacy", 2014, prop. 2.1).
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
_BLOCK = 256
_GREATEST_FLOAT16 = 65504.0


class Encoding:
    """float32, as it is. Every encoding gives equal bytes for equal vectors, and never makes a value finite."""

    step: float = 0.0
    """No value changes by more than this share of the vector's greatest absolute value."""

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


class Float16(Encoding):
    """IEEE 754 half precision: 11 significant bits. Values beyond ±65,504 become that; below 6e-8 they become 0."""

    step = 2.0**-11

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


FLOAT32 = Encoding()
ENCODINGS: Mapping[str, Encoding] = {"float32": FLOAT32, "float16": Float16(), "bfloat16": BFloat16(), "int8": Int8()}
"""By the value of `wire.dtype`."""
