"""A small disk that can be filled."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def mounted_disk(folder: Path, size_bytes: int) -> Iterator[str]:
    """A disk of this size at `folder` until the end of the block; yields why there is none, empty where there is."""
    folder.mkdir()
    command = ("mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", folder)
    try:
        missing = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        yield f"no disk can be mounted here: {error}"
        return
    if missing.returncode:
        yield f"no disk can be mounted here: {missing.stderr.strip()}"
        return
    try:
        yield ""
    finally:
        subprocess.run(("umount", "--lazy", folder), check=False)


@contextmanager
def filled(folder: Path) -> Iterator[None]:
    """Leave no byte free on the disk of `folder` until the end of the block."""
    ballast = folder / "ballast"
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 20))
    with suppress(OSError), ballast.open("ab", buffering=0) as file:
        while True:
            file.write(bytes(512))
    try:
        yield
    finally:
        ballast.unlink(missing_ok=True)
