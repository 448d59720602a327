"""Published data sets: downloaded if missing, and decompressed once into .npy files, which client processes map."""

import hashlib
import logging
import os
import shutil
import tarfile
import tempfile
import threading
import urllib.request
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from http.client import HTTPException
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pausefl_client.data.published import PUBLISHED, Published
from pausefl_process.files import replaced
from pausefl_proto.errors import ConfigError

_ARRAYS = ("train_inputs", "train_labels", "test_inputs", "test_labels")
PATIENCE_S = 5.0  # for an answer, and for each further piece of data

# Errors of a broken connection or a wrong server, and of an archive that is cut short or damaged.
_FAILURES = (OSError, HTTPException, EOFError, zlib.error, tarfile.TarError)


def data_folder() -> Path:
    """The folder of the published files: $PAUSEFL_DATA, or `data` in the cache folder."""
    return Path(os.environ.get("PAUSEFL_DATA") or _cache_folder() / "data")


def missing_files(name: str) -> list[str]:
    """The published files of a data set of `PUBLISHED` that are not in its folder."""
    source = data_folder() / PUBLISHED[name].folder
    return [file for file in PUBLISHED[name].sha256 if not (source / file).is_file()]


def published_arrays(name: str) -> dict[str, npt.NDArray[Any]]:
    """The cached arrays of a data set of `PUBLISHED`, made from its files, which are downloaded. Or ConfigError."""
    published = PUBLISHED[name]
    source = data_folder() / published.folder
    if missing := missing_files(name):
        _download(name, published, source, missing)
    cached = f"{name}-{_fingerprint(source, published)}"
    return cached_arrays(cached, lambda: dict(zip(_ARRAYS, published.read(source), strict=True)))


def cached_arrays(name: str, read: Callable[[], Mapping[str, npt.NDArray[Any]]]) -> dict[str, npt.NDArray[Any]]:
    """The arrays of a folder in the cache, mapped into memory. A missing folder is first made of `read`'s arrays."""
    folder = _cache_folder() / name
    if not folder.is_dir():
        _write_cache(folder, read())
    return {file.stem: np.load(file, mmap_mode="r") for file in folder.glob("*.npy")}


def _cache_folder() -> Path:
    """The cache folder, `$XDG_CACHE_HOME/pausefl` (XDG base directory specification)."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pausefl"
    except RuntimeError:
        raise ConfigError("no home folder can hold cached data sets; set XDG_CACHE_HOME") from None


def _fingerprint(source: Path, published: Published) -> str:
    """A digest that changes when a source file does. From path, size and mtime: 300 clients cannot each read 180 MB."""
    read = (source / file for file in (*published.sha256, *published.optional))
    stats = [(str(file.resolve()), file.stat()) for file in read if file.is_file()]
    text = repr((published.layout, [(path, stat.st_size, stat.st_mtime_ns) for path, stat in stats]))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _write_cache(folder: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write the arrays atomically: to a temporary folder, which is then renamed. A slower process discards its copy."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, ignore_cleanup_errors=True) as scratch:
            made = Path(scratch) / folder.name
            made.mkdir()
            for file, array in arrays.items():
                with replaced(made / f"{file}.npy") as durable:
                    np.save(durable, array)
            try:
                made.rename(folder)
            except OSError:
                if not folder.is_dir():
                    raise
    except OSError as error:
        raise ConfigError(f"{folder.parent}: cannot hold cached data sets ({error}); set XDG_CACHE_HOME") from error


def _download(name: str, published: Published, folder: Path, missing: list[str]) -> None:
    """Download the missing files and check them. ConfigError, in one line, if that fails."""
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
    except _FAILURES as error:
        reason = " ".join(str(error).split())  # a server's message may have several lines
        wanted = ", ".join(published.sha256)
        raise ConfigError(
            f'workload.dataset = "{name}": {missing[0]} is not in {folder} and could not be downloaded ({reason}); '
            f"put {wanted} there, or set PAUSEFL_DATA to the folder that holds {published.folder}/"
        ) from error


def _fetch(url: str, path: Path) -> Path:
    """Download one file to `path`. OSError or HTTPException if that fails, or if nothing arrives for 5 s."""
    answered: Future[Any] = Future()

    def connect() -> None:
        try:
            answered.set_result(urllib.request.urlopen(url, timeout=PATIENCE_S))
        except (OSError, HTTPException) as error:
            answered.set_exception(error)

    # In a thread, because resolving a host name has no timeout.
    threading.Thread(target=connect, daemon=True).start()
    try:
        answer = answered.result(PATIENCE_S)
    except TimeoutError:
        raise TimeoutError(f"no answer within {PATIENCE_S:g} s") from None
    logging.getLogger("pausefl.client").warning("downloading %s", url)  # it may take minutes
    with answer, path.open("wb") as file:
        shutil.copyfileobj(answer, file)
    return path


def _extract(archive: Path, files: list[str], folder: Path) -> None:
    """Extract the members of an archive that have these names, in whatever folder of the archive they are."""
    with tarfile.open(archive) as tar:
        for member in tar:
            if Path(member.name).name in files and (content := tar.extractfile(member)):
                (folder / Path(member.name).name).write_bytes(content.read())
