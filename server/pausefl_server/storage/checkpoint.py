"""The model on disk: slots that are written in turn, so that one is always complete, and models kept for going back.

A slot holds only float32 bytes. Its digest identifies the round: the log has the digest of each round's model. So a
slot that was torn by a crash matches no round, and the run goes on from the round before.
"""

import hashlib
import os
from pathlib import Path

import numpy as np

from pausefl_process.files import begin_sync, sync_data, sync_folder, write_durably, write_over
from pausefl_proto.wire import Vector, digest

KEPT_BYTES_MAX = 1 << 30
"""The oldest kept models are deleted beyond this total size. The last two always stay."""

_SIZE_BYTES = 8
_SEAL_BYTES = hashlib.sha256().digest_size


class Checkpoint:
    """The model files in `folder`: θ_t in slot t mod `slots`, and the models that are kept, each in its own file."""

    def __init__(self, folder: Path, slots: int = 2) -> None:
        """`slots`: at least 2, so that the last model is complete while the next one is written."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._slots = slots
        self._file: int | None = None  # of the slot that is written; there may be more than a process may open
        sync_folder(folder)  # of slots that a process made and was killed

    def write(self, round: int, theta: Vector) -> None:
        """Begin to write θ_t to the disk. Work done before `sync` shortens the wait of `sync`."""
        path = self._slot_path(round)
        is_new = not path.exists()
        self.close()
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        if is_new:
            sync_folder(self._folder)
        write_over(self._file, theta.data.cast("B"))
        begin_sync(self._file)

    def sync(self) -> None:
        """Make the model that was written durable: after the return it survives a crash."""
        if self._file is not None:
            sync_data(self._file)
            self.close()

    def load(self, round: int, model_digest: str) -> Vector | None:
        """θ_t, (d,) float32. None if its slot does not hold it, because it was torn or overwritten."""
        path = self._slot_path(round)
        theta: Vector = np.fromfile(path, "<f4") if path.exists() else np.empty(0, "<f4")
        return theta if digest(theta) == model_digest else None

    def keep(self, round: int, theta: Vector, optimizer_state: Vector | None) -> None:
        """Keep θ_t and the server optimizer's state durably in a file. The oldest such files are deleted for room."""
        state = np.empty(0, "<f4") if optimizer_state is None else optimizer_state
        size = theta.size.to_bytes(_SIZE_BYTES, "little")
        data = size + theta.astype("<f4").tobytes() + state.astype("<f4").tobytes()
        write_durably(self._kept_path(round), data + hashlib.sha256(data).digest())
        room = max(2, KEPT_BYTES_MAX // len(data))
        for old in sorted(self.kept(), key=lambda t: (t <= round, t))[:-room]:  # later rounds were taken back
            self._kept_path(old).unlink()

    def kept(self) -> list[int]:
        """The rounds with kept models, in order."""
        return sorted(int(path.stem.removeprefix("round-")) for path in self._folder.glob("round-*.f32"))

    def load_kept(self, round: int, model_digest: str) -> tuple[Vector, Vector] | None:
        """The kept θ_t and server optimizer's state. None if they were not kept, or are damaged."""
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
        """Close the file of a slot that was written and not made durable, if any."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _slot_path(self, round: int) -> Path:
        return self._folder / f"slot-{round % self._slots}.f32"

    def _kept_path(self, round: int) -> Path:
        return self._folder / f"round-{round:08}.f32"
