"""Reads the file formats of published data sets: IDX (MNIST), CIFAR-10's binary version, AG-News's CSV."""

import csv
import gzip
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pausefl_client.data.text import hashed_tokens
from pausefl_proto.errors import ConfigError

AG_NEWS_WORDS = 48
"""How many words of an article are kept. Nine articles in ten have at most 51 words."""


def read_idx(path: Path) -> npt.NDArray[np.uint8]:
    """The array in a gzipped IDX file of unsigned bytes (MNIST's format). ConfigError if it is no such file."""
    try:
        content = gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"{path}: cannot be read as gzip ({error})") from error
    # Magic number: two zeros, 8 for unsigned bytes, the number of dimensions; then each dimension, big-endian.
    dimensions = int.from_bytes(content[3:4]) if content[:3] == b"\0\0\x08" else 0
    shape = np.frombuffer(content, ">u4", dimensions, 4) if len(content) >= 4 + 4 * dimensions else np.empty(0)
    body = content[4 + 4 * dimensions :]
    if not dimensions or not shape.size or np.prod(shape, dtype=np.int64) != len(body):
        raise ConfigError(f"{path}: is not an IDX file of unsigned bytes")
    return np.frombuffer(body, np.uint8).reshape(shape.astype(int))


def read_cifar(path: Path) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Images (n, 3, 32, 32) and labels (n,) in a file of CIFAR-10's binary version. ConfigError if it is none."""
    try:
        content = np.fromfile(path, np.uint8)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    if content.size == 0 or content.size % (1 + 3 * 32 * 32):
        raise ConfigError(f"{path}: is not a file of CIFAR-10's binary version")
    rows = content.reshape(-1, 1 + 3 * 32 * 32)
    return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0]


def read_ag_news(path: Path) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    """Tokens (n, 48) of titles and descriptions, and labels (n,) in 0..3, of a published CSV file.

    A row is "class (1 to 4)", "title", "description". ConfigError if the file has other rows.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = [(int(label) - 1, f"{title} {description}") for label, title, description in csv.reader(file)]
        labels = np.array([label for label, _ in rows])
        if not rows or labels.min() < 0 or labels.max() > 3:
            raise ValueError("a class is not one of 1, 2, 3 and 4" if rows else "it is empty")
    except (OSError, ValueError, csv.Error) as error:
        raise ConfigError(f"{path}: is not a file of AG-News ({error})") from error
    # A backslash stands for a line break.
    texts = [text.replace("\\", " ") for _, text in rows]
    return hashed_tokens(texts, AG_NEWS_WORDS), labels.astype(np.uint8)
