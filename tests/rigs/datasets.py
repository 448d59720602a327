"""Data sets in the published formats, written by tests."""

import gzip
from pathlib import Path

import numpy as np

N_TRAIN, N_TEST = 10_006, 9


def write_idx(path: Path, array: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    header = bytes((0, 0, 8, array.ndim)) + np.array(array.shape, ">u4").tobytes()
    path.write_bytes(gzip.compress(header + array.astype(np.uint8).tobytes(), compresslevel=1))


def write_mnist(folder: Path, shift: int = 0) -> None:
    """A data set in MNIST's format: image i holds i + `shift` (mod 251) everywhere, label i mod 10."""
    for prefix, n in (("train", N_TRAIN), ("t10k", N_TEST)):
        pixels = np.broadcast_to(((np.arange(n) + shift) % 251)[:, None, None], (n, 2, 3))
        write_idx(folder / "mnist" / f"{prefix}-images-idx3-ubyte.gz", pixels)
        write_idx(folder / "mnist" / f"{prefix}-labels-idx1-ubyte.gz", np.arange(n) % 10)


def write_cifar(path: Path, n: int, first: int = 0) -> None:
    rows = np.zeros((n, 3073), np.uint8)
    rows[:, 0] = (first + np.arange(n)) % 10
    rows[:, 1], rows[:, 1 + 1024], rows[:, 1 + 2048 + 33] = 11, 22, 33
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(rows.tobytes())
