"""Records that a run gets from its evaluator: the initial model, the rest of its file, evaluations. No torch here."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from pausefl_proto.wire import Manifest, Vector
from pausefl_server.records import Evaluation

DTYPE_BYTES = {"BOOL": 1, "U8": 1, "I8": 1, "I16": 2, "F16": 2, "BF16": 2, "I32": 4, "F32": 4, "I64": 8, "F64": 8}
"""The bytes of one value of each dtype, by its name in safetensors."""


class StoredTensor(NamedTuple):
    """A tensor as a model's file stores it: name, dtype, shape and values."""

    name: str
    dtype: str
    """The dtype's name in safetensors, such as "BOOL" or "I64"."""
    shape: tuple[int, ...]
    data: bytes
    """Its values in order, little endian."""


@dataclass(frozen=True)
class ModelRest:
    """All of a model's `state_dict` that θ does not hold."""

    constants: tuple[StoredTensor, ...] = ()
    tied: Mapping[str, str] = field(default_factory=dict)
    """Further names of tensors, each with the tensor's first name."""
    local: Manifest = field(default_factory=lambda: Manifest(()))
    """The running statistics that stay with the clients. The evaluator estimates its own for each model."""


NO_REST = ModelRest()


class InitialModel(NamedTuple):
    """The model that a run begins with."""

    manifest: Manifest
    theta_0: Vector
    """(d,) float32."""
    rest: ModelRest = NO_REST


class Evaluated(NamedTuple):
    """The results of a model's evaluation."""

    evaluations: tuple[Evaluation, ...]
    statistics: Vector | None = None
    """Estimates of `ModelRest.local`, float32; None if there are none."""
