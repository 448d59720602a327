"""The model on disk: slots written in turn, so that one whole θ is always there, and models kept to go back to.

A slot is bare float32 bytes; which round it belongs to is told by its digest, which stands in that round's row of the
log. A torn slot therefore matches no row, and the run falls back to the round before.
"""

import hashlib
import os
from pathlib import Path

import numpy as np

from pausefl_process.files import begin_sync, sync_data, sync_folder, write_durably, write_over
from pausefl_proto.wire import Vector, digest

KEPT_BYTES_MAX = 1 << 30
"""Of the models kept to go back to, the oldest are deleted beyond this, but for the last two."""

_SIZE_BYTES = 8
_SEAL_BYTES = hashlib.sha256().digest_size


class Checkpoint:
    """θ_t in slot t mod `slots` of `folder`, and in a file of its own where it is kept."""

    def __init__(self, folder: Path, slots: int = 2) -> None:
        """`slots`: 2 at least, so that the last model is whole while the next one is written."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._paths = [folder / f"slot-{i}.f32" for i in range(slots)]
        self._files = [os.open(path, os.O_RDWR | os.O_CREAT, 0o644) for path in self._paths]
        sync_folder(folder)

    def save(self, round: int, theta: Vector) -> None:
        """Write θ_t durably: when this returns it survives a crash."""
        self.write(round, theta)
        self.sync(round)

    def write(self, round: int, theta: Vector) -> None:
        """Send θ_t on its way to the disk: `sync` waits for less when other work has been done in between."""
        file = self._files[round % len(self._files)]
        write_over(file, theta.data.cast("B"))
        begin_sync(file)

    def sync(self, round: int) -> None:
        """Make θ_t durable: when this returns it survives a crash."""
        sync_data(self._files[round % len(self._files)])

    def load(self, round: int, model_digest: str) -> Vector | None:
        """θ_t, (d,) float32, or None when its slot does not hold it (torn, or overwritten since)."""
        theta: Vector = np.fromfile(self._paths[round % len(self._paths)], "<f4")
        return theta if digest(theta) == model_digest else None

    def keep(self, round: int, theta: Vector, optimizer_state: Vector | None) -> None:
        """Keep θ_t, and the server optimizer's state with it, durably and for good, as far as there is room."""
        state = np.empty(0, "<f4") if optimizer_state is None else optimizer_state
        data = (
            theta.size.to_bytes(_SIZE_BYTES, "little") + theta.astype("<f4").tobytes() + state.astype("<f4").tobytes()
        )
        write_durably(self._kept_path(round), data + hashlib.sha256(data).digest())
        room = max(2, KEPT_BYTES_MAX // len(data))
        for old in self.kept()[:-room]:
            self._kept_path(old).unlink()

    def kept(self) -> list[int]:
        """The rounds whose models were kept, in order."""
        return sorted(int(path.stem.removeprefix("round-")) for path in self._folder.glob("round-*.f32"))

    def load_kept(self, round: int, model_digest: str) -> tuple[Vector, Vector] | None:
        """θ_t and the server optimizer's state, or None when they were not kept, or damaged since."""
        try:
            data = self._kept_path(round).read_bytes()
        except FileNotFoundError:
            return None
        content, seal = data[:-_SEAL_BYTES], data[-_SEAL_BYTES:]
        if hashlib.sha256(content).digest() != seal:
            return None
        values = np.frombuffer(content, "<f4", offset=_SIZE_BYTES)
        size = int.from_bytes(content[:_SIZE_BYTES], "little")
        theta, state = values[:size].copy(), values[size:].copy()
        return (theta, state) if digest(theta) == model_digest else None

    def close(self) -> None:
        """Close the slots' files."""
        for file in self._files:
            os.close(file)

    def _kept_path(self, round: int) -> Path:
        return self._folder / f"round-{round:08}.f32"
