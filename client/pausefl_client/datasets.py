"""Data sets: read from their published files, held as arrays, split into training, validation and test examples.

The published files are decompressed once into a cache of .npy files and memory-mapped from there, so that hundreds of
client processes share one copy and each takes only its own rows out of it.
"""

import csv
import gzip
import hashlib
import importlib.resources
import os
import queue
import shutil
import tarfile
import tempfile
import threading
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, replace
from http.client import HTTPResponse
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from pausefl.draws import generator
from pausefl.errors import ConfigError
from pausefl_client.factories import is_factory, resolve_factory
from pausefl_client.text import BUCKETS, hashed_tokens

Inputs = npt.NDArray[np.uint8] | npt.NDArray[np.float32] | npt.NDArray[np.int32]
Labels = npt.NDArray[np.int64]

VALIDATION_EXAMPLES = 10_000
DIGITS_VALIDATION_EXAMPLES = 297
DIGITS_TEST_EXAMPLES = 300
AG_NEWS_WORDS = 48
"""Words of an article that are kept; nine in ten have at most 51."""
AG_NEWS_TEST_EXAMPLES = 1_600
"""Of the 7,600 published test examples, where the training examples are not at hand."""
DOWNLOAD_PATIENCE_S = 5.0

_KEY = "workload.dataset"


@dataclass(frozen=True, eq=False)
class Examples:
    """n labelled examples; may be memory-mapped from the cache, so read-only."""

    inputs: Inputs
    """(n, channels, height, width) uint8 images in 0..255, (n, words) int32 tokens, or (n, ...) float32 features."""
    labels: Labels
    """(n,) int64 in [0, classes)."""

    def __post_init__(self) -> None:
        if self.inputs.dtype not in (np.uint8, np.float32, np.int32) or self.labels.dtype != np.int64:
            raise ConfigError(f"{_KEY}: inputs must be uint8, int32 or float32 and labels int64")
        if len(self.inputs) != len(self.labels):
            raise ConfigError(f"{_KEY}: {len(self.inputs)} inputs, but {len(self.labels)} labels")

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: npt.NDArray[np.int64]) -> Self:
        """A copy of the given rows, in memory."""
        return replace(self, inputs=self.inputs[rows], labels=self.labels[rows])


@dataclass(frozen=True, eq=False)
class Dataset:
    """A classification task. `validation` is held-out training data: the best model is chosen on it, not on `test`."""

    name: str
    train: Examples
    validation: Examples
    test: Examples
    classes: int

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input: (channels, height, width) for images, (words,) for texts."""
        return self.train.inputs.shape[1:]

    @property
    def has_tokens(self) -> bool:
        """Whether inputs are texts as tokens, which no model for numbers can take."""
        return self.train.inputs.dtype == np.int32


def load_dataset(name: str, *, examples: int | None = None, seed: int) -> Dataset:
    """A data set by name: one of `NAMES`, or "package.module:factory", called as factory(seed) and returning a Dataset.

    The last 10,000 published training examples are `validation` (AG-News: a tenth of them; digits: 297 of its 1,797,
    and 300 are `test`). Without AG-News's train.csv, its test.csv alone is split, the same for every seed.
    `examples` keeps that many training examples, drawn by the seed. ConfigError if the data are missing or malformed.
    """
    if is_factory(name):
        dataset = resolve_factory(_KEY, name)(seed)
        if not isinstance(dataset, Dataset):
            raise ConfigError(f'{_KEY} = "{name}": returned {type(dataset).__name__}, not a Dataset')
    elif name == "digits":
        dataset = _load_digits(seed)
    else:
        dataset = _load_cached(name)
    return dataset if examples is None else replace(dataset, train=_sample(dataset.train, examples, seed))


def prepare_dataset(name: str) -> None:
    """Decompress a published data set into the cache unless it is there; nothing to do for digits and one's own.

    Called once before many clients start, so that they find the cache made. A missing file is downloaded, which is
    given up within 5 s if nothing answers. ConfigError, as from `load_dataset`.
    """
    if not is_factory(name) and name != "digits":
        cached_folder(name)


def split_note(name: str, test_examples: int) -> str:
    """What a reader of a result should know of a data set of so many test examples; empty where it is as published."""
    if name == "ag-news" and test_examples == AG_NEWS_TEST_EXAMPLES:
        return "the published test split alone, of which 6,000 to train on and 1,600 to test on"
    return ""


def data_folder() -> Path:
    """Where the published files lie: $PAUSEFL_DATA, or a folder of the cache."""
    named = os.environ.get("PAUSEFL_DATA")
    return Path(named) if named else _cache_folder() / "data"


def cached_folder(name: str) -> Path:
    """The folder that caches a published data set as .npy files; made if it is not there."""
    if name not in _PUBLISHED:
        raise ConfigError(f'{_KEY} = "{name}": must be one of {", ".join(NAMES)}, or "package.module:factory"')
    published = _PUBLISHED[name]
    source = data_folder() / published.folder
    if missing := [file for file in published.sha256 if not (source / file).is_file()]:
        _download(name, published, source, missing)
    folder = _cache_folder() / f"{name}-{_fingerprint(source, published)}"
    if not folder.is_dir():
        _write_cache(folder, *published.read(source))
    return folder


def read_idx(path: Path) -> npt.NDArray[np.uint8]:
    """The array in a gzipped IDX file of unsigned bytes (the format of MNIST); ConfigError if it is not one."""
    try:
        content = gzip.decompress(path.read_bytes())
    except (OSError, EOFError) as error:
        raise ConfigError(f"{path}: cannot be read as gzip ({error})") from error
    # Magic number: two zeros, 8 for unsigned bytes, the number of dimensions; then each dimension, big-endian.
    dimensions = content[3] if content[:3] == b"\0\0\x08" else 0
    shape = np.frombuffer(content, ">u4", dimensions, 4) if len(content) >= 4 + 4 * dimensions else np.empty(0)
    body = content[4 + 4 * dimensions :]
    if not dimensions or not shape.size or np.prod(shape, dtype=np.int64) != len(body):
        raise ConfigError(f"{path}: is not an IDX file of unsigned bytes")
    return np.frombuffer(body, np.uint8).reshape(shape.astype(int))


def read_cifar(path: Path) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Images (n, 3, 32, 32) and labels (n,) of a file of CIFAR-10's binary version; ConfigError if it is not one."""
    content = np.fromfile(path, np.uint8)
    if content.size == 0 or content.size % (1 + 3 * 32 * 32):
        raise ConfigError(f"{path}: is not a file of CIFAR-10's binary version")
    rows = content.reshape(-1, 1 + 3 * 32 * 32)
    return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0]


def read_ag_news(path: Path) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    """Tokens (n, 48) of titles and descriptions, and labels (n,) in 0..3, of a published CSV file.

    ConfigError if it is not one: a row is "class (1 to 4)", "title", "description".
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


_Tensor = npt.NDArray[np.uint8] | npt.NDArray[np.int32]
_Arrays = tuple[_Tensor, npt.NDArray[np.uint8], _Tensor, npt.NDArray[np.uint8]]
_FILES = ("train_inputs", "train_labels", "test_inputs", "test_labels")


@dataclass(frozen=True)
class _Published:
    """A data set as its authors publish it."""

    folder: str
    urls: tuple[str, ...]
    """One URL per file, or one archive that holds them all."""
    sha256: dict[str, str]
    """Of each file that must be there."""
    read: Callable[[Path], _Arrays]
    classes: int = 10
    held_out: int | None = VALIDATION_EXAMPLES
    """How many of the last training examples are for validation; None: a tenth of them."""
    optional: tuple[str, ...] = ()
    """Files that are read where they are, and never downloaded."""
    layout: tuple[int, ...] = ()
    """What else the cached arrays depend on."""

    def sources(self, folder: Path) -> list[Path]:
        """The files in `folder` that are read."""
        present = (folder / file for file in self.optional if (folder / file).is_file())
        return [*(folder / file for file in self.sha256), *present]


def _read_mnist_like(source: Path) -> _Arrays:
    images, labels, test_images, test_labels = (read_idx(source / file) for file in _MNIST_FILES)
    return images[:, None], labels, test_images[:, None], test_labels


def _read_cifar10(source: Path) -> _Arrays:
    batches = [read_cifar(source / f"data_batch_{i}.bin") for i in range(1, 6)]
    images, labels = (np.concatenate(arrays) for arrays in zip(*batches, strict=True))
    return images, labels, *read_cifar(source / "test_batch.bin")


def _read_ag_news(source: Path) -> _Arrays:
    """train.csv and test.csv; without the former, a part of test.csv drawn once and for all is the test set."""
    inputs, labels = read_ag_news(source / "test.csv")
    if (source / "train.csv").is_file():
        return *read_ag_news(source / "train.csv"), inputs, labels
    order = generator(0, "ag-news").permutation(len(labels))
    train, test = order[:-AG_NEWS_TEST_EXAMPLES], order[-AG_NEWS_TEST_EXAMPLES:]
    return inputs[train], labels[train], inputs[test], labels[test]


_MNIST_FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
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


def _mnist_like(folder: str, url: str, checksums: tuple[str, ...]) -> _Published:
    return _Published(
        folder,
        tuple(f"{url}/{file}" for file in _MNIST_FILES),
        dict(zip(_MNIST_FILES, checksums, strict=True)),
        _read_mnist_like,
    )


_PUBLISHED = {
    "mnist": _mnist_like("mnist", "https://ossci-datasets.s3.amazonaws.com/mnist", _MNIST_SHA256),
    "fashion-mnist": _mnist_like(
        "fashion-mnist", "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com", _FASHION_SHA256
    ),
    "cifar10": _Published(
        "cifar-10-batches-bin",
        ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
        _CIFAR10_SHA256,
        _read_cifar10,
    ),
    "ag-news": _Published(
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

NAMES = ("digits", *_PUBLISHED)
"""The data sets that need no code of one's own."""


def _load_digits(seed: int) -> Dataset:
    """The embedded set: 1,797 images of 8 x 8 pixels in 0..16 (digits.NOTICE says whose), stretched to 0..255.

    Sorted by writer as published, hence shuffled before the split.
    """
    text = gzip.decompress(importlib.resources.files(__package__).joinpath("digits.csv.gz").read_bytes())
    table = np.array(text.decode().replace("\n", ",").rstrip(",").split(","), np.uint16).reshape(-1, 65)
    table = table[generator(seed, "digits").permutation(len(table))]
    images = (table[:, :64] * 255 // 16).astype(np.uint8).reshape(-1, 1, 8, 8)
    everything = Examples(images, table[:, 64].astype(np.int64))
    test_start = len(table) - DIGITS_TEST_EXAMPLES
    validation_start = test_start - DIGITS_VALIDATION_EXAMPLES
    return Dataset(
        "digits",
        train=_slice(everything, slice(0, validation_start)),
        validation=_slice(everything, slice(validation_start, test_start)),
        test=_slice(everything, slice(test_start, None)),
        classes=10,
    )


def _load_cached(name: str) -> Dataset:
    folder = cached_folder(name)
    arrays = {file: np.load(folder / f"{file}.npy", mmap_mode="r") for file in _FILES}
    train, test = (
        Examples(arrays[f"{split}_inputs"], arrays[f"{split}_labels"].astype(np.int64)) for split in ("train", "test")
    )
    published = _PUBLISHED[name]
    n_held_out = published.held_out or max(1, len(train) // 10)
    if len(train) <= n_held_out:
        raise ConfigError(
            f'{_KEY} = "{name}": has {len(train)} training examples, must be more than the {n_held_out:,} held out'
        )
    held_out = slice(len(train) - n_held_out, None)
    kept = slice(0, held_out.start)
    return Dataset(name, _slice(train, kept), _slice(train, held_out), test, published.classes)


def _slice(examples: Examples, rows: slice) -> Examples:
    """A view, not a copy: a memory-mapped array stays one."""
    return Examples(examples.inputs[rows], examples.labels[rows])


def _sample(examples: Examples, n: int, seed: int) -> Examples:
    if not 1 <= n <= len(examples):
        raise ConfigError(f"workload.examples = {n}: must be from 1 to the {len(examples)} training examples")
    # Sorted rows read a memory-mapped file from front to back.
    rows = np.sort(generator(seed, "examples").choice(len(examples), n, replace=False))
    return examples.take(rows) if n < len(examples) else examples


def _cache_folder() -> Path:
    """`$XDG_CACHE_HOME/pausefl` (XDG base directory specification)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pausefl"


def _fingerprint(source: Path, published: _Published) -> str:
    """Changes when a source file does. From path, size and time of change: 300 clients cannot each read 180 MB."""
    stats = [(str(file.resolve()), file.stat()) for file in published.sources(source)]
    text = repr((published.layout, [(path, stat.st_size, stat.st_mtime_ns) for path, stat in stats]))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _write_cache(folder: Path, *arrays: _Tensor) -> None:
    """All or nothing: written beside its place and renamed; whoever comes second throws its own copy away."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, ignore_cleanup_errors=True) as scratch:
            made = Path(scratch) / folder.name
            made.mkdir()
            for file, array in zip(_FILES, arrays, strict=True):
                np.save(made / f"{file}.npy", array)
            try:
                made.rename(folder)
            except OSError:
                if not folder.is_dir():
                    raise
    except OSError as error:
        raise ConfigError(
            f"{folder.parent}: cannot hold the cache of data sets ({error}); set XDG_CACHE_HOME"
        ) from error


def _download(name: str, published: _Published, folder: Path, missing: list[str]) -> None:
    """Fetch the missing files and check them; ConfigError, one line, if that fails."""
    archive = Path(published.urls[0]).name not in published.sha256
    urls = published.urls if archive else [url for url in published.urls if Path(url).name in missing]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as scratch:
            for url in urls:
                fetched = _fetch(url, Path(scratch) / Path(url).name)
                if archive:
                    _extract(fetched, missing, Path(scratch))
            for file in missing:
                path = Path(scratch) / file
                if hashlib.sha256(path.read_bytes()).hexdigest() != published.sha256[file]:
                    raise OSError(f"{file} as downloaded has the wrong checksum")
                path.rename(folder / file)
    except (OSError, tarfile.TarError) as error:
        wanted = ", ".join(published.sha256)
        raise ConfigError(
            f'{_KEY} = "{name}": {missing[0]} is not in {folder} and could not be downloaded ({error}); put {wanted} '
            f"there, or set PAUSEFL_DATA to the folder that holds {published.folder}/"
        ) from error


def _fetch(url: str, path: Path) -> Path:
    """Download one file; OSError if nothing answers within 5 s or the line then falls silent for as long."""
    answers: queue.SimpleQueue[HTTPResponse | OSError] = queue.SimpleQueue()

    def connect() -> None:
        try:
            answers.put(urllib.request.urlopen(url, timeout=DOWNLOAD_PATIENCE_S))
        except OSError as error:
            answers.put(error)

    # In a thread, because resolving a name knows no timeout.
    threading.Thread(target=connect, daemon=True).start()
    try:
        answer: Any = answers.get(timeout=DOWNLOAD_PATIENCE_S)
    except queue.Empty:
        raise TimeoutError(f"no answer within {DOWNLOAD_PATIENCE_S:g} s") from None
    if isinstance(answer, OSError):
        raise answer
    with answer, path.open("wb") as file:
        shutil.copyfileobj(answer, file)
    return path


def _extract(archive: Path, files: list[str], folder: Path) -> None:
    """The named members of an archive, whatever folder they lie in there."""
    with tarfile.open(archive) as tar:
        for member in tar:
            if Path(member.name).name in files and (content := tar.extractfile(member)):
                (folder / Path(member.name).name).write_bytes(content.read())
