"""The examples a client holds, told by digests: equal examples have one budget, however they are named.

BLAKE2b (RFC 7693), not a faster checksum: a digest names a ledger on disk, and must not give away more of the examples
than that two clients hold the same ones. It reads about 1 GB/s, once when a client's data are loaded.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pausefl_client.data.datasets import Examples


@dataclass(frozen=True, slots=True)
class Holding:
    """Digests of a client's examples: 32 hexadecimal digits for its examples, 16 for how all clients' were dealt out.

    Equal `examples` are the same data. Where these differ but `dealing` is the same, no example is in both.
    """

    examples: str
    dealing: str


def holding_of(examples: Examples, dealing: str) -> Holding:
    """The holding of a client with these examples, in whatever order they stand."""
    inputs = np.ascontiguousarray(examples.inputs)
    each = sorted(
        hashlib.blake2b(row.tobytes() + label.tobytes(), digest_size=16).digest()
        for row, label in zip(inputs, examples.labels, strict=True)
    )
    kind = repr((inputs.dtype.str, inputs.shape[1:])).encode()
    return Holding(_digest(kind, *each, size=16), dealing)


def dealing_of(parts: Iterable[npt.NDArray[np.int64]], *, dataset: str, examples: int | None, split_seed: int) -> str:
    """The digest of a partition: what decides which examples are dealt out, and the rows of each client, in order.

    Rows alone do not tell: another seed may put other examples into the same rows.
    """
    kind = repr((dataset, examples, split_seed)).encode()
    return _digest(kind, *(b"|" + part.tobytes() for part in parts), size=8)


def synthetic_holding(client_id: str) -> Holding:
    """The holding of a client whose model trains on nothing: its id stands for its data."""
    return Holding(_digest(b"synthetic", client_id.encode(), size=16), _digest(b"synthetic", size=8))


def _digest(*parts: bytes, size: int) -> str:
    return hashlib.blake2b(b"".join(parts), digest_size=size).hexdigest()
