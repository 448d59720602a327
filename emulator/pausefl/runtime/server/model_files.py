"""The model files of a run: the last model, and the best model on held-out training data."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from pausefl.runtime.evaluator.plan import DTYPE_BYTES, NO_REST, ModelRest, StoredTensor
from pausefl_process.files import write_durably
from pausefl_proto.errors import EvaluatorLost
from pausefl_proto.wire import Manifest, Vector, digest

# How many models' estimated statistics are kept: those of the last model and of the best.
_MOST_NOTED = 2


class ModelFiles:
    """model.safetensors and best_model.safetensors in a run directory, each written whole or not at all.

    They hold a model's whole `state_dict`: θ, constants, and running statistics.
    """

    def __init__(self, run_dir: Path, manifest: Manifest, rest: ModelRest = NO_REST) -> None:
        self._run_dir = run_dir
        self._manifest = manifest
        self._rest = rest
        self._best = run_dir / "best_model.safetensors"
        fresh = [np.full(t.size, t.name.endswith("var"), np.float32) for t in rest.local.tensors]
        self._noted: dict[int, tuple[Vector, Vector]] = {}
        self._latest: Vector = np.concatenate([np.empty(0, np.float32), *fresh])
        self._loaded: tuple[Vector | None, str] = None, ""  # θ and digest

    def of_model(self, theta: Vector) -> Vector:
        """θ without its control variate, which evaluators and model files do not have."""
        return theta if theta.size == self._manifest.of_model.size else self._manifest.without_control(theta)

    def note(self, theta: Vector, statistics: Vector) -> None:
        """Keep the estimated values of running statistics that no client sends, for the file of this model."""
        if statistics.size != (due := self._rest.local.size):
            raise EvaluatorLost(f"the evaluator estimates {statistics.size} running statistics, the model has {due}")
        self._latest = statistics
        self._noted.pop(id(theta), None)
        self._noted[id(theta)] = theta, statistics
        if len(self._noted) > _MOST_NOTED:
            del self._noted[next(iter(self._noted))]

    def save_last(self, theta: Vector) -> None:
        """Write the model of the last round, (d,) float32."""
        write_durably(self._run_dir / "model.safetensors", self._bytes(theta, {}))

    def save(self, round: int, theta: Vector) -> None:
        """Write the best model so far, with its round and the log's digest of it, which covers a control variate."""
        loaded, model_digest = self._loaded
        model_digest = model_digest if theta is loaded else digest(theta)
        write_durably(self._best, self._bytes(theta, {"round": str(round), "model_digest": model_digest}))

    def load(self) -> tuple[int, Vector, str] | None:
        """The round, θ and digest of the best model so far; None if there is none, or its file is damaged."""
        try:
            with safe_open(self._best, framework="np") as file:
                parts = [file.get_tensor(tensor.name_in_model).ravel() for tensor in self._manifest.of_model.tensors]
                noted, theta = file.metadata(), np.concatenate(parts)
                self._loaded = theta, noted["model_digest"]
                return int(noted["round"]), *self._loaded
        except (FileNotFoundError, SafetensorError, KeyError, TypeError, ValueError):
            return None

    def forget_after(self, round: int) -> None:
        """Delete the best model so far if it is of a later round."""
        if (kept := self.load()) is not None and kept[0] > round:
            self._best.unlink()

    def _bytes(self, theta: Vector, metadata: Mapping[str, str]) -> bytes:
        noted = self._noted.get(id(theta))
        statistics = self._latest if noted is None else noted[1]
        named = (*_constants(self._manifest.of_model, self.of_model(theta)), *_constants(self._rest.local, statistics))
        tensors = {constant.name: constant for constant in (*named, *self._rest.constants)}
        again = {name: tensors[first]._replace(name=name) for name, first in self._rest.tied.items()}
        return _safetensors([*tensors.values(), *again.values()], metadata)


def _constants(manifest: Manifest, values: Vector) -> list[StoredTensor]:
    parts = zip(manifest.tensors, manifest.split(values).values(), strict=True)
    return [StoredTensor(t.name_in_model, "F32", t.shape, part.astype("<f4").tobytes()) for t, part in parts]


def _safetensors(tensors: list[StoredTensor], metadata: Mapping[str, str]) -> bytes:
    """The bytes of a safetensors file. That package writes through numpy, which lacks some of the format's dtypes."""
    header: dict[str, object] = {"__metadata__": metadata} if metadata else {}
    ordered, start = sorted(tensors, key=lambda t: -DTYPE_BYTES[t.dtype]), 0  # so that each value is aligned
    for tensor in ordered:
        end = start + len(tensor.data)
        header[tensor.name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": (start, end)}
        start = end
    told = json.dumps(header).encode()
    told += b" " * (-len(told) % 8)
    return b"".join((len(told).to_bytes(8, "little"), told, *(tensor.data for tensor in ordered)))
