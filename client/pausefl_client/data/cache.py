"""Published data sets, decompressed once into .npy files that hundreds of client processes map into memory."""

import hashlib
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pausefl_client.data.downloads import download
from pausefl_client.data.published import PUBLISHED, Published
from pausefl_process.files import replaced
from pausefl_proto.errors import ConfigError

FILES = ("train_inputs", "train_labels", "test_inputs", "test_labels")
"""The names of a data set's arrays in the cache. Each array is a file NAME.npy."""


def data_folder() -> Path:
    """The folder of the published files: $PAUSEFL_DATA, or `data` in the cache folder."""
    named = os.environ.get("PAUSEFL_DATA")
    return Path(named) if named else _cache_folder() / "data"


def missing_files(name: str) -> list[str]:
    """The published files of a data set of `PUBLISHED` that are not in its folder."""
    source = data_folder() / PUBLISHED[name].folder
    return [file for file in PUBLISHED[name].sha256 if not (source / file).is_file()]


def cached_folder(name: str) -> Path:
    """The folder that caches a data set of `PUBLISHED`, made from its files, which are downloaded. Or ConfigError."""
    published = PUBLISHED[name]
    source = data_folder() / published.folder
    if missing := missing_files(name):
        download(name, published, source, missing)
    folder = _cache_folder() / f"{name}-{_fingerprint(source, published)}"
    if not folder.is_dir():
        _write_cache(folder, dict(zip(FILES, published.read(source), strict=True)))
    return folder


def cached_arrays(name: str, read: Callable[[], Mapping[str, npt.NDArray[Any]]]) -> dict[str, npt.NDArray[Any]]:
    """The arrays of a folder in the cache, mapped into memory. A missing folder is first made of `read`'s arrays."""
    folder = _cache_folder() / name
    if not folder.is_dir():
        _write_cache(folder, read())
    return {file.stem: np.load(file, mmap_mode="r") for file in folder.glob("*.npy")}


def _cache_folder() -> Path:
    """The cache folder, `$XDG_CACHE_HOME/pausefl` (XDG base directory specification)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pausefl"


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
        raise ConfigError(
            f"{folder.parent}: cannot hold the cache of data sets ({error}); set XDG_CACHE_HOME"
        ) from error
