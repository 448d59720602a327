"""The models that a run leaves: the last one, and the one that did best on held-out training data."""

from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from pausefl_process.files import write_durably
from pausefl_proto.wire import Manifest, Vector


class ModelFiles:
    """model.safetensors and best_model.safetensors in a run directory, each written whole or not at all."""

    def __init__(self, run_dir: Path, manifest: Manifest) -> None:
        self._run_dir = run_dir
        self._manifest = manifest
        self._best = run_dir / "best_model.safetensors"

    def save_last(self, theta: Vector) -> None:
        """Write the model of the last round, (d,) float32."""
        write_durably(self._run_dir / "model.safetensors", save(self._tensors(theta)))

    def save(self, round: int, theta: Vector) -> None:
        """Write the best model so far, with its round in the file."""
        write_durably(self._best, save(self._tensors(theta), {"round": str(round)}))

    def load(self) -> tuple[int, Vector] | None:
        """The best model so far and its round; None where there is none, or it is damaged."""
        try:
            with safe_open(self._best, framework="np") as file:
                parts = [file.get_tensor(tensor.name).ravel() for tensor in self._manifest.tensors]
                return int(file.metadata()["round"]), np.concatenate(parts)
        except (FileNotFoundError, SafetensorError, KeyError, TypeError, ValueError):
            return None

    def forget_after(self, round: int) -> None:
        """Take the best model so far away where it is of a later round."""
        if (kept := self.load()) is not None and kept[0] > round:
            self._best.unlink()

    def _tensors(self, theta: Vector) -> dict[str, Vector]:
        return {name: np.ascontiguousarray(tensor) for name, tensor in self._manifest.split(theta).items()}
