"""Downloads the missing published files of a data set, and checks their checksums."""

import hashlib
import shutil
import tarfile
import tempfile
import threading
import urllib.request
import zlib
from concurrent.futures import Future
from http.client import HTTPException
from pathlib import Path
from typing import Any

from pausefl_client.data.published import Published
from pausefl_proto.errors import ConfigError

PATIENCE_S = 5.0  # for an answer, and for each further piece of data

# Errors of a broken connection or a wrong server, and of an archive that is cut short or damaged.
_FAILURES = (OSError, HTTPException, EOFError, zlib.error, tarfile.TarError)


def download(name: str, published: Published, folder: Path, missing: list[str]) -> None:
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
    with answer, path.open("wb") as file:
        shutil.copyfileobj(answer, file)
    return path


def _extract(archive: Path, files: list[str], folder: Path) -> None:
    """Extract the members of an archive that have these names, in whatever folder of the archive they are."""
    with tarfile.open(archive) as tar:
        for member in tar:
            if Path(member.name).name in files and (content := tar.extractfile(member)):
                (folder / Path(member.name).name).write_bytes(content.read())
