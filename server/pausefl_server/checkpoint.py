"""The model on disk: two slots written in turn, so that one whole θ is always there.

A slot is bare float32 bytes; which round it belongs to is told by its digest, which stands in that round's row of the
log. A torn slot therefore matches no row, and the run falls back to the round before.
"""

import os
from pathlib import Path

import numpy as np

from pausefl_proto.wire import Vector, digest


class Checkpoint:
    """θ_t in slot t mod 2 of `folder`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._paths = [folder / f"slot-{i}.f32" for i in (0, 1)]
        self._files = [os.open(path, os.O_RDWR | os.O_CREAT, 0o644) for path in self._paths]
        directory = os.open(folder, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)

    def save(self, round: int, theta: Vector) -> None:
        """Write θ_t durably: when this returns it survives a crash."""
        file = self._files[round % 2]
        data = theta.data.cast("B")
        written = 0
        while written < len(data):
            written += os.pwrite(file, data[written:], written)
        os.fdatasync(file)

    def load(self, round: int, model_digest: str) -> Vector | None:
        """θ_t, (d,) float32, or None when its slot does not hold it (torn, or overwritten since)."""
        theta: Vector = np.fromfile(self._paths[round % 2], "<f4")
        return theta if digest(theta) == model_digest else None

    def close(self) -> None:
        """Close the slots' files."""
        for file in self._files:
            os.close(file)
