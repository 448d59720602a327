"""Data sets as their authors publish them: files, URLs and checksums, and how to read the files.

The formats are IDX (MNIST), CIFAR-10's binary version, and AG-News's CSV.
"""

import csv
import gzip
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pausefl_client.data.text import BUCKETS, hashed_tokens
from pausefl_proto.draws import generator
from pausefl_proto.errors import ConfigError

AG_NEWS_WORDS = 48
"""How many words of an article are kept. Nine articles in ten have at most 51 words."""
AG_NEWS_TEST_EXAMPLES = 1_600
"""How many of the 7,600 published test examples form the test set if the published training examples are missing."""

RawArray = npt.NDArray[np.uint8] | npt.NDArray[np.int32]
Arrays = tuple[RawArray, npt.NDArray[np.uint8], RawArray, npt.NDArray[np.uint8]]
"""Training inputs and labels, test inputs and labels."""


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


@dataclass(frozen=True)
class Published:
    """A data set as its authors publish it."""

    folder: str
    urls: tuple[str, ...]
    """One URL per file, or the URL of one archive that holds all files."""
    sha256: dict[str, str]
    """The required files: name -> SHA-256."""
    read: Callable[[Path], Arrays]
    classes: int = 10
    held_out: int | None = 10_000
    """How many of the last training examples form the validation set. None: a tenth of them."""
    optional: tuple[str, ...] = ()
    """Files that are read if they exist, and never downloaded."""
    layout: tuple[int, ...] = ()
    """Further numbers on which the cached arrays depend, such as the words per text."""


def _read_mnist_like(source: Path) -> Arrays:
    images, labels, test_images, test_labels = (read_idx(source / file) for file in _MNIST_FILES)
    return images[:, None], labels, test_images[:, None], test_labels


def _read_cifar10(source: Path) -> Arrays:
    batches = [read_cifar(source / f"data_batch_{i}.bin") for i in range(1, 6)]
    images, labels = (np.concatenate(arrays) for arrays in zip(*batches, strict=True))
    return images, labels, *read_cifar(source / "test_batch.bin")


def _read_ag_news(source: Path) -> Arrays:
    """Read train.csv and test.csv. Without train.csv, a fixed random part of test.csv is the test set."""
    inputs, labels = read_ag_news(source / "test.csv")
    if (source / "train.csv").is_file():
        return *read_ag_news(source / "train.csv"), inputs, labels
    order = generator(0, "ag-news").permutation(len(labels))
    train, test = order[:-AG_NEWS_TEST_EXAMPLES], order[-AG_NEWS_TEST_EXAMPLES:]
    return inputs[train], labels[train], inputs[test], labels[test]


_MNIST_FILES = tuple(f"{of}-{what}-ubyte.gz" for of in ("train", "t10k") for what in ("images-idx3", "labels-idx1"))
_MNIST_SHA256 = (
    "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
)
_FASHION_SHA256 = (
    "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
)
_CIFAR10_SHA256 = {
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}


def _mnist_like(folder: str, url: str, checksums: tuple[str, ...]) -> Published:
    return Published(
        folder,
        tuple(f"{url}/{file}" for file in _MNIST_FILES),
        dict(zip(_MNIST_FILES, checksums, strict=True)),
        _read_mnist_like,
    )


PUBLISHED = {
    "mnist": _mnist_like("mnist", "https://ossci-datasets.s3.amazonaws.com/mnist", _MNIST_SHA256),
    "fashion-mnist": _mnist_like(
        "fashion-mnist", "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com", _FASHION_SHA256
    ),
    "cifar10": Published(
        "cifar-10-batches-bin",
        ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
        _CIFAR10_SHA256,
        _read_cifar10,
    ),
    "ag-news": Published(
        "ag-news",
        ("https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv/test.csv",),
        {"test.csv": "521465c2428ed7f02f8d6db6ffdd4b5447c1c701962353eb2c40d548c3c85699"},
        _read_ag_news,
        classes=4,
        held_out=None,
        optional=("train.csv",),
        layout=(AG_NEWS_WORDS, BUCKETS),
    ),
}
"""The published data sets, by their names in `workload.dataset`."""
