"""Downloads of published data sets: what is fetched and checked, and the line a user reads when that fails."""

import functools
import hashlib
import http.server
import socket
import tarfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from pausefl_client.data import downloads
from pausefl_client.data.datasets import load_dataset
from pausefl_client.data.published import PUBLISHED
from pausefl_proto.errors import ConfigError
from rigs.datasets import write_cifar, write_mnist


@pytest.fixture(autouse=True)
def _own_data_and_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAUSEFL_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    """A web server on this machine that publishes tmp_path / "web"; its address."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:  # the base class's name
            """Nothing to say."""

    (tmp_path / "web").mkdir()
    handler = functools.partial(Handler, directory=tmp_path / "web")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def publish(monkeypatch: pytest.MonkeyPatch, name: str, urls: list[str], folder: Path) -> None:
    """Make a data set's published files those in `folder`, to be had from `urls`."""
    published = PUBLISHED[name]
    sha256 = {file: hashlib.sha256((folder / file).read_bytes()).hexdigest() for file in published.sha256}
    monkeypatch.setitem(PUBLISHED, name, replace(published, urls=tuple(urls), sha256=sha256))


def publish_mnist(monkeypatch: pytest.MonkeyPatch, folder: Path, url: str) -> list[str]:
    """A data set in MNIST's format, written to `folder`, to be had below `url`; the names of its files."""
    write_mnist(folder)
    files = list(PUBLISHED["mnist"].sha256)
    publish(monkeypatch, "mnist", [f"{url}/{file}" for file in files], folder / "mnist")
    return files


def test_missing_files_are_downloaded(tmp_path: Path, web: str, monkeypatch: pytest.MonkeyPatch) -> None:
    files = publish_mnist(monkeypatch, tmp_path / "web", f"{web}/mnist")
    assert load_dataset("mnist", seed=1).train.labels.tolist() == [0, 1, 2, 3, 4, 5]
    assert {path.name for path in (tmp_path / "data" / "mnist").iterdir()} == set(files)


def test_an_archive_is_downloaded_and_unpacked(tmp_path: Path, web: str, monkeypatch: pytest.MonkeyPatch) -> None:
    members = tmp_path / "web" / "cifar-10-batches-bin"
    for i in range(1, 6):
        write_cifar(members / f"data_batch_{i}.bin", 2001, first=i)
    write_cifar(members / "test_batch.bin", 4)
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


@pytest.mark.parametrize(
    "answer",
    [b"220 mail.example ready\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab"],
    ids=["another protocol", "cut"],
)
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


def test_no_answer_is_given_up_with_one_line_that_says_what_to_put_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads, "PATIENCE_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        files = publish_mnist(monkeypatch, tmp_path / "published", url)
        with pytest.raises(ConfigError) as caught:
            load_dataset("mnist", seed=1)
    message = str(caught.value)
    assert message.startswith('workload.dataset = "mnist": train-images-idx3-ubyte.gz is not in ')
    assert all(part in message for part in (str(tmp_path / "data" / "mnist"), *files, "PAUSEFL_DATA"))
    assert "\n" not in message
