"""Data sets: published formats, downloads, cache, held-out data, words as tokens, and messages of failures."""

import functools
import gzip
import hashlib
import http.server
import os
import random
import socket
import sys
import tarfile
import threading
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pausefl_client.data import cache
from pausefl_client.data.cache import data_folder
from pausefl_client.data.datasets import Dataset, Examples, load_dataset, prepare_dataset
from pausefl_client.data.published import PUBLISHED, read_cifar, read_idx
from pausefl_client.data.text import BUCKETS, hashed_tokens
from pausefl_proto.errors import ConfigError

N_TRAIN, N_TEST = 10_006, 9


def write_idx(path: Path, array: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    header = bytes((0, 0, 8, array.ndim)) + np.array(array.shape, ">u4").tobytes()
    path.write_bytes(gzip.compress(header + array.astype(np.uint8).tobytes(), compresslevel=1))


def write_mnist(folder: Path, shift: int = 0) -> None:
    """Write a data set in MNIST's format. Pixel k of image i is (i + k + `shift`) mod 251; its label is i mod 10."""
    for prefix, n in (("train", N_TRAIN), ("t10k", N_TEST)):
        pixels = (np.arange(n)[:, None, None] + np.arange(6).reshape(2, 3) + shift) % 251
        write_idx(folder / "mnist" / f"{prefix}-images-idx3-ubyte.gz", pixels)
        write_idx(folder / "mnist" / f"{prefix}-labels-idx1-ubyte.gz", np.arange(n) % 10)


def write_cifar(path: Path, n: int, first: int = 0) -> None:
    rows = np.zeros((n, 3073), np.uint8)
    rows[:, 0] = (first + np.arange(n)) % 10
    rows[:, 1], rows[:, 1 + 1024], rows[:, 1 + 2048 + 33] = 11, 22, 33
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(rows.tobytes())


def own_dataset(seed: int) -> Dataset:
    """A data set as a user may write it."""
    inputs = np.random.rand(20, 3) + torch.rand(20, 3).numpy() + random.random()  # noqa: NPY002 - users may do so
    examples = Examples(inputs.astype(np.float32), np.arange(20) % 2)
    return Dataset("own", examples, examples, examples, classes=2)


def not_a_dataset(seed: int) -> int:
    return seed


compressed = functools.partial(gzip.compress, mtime=0)  # without the time, since the bytes are part of a test's name


@pytest.fixture(autouse=True)
def _own_data_and_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAUSEFL_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "own_datasets", sys.modules[__name__])


def test_a_data_set_of_the_hub_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pausefl_hf", None)
    wanted = r'^workload.dataset = "hf:flwrlabs/femnist": cannot be imported \(.*\); pip install "pausefl\[hf\]"; in a '
    with pytest.raises(ConfigError, match=wanted + r'checkout: pip install "\.\[hf\]" \./plugins/pausefl-hf$'):
        load_dataset("hf:flwrlabs/femnist", seed=0)


def test_digits_are_embedded_and_split() -> None:
    digits = load_dataset("digits", seed=1)
    assert [len(part) for part in (digits.train, digits.validation, digits.test)] == [1200, 297, 300]
    assert (digits.input_shape, digits.classes) == ((1, 8, 8), 10)
    pixels = digits.train.inputs
    assert (pixels.dtype.name, pixels.min(), pixels.max()) == ("uint8", 0, 255)
    everything = np.concatenate([part.inputs for part in (digits.train, digits.validation, digits.test)])
    assert np.unique(everything, axis=0).shape[0] == 1797
    labels = np.concatenate([part.labels for part in (digits.train, digits.validation, digits.test)])
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    same, other = (load_dataset("digits", seed=seed).train.inputs for seed in (1, 2))
    assert np.array_equal(pixels, same)
    assert not np.array_equal(pixels, other)


def test_examples_caps_the_training_examples_alone() -> None:
    whole, capped, again = (load_dataset("digits", examples=n, seed=1) for n in (None, 50, 50))
    assert (len(capped.train), len(capped.validation), len(capped.test)) == (50, 297, 300)
    assert np.array_equal(capped.train.inputs, again.train.inputs)
    rows = {image.tobytes() for image in whole.train.inputs}
    assert all(image.tobytes() in rows for image in capped.train.inputs)
    for n in (0, -1, 1201):
        with pytest.raises(ConfigError, match=rf"workload\.examples = {n}: must be from 1 to the 1200"):
            load_dataset("digits", examples=n, seed=1)


@pytest.mark.parametrize(
    ("read", "content"),
    [
        (read_idx, b""),
        (read_idx, b"plain text"),
        (read_idx, compressed(b"")),
        (read_idx, compressed(b"\0\0\x08\x01\0\0\0\x03ab")),
        (read_idx, compressed(b"\0\0\x08\x03\0\0\0\x01")),
        (read_idx, compressed(b"\0\0\x0d\x01\0\0\0\x01abcd")),
        (read_idx, compressed(b"\0\0\x08")),
        (read_idx, compressed(b"\0\0\x08\x01\0\0\0\x03abc")[:-4]),
        (read_idx, compressed(b"\0\0\x08\x01\0\0\0\x03abc")[:10] + b"\xff" * 16),
        *((read_cifar, bytes(size)) for size in (0, 3072, 3074)),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, read: Callable[[Path], object], content: bytes) -> None:
    (tmp_path / "a.data").write_bytes(content)
    with pytest.raises(ConfigError, match=r"a\.data: "):
        read(tmp_path / "a.data")


def test_cifar_files_are_read_as_published(tmp_path: Path) -> None:
    write_cifar(tmp_path / "a.bin", 12)
    images, labels = read_cifar(tmp_path / "a.bin")
    assert (images.shape, labels.tolist()) == ((12, 3, 32, 32), [*range(10), 0, 1])
    # The planes are red, green and blue; each is stored row by row.
    assert [images[0, 0, 0, 0], images[0, 1, 0, 0], images[0, 2, 1, 1]] == [11, 22, 33]


def test_the_last_10_000_training_examples_are_held_out(tmp_path: Path) -> None:
    write_mnist(tmp_path / "data")
    mnist = load_dataset("mnist", seed=1)
    assert [len(part) for part in (mnist.train, mnist.validation, mnist.test)] == [6, 10_000, N_TEST]
    assert (mnist.input_shape, mnist.validation.inputs[0, 0, 0, 0]) == ((1, 2, 3), 6)
    assert mnist.train.inputs[:, 0, 0, 0].tolist() == mnist.train.labels.tolist() == [0, 1, 2, 3, 4, 5]
    assert mnist.train.inputs[3, 0].tolist() == [[3, 4, 5], [6, 7, 8]]


def write_batches(folder: Path) -> None:
    for i in range(1, 6):
        write_cifar(folder / f"data_batch_{i}.bin", 2001, first=i)
    write_cifar(folder / "test_batch.bin", 4)


def test_cifar10_is_put_together_from_its_batches(tmp_path: Path) -> None:
    write_batches(tmp_path / "data" / "cifar-10-batches-bin")
    cifar = load_dataset("cifar10", seed=1)
    assert [len(part) for part in (cifar.train, cifar.validation, cifar.test)] == [5, 10_000, 4]
    assert (cifar.input_shape, cifar.train.labels.tolist()) == ((3, 32, 32), [1, 2, 3, 4, 5])


def test_too_few_training_examples_to_hold_10_000_out(tmp_path: Path) -> None:
    write_mnist(tmp_path / "data")
    for kind, dimensions in (("images-idx3", (3, 2, 3)), ("labels-idx1", (3,))):
        write_idx(tmp_path / "data" / "mnist" / f"train-{kind}-ubyte.gz", np.zeros(dimensions))
    with pytest.raises(ConfigError, match=r'workload\.dataset = "mnist": has 3 training examples'):
        load_dataset("mnist", seed=1)


def test_the_cache_is_made_once_and_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    write_mnist(tmp_path / "data")
    prepare_dataset("mnist")
    assert len(synced) == 4  # after a power cut, no file of the cache may be empty
    (file,) = (tmp_path / "cache").rglob("train_inputs.npy")
    made = file.stat()
    mnist = load_dataset("mnist", seed=1)
    assert file.stat() == made
    assert isinstance(mnist.train.inputs, np.memmap)
    mine = mnist.train.take(np.array([1, 4]))
    assert type(mine.inputs) is np.ndarray
    assert mine.inputs[:, 0, 0, 0].tolist() == mine.labels.tolist() == [1, 4]


def test_the_cache_follows_its_source(tmp_path: Path) -> None:
    write_mnist(tmp_path / "data")
    prepare_dataset("mnist")
    write_mnist(tmp_path / "data", shift=7)
    assert load_dataset("mnist", seed=1).train.inputs[0, 0, 0, 0] == 7


def test_many_may_make_the_cache_at_once(tmp_path: Path) -> None:
    write_mnist(tmp_path / "data")
    with ThreadPoolExecutor(4) as executor:
        assert [*executor.map(prepare_dataset, ["mnist"] * 4)] == [None] * 4
    assert len(list((tmp_path / "cache" / "pausefl").iterdir())) == 1


@pytest.mark.parametrize(("name", "entries"), [("mnist", 1), ("digits", 0), ("own_datasets:own_dataset", 0)])
def test_preparing_makes_the_cache_where_one_is_needed(tmp_path: Path, name: str, entries: int) -> None:
    write_mnist(tmp_path / "data")
    prepare_dataset(name)
    assert len(list((tmp_path / "cache").glob("pausefl/*"))) == entries


def test_a_cache_that_cannot_be_written_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mnist(tmp_path / "data")
    (tmp_path / "file").touch()
    monkeypatch.setattr(Path, "home", Path("~no-such-user").expanduser)
    for place in (str(tmp_path / "file"), ""):
        monkeypatch.setenv("XDG_CACHE_HOME", place)
        with pytest.raises(ConfigError, match="set XDG_CACHE_HOME"):
            prepare_dataset("mnist")


def test_without_a_folder_of_its_own_the_data_go_to_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PAUSEFL_DATA")
    write_mnist(tmp_path / "cache" / "pausefl" / "data")
    assert len(load_dataset("mnist", seed=1).test) == N_TEST


def test_an_own_dataset_is_made_from_the_seed() -> None:
    own = load_dataset("own_datasets:own_dataset", examples=5, seed=3)
    assert (own.name, own.input_shape, len(own.train)) == ("own", (3,), 5)
    again, other = (load_dataset("own_datasets:own_dataset", examples=5, seed=seed).train.inputs for seed in (3, 4))
    assert np.array_equal(own.train.inputs, again)
    assert not np.isclose(own.train.inputs, other).any()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("emnist", "did you mean mnist.* must be one of digits, mnist, fashion-mnist, cifar10, ag-news, or"),
        ("no_such_package:data", "cannot be imported"),
        ("own_datasets:not_a_dataset", "returned int, not a Dataset"),
    ],
)
def test_bad_names_name_the_key(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=rf'workload\.dataset = "{name}": {message}'):
        load_dataset(name, seed=1)


NUMBERS, CLASSES = np.zeros((2, 3), np.float32), np.zeros(2, np.int64)


@pytest.mark.parametrize(
    ("inputs", "labels", "message"),
    [
        (NUMBERS.astype(np.float64), CLASSES, "inputs must be uint8 or int32 or float32; are float64"),
        (NUMBERS.astype(">f4"), CLASSES, "inputs must be .*; are >f4"),
        (np.ma.masked_less(NUMBERS, 1), CLASSES, "inputs must be a numpy array; are a MaskedArray"),
        (NUMBERS.tolist(), CLASSES, "inputs must be a numpy array; are a list"),
        (NUMBERS.astype(np.uint8), CLASSES, "uint8 inputs are images of shape .*, and these have shape \\(2, 3\\)"),
        (np.zeros((2, 5, 6, 3), np.uint8), CLASSES, "uint8 inputs are images of shape .* shape \\(2, 5, 6, 3\\)"),
        (NUMBERS, np.array(["cat", "dog"]), "labels must be int64 or float32; are <U3"),
        (NUMBERS, np.zeros(3, np.int64), "2 inputs, but 3 labels"),
    ],
)
def test_examples_of_the_wrong_kind_are_refused(inputs: Any, labels: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"^workload\.dataset: {message}"):
        Examples(inputs, labels)


@pytest.mark.parametrize("kind", [np.uint8, np.int32])
def test_all_splits_have_examples_of_one_kind(kind: type) -> None:
    train, images = Examples(NUMBERS, CLASSES), Examples(NUMBERS.astype(kind).reshape(2, 1, 1, 3), CLASSES)
    with pytest.raises(ConfigError, match=r"test has inputs of \w+ with 4 dimensions; must be float32 with 2 dim"):
        Dataset("own", train, train, images, classes=2)


@pytest.mark.parametrize(
    ("validation", "message"),
    [
        ([], "validation has no examples"),
        ([0, 4], "validation has labels from 0 to 4; with classes = 2, must be from 0 to 1"),
        ([-1, 1], "validation has labels from -1 to 1; with classes = 2, must be from 0 to 1"),
    ],
)
def test_a_split_is_not_empty_and_has_the_classes_there_are(validation: list[int], message: str) -> None:
    def split(labels: list[int]) -> Examples:
        return Examples(np.zeros((len(labels), 3), np.int32), np.array(labels, np.int64))

    with pytest.raises(ConfigError, match=f"^workload.dataset: {message}$"):
        Dataset("own", split([0, 1]), split(validation), split([0]), classes=2)


REAL_DATA = os.environ.get("PAUSEFL_DATA")


@pytest.mark.skipif(not REAL_DATA, reason="PAUSEFL_DATA is not set: no published data here")
@pytest.mark.parametrize(
    ("name", "train", "shape", "mean"),
    [
        ("mnist", 50_000, (1, 28, 28), 0.1325),
        ("fashion-mnist", 50_000, (1, 28, 28), 0.2868),
        ("cifar10", 40_000, (3, 32, 32), 0.4766),
    ],
)
def test_published_files_hold_what_their_authors_say(
    name: str, train: int, shape: tuple[int, ...], mean: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAUSEFL_DATA", str(REAL_DATA))
    data = load_dataset(name, seed=1)
    assert [len(part) for part in (data.train, data.validation, data.test)] == [train, 10_000, 10_000]
    assert data.input_shape == shape
    assert np.bincount(data.test.labels).tolist() == (
        [1000] * 10 if name != "mnist" else [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    )
    assert data.test.inputs.mean() / 255 == pytest.approx(mean, abs=5e-4)
    assert data_folder() == Path(str(REAL_DATA))
    published = PUBLISHED[name]
    for file, checksum in published.sha256.items():
        assert hashlib.sha256((data_folder() / published.folder / file).read_bytes()).hexdigest() == checksum


def test_a_word_is_its_hash_wherever_it_stands() -> None:
    oil, prices, soar = (1 + zlib.crc32(word) % (BUCKETS - 1) for word in (b"oil", b"prices", b"soar"))
    tokens = hashed_tokens(["Oil prices soar", "soar, OIL!"], 4)
    assert tokens.tolist() == [[oil, prices, soar, 0], [soar, oil, 0, 0]]


def test_long_texts_are_cut_and_empty_ones_have_a_word() -> None:
    tokens = hashed_tokens(["a b c d", "", "\u2026 -- \u00e9"], 2)
    assert tokens.shape == (3, 2)
    assert tokens[0].tolist() == hashed_tokens(["a b"], 2)[0].tolist()
    assert ((tokens != 0).sum(axis=1) == [2, 1, 1]).all()


def test_tokens_fill_the_buckets_and_no_word_is_padding() -> None:
    tokens = hashed_tokens([" ".join(f"w{i}" for i in range(100_000))], 100_000)
    assert (tokens.dtype.name, tokens.min(), tokens.max()) == ("int32", 1, BUCKETS - 1)


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    """The address of a web server on this machine that publishes tmp_path / "web"."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:  # the base class's name
            """Print nothing."""

    (tmp_path / "web").mkdir()
    handler = functools.partial(Handler, directory=tmp_path / "web")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def publish(monkeypatch: pytest.MonkeyPatch, name: str, urls: list[str], folder: Path) -> None:
    """Publish the files in `folder` as those of a data set, to be downloaded from `urls`."""
    published = PUBLISHED[name]
    sha256 = {file: hashlib.sha256((folder / file).read_bytes()).hexdigest() for file in published.sha256}
    monkeypatch.setitem(PUBLISHED, name, replace(published, urls=tuple(urls), sha256=sha256))


def publish_mnist(monkeypatch: pytest.MonkeyPatch, folder: Path, url: str) -> list[str]:
    """Write a data set in MNIST's format to `folder` and publish it below `url`. Return the names of its files."""
    write_mnist(folder)
    files = list(PUBLISHED["mnist"].sha256)
    publish(monkeypatch, "mnist", [f"{url}/{file}" for file in files], folder / "mnist")
    return files


def test_missing_files_are_downloaded(
    tmp_path: Path, web: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    files = publish_mnist(monkeypatch, tmp_path / "web", f"{web}/mnist")
    assert load_dataset("mnist", seed=1).train.labels.tolist() == [0, 1, 2, 3, 4, 5]
    assert {path.name for path in (tmp_path / "data" / "mnist").iterdir()} == set(files)
    assert [said[:26] for said in caplog.messages] == ["downloading http://127.0.0"] * 4


def test_an_archive_is_downloaded_and_unpacked(tmp_path: Path, web: str, monkeypatch: pytest.MonkeyPatch) -> None:
    members = tmp_path / "web" / "cifar-10-batches-bin"
    write_batches(members)
    (members / "readme.html").touch()
    with tarfile.open(tmp_path / "web" / "cifar.tar.gz", "w:gz", compresslevel=1) as tar:
        tar.add(members, "cifar-10-batches-bin")
    publish(monkeypatch, "cifar10", [f"{web}/cifar.tar.gz"], members)
    assert len(load_dataset("cifar10", seed=1).train) == 5
    assert not (tmp_path / "data" / "cifar-10-batches-bin" / "readme.html").exists()


def test_a_data_set_of_one_file_is_downloaded_as_is(tmp_path: Path, web: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "web" / "test.csv").write_text('"4","Probe lands","It did."\n' * 1700)
    publish(monkeypatch, "ag-news", [f"{web}/test.csv"], tmp_path / "web")
    assert len(load_dataset("ag-news", seed=1).train) == 90
    assert [path.name for path in (tmp_path / "data" / "ag-news").iterdir()] == ["test.csv"]


def test_a_download_of_another_checksum_is_discarded(tmp_path: Path, web: str, monkeypatch: pytest.MonkeyPatch) -> None:
    publish_mnist(monkeypatch, tmp_path / "web", f"{web}/mnist")
    write_mnist(tmp_path / "web", shift=1)
    with pytest.raises(ConfigError, match="wrong checksum"):
        load_dataset("mnist", seed=1)
    assert not list((tmp_path / "data" / "mnist").iterdir())


@pytest.mark.parametrize("damage", ["cut", "changed"])
def test_a_damaged_archive_is_one_line(tmp_path: Path, web: str, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    members = tmp_path / "members"
    for file in PUBLISHED["cifar10"].sha256:
        write_cifar(members / file, 2)
    with tarfile.open(tmp_path / "web" / "cifar.tar.gz", "w:gz") as tar:
        tar.add(members, "cifar-10-batches-bin")
    packed = (tmp_path / "web" / "cifar.tar.gz").read_bytes()
    half = len(packed) // 2
    (tmp_path / "web" / "cifar.tar.gz").write_bytes(packed[:half] + (b"" if damage == "cut" else b"\xff" * half))
    publish(monkeypatch, "cifar10", [f"{web}/cifar.tar.gz"], members)
    with pytest.raises(ConfigError, match=r'^workload\.dataset = "cifar10": .* could not be downloaded \(.+\)'):
        load_dataset("cifar10", seed=1)


@pytest.mark.parametrize("answer", [b"220 mail\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab"])
def test_an_answer_that_is_no_file_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as thread:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(10_000)
                connection.sendall(answer)

        thread.submit(serve)
        publish_mnist(monkeypatch, tmp_path / "published", f"http://127.0.0.1:{server.getsockname()[1]}")
        with pytest.raises(ConfigError, match=r"could not be downloaded \((220 mail|IncompleteRead)[^\n]*$"):
            load_dataset("mnist", seed=1)


def test_no_answer_is_one_line_that_says_what_to_put_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "PATIENCE_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        files = publish_mnist(monkeypatch, tmp_path / "published", f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(ConfigError) as caught:
            load_dataset("mnist", seed=1)
    message = str(caught.value)
    assert message.startswith('workload.dataset = "mnist": train-images-idx3-ubyte.gz is not in ')
    assert all(part in message for part in (str(tmp_path / "data" / "mnist"), *files, "PAUSEFL_DATA"))
    assert "\n" not in message
