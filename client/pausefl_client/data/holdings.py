"""Identifies a client's examples by digests. Clients with equal examples share one budget, whatever their names are.

The digest is BLAKE2b (RFC 7693), not a faster checksum. It names a ledger on disk, and must reveal nothing about the
examples except that two clients hold the same ones. It reads about 1 GB/s, once when a client's data are loaded.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pausefl_client.data.datasets import Examples


@dataclass(frozen=True, slots=True)
class Holding:
    """Digests in hexadecimal: `examples` (32 digits) of a client's examples, `dealing` (16) of the whole partition.

    Equal `examples` mean the same data. If they differ but `dealing` is equal, no example is in both.
    """

    examples: str
    dealing: str


def holding_of(examples: Examples, dealing: str) -> Holding:
    """The holding of a client with these examples. Their order does not matter."""
    inputs = np.ascontiguousarray(examples.inputs)
    each = sorted(
        hashlib.blake2b(row.tobytes() + label.tobytes(), digest_size=16).digest()
        for row, label in zip(inputs, examples.labels, strict=True)
    )
    kind = repr((inputs.dtype.str, inputs.shape[1:])).encode()
    return Holding(_digest(kind, *each, size=16), dealing)


def dealing_of(parts: Iterable[npt.NDArray[np.int64]], *, dataset: str, examples: int | None, split_seed: int) -> str:
    """The digest of a partition: of what decides which examples there are, and of each client's rows, in order."""
    kind = repr((dataset, examples, split_seed)).encode()
    return _digest(kind, *(b"|" + part.tobytes() for part in parts), size=8)


def synthetic_holding(client_id: str) -> Holding:
    """The holding of a client with a synthetic model, which has no data. Its id stands for its data."""
    return Holding(_digest(b"synthetic", client_id.encode(), size=16), _digest(b"synthetic", size=8))


def _digest(*parts: bytes, size: int) -> str:
    return hashlib.blake2b(b"".join(parts), digest_size=size).hexdigest()
