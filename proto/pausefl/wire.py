"""Tensors on the wire: one flat little-endian float32 vector, cut into frames, with a manifest and a digest.

No pickle anywhere: bytes from the other side become an array of floats or a `WireError`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from pausefl.errors import WireError
from pausefl.v1 import federation_pb2 as pb

Vector = npt.NDArray[np.float32]

PROTOCOL_VERSION = 1
SERVICE = pb.DESCRIPTOR.services_by_name["Federation"].full_name
MAX_FRAME_BYTES = 1 << 20
# A message holds one frame and its header.
MAX_MESSAGE_BYTES = MAX_FRAME_BYTES + (64 << 10)

_DTYPE = np.dtype("<f4")


@dataclass(frozen=True, slots=True)
class Tensor:
    """One named array of a model."""

    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of float32 values."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a flat vector means: its tensors, in order."""

    tensors: tuple[Tensor, ...]

    @property
    def size(self) -> int:
        """Number of float32 values, d."""
        return sum(tensor.size for tensor in self.tensors)

    def to_message(self) -> pb.Manifest:
        """The manifest as it travels."""
        return pb.Manifest(
            tensors=[pb.Tensor(name=t.name, shape=t.shape, dtype="float32") for t in self.tensors],
        )

    @staticmethod
    def from_message(message: pb.Manifest) -> "Manifest":
        """The manifest as it arrived; WireError for a dtype other than float32."""
        for tensor in message.tensors:
            if tensor.dtype != "float32":
                raise WireError(f"tensor {tensor.name!r} has dtype {tensor.dtype!r}, only float32 travels")
        return Manifest(tuple(Tensor(t.name, tuple(t.shape)) for t in message.tensors))

    def split(self, vector: Vector) -> dict[str, Vector]:
        """Views of `vector`, (size,) float32, by tensor name and in its shape."""
        parts: dict[str, Vector] = {}
        start = 0
        for tensor in self.tensors:
            parts[tensor.name] = vector[start : start + tensor.size].reshape(tensor.shape)
            start += tensor.size
        return parts


def digest(vector: npt.NDArray[Any]) -> str:
    """xxh3_128 of the vector's bytes: finds damage, not malice (that is what TLS is for)."""
    return xxhash.xxh3_128_hexdigest(_bytes_of(vector))


def frame_vector(vector: Vector, vector_digest: str | None = None) -> tuple[pb.Vector, list[pb.Frame]]:
    """Cut a vector into its header (which carries frame 0) and the frames that follow it."""
    data = _bytes_of(vector)
    n_frames = max(1, -(-len(data) // MAX_FRAME_BYTES))
    frames = [
        pb.Frame(index=i, payload=bytes(data[i * MAX_FRAME_BYTES : (i + 1) * MAX_FRAME_BYTES])) for i in range(n_frames)
    ]
    header = pb.Vector(size_bytes=len(data), frames=n_frames, digest=vector_digest or digest(vector), first=frames[0])
    return header, frames[1:]


class Assembler:
    """Collects the frames of one vector whose header announced them, and checks the whole at the end."""

    def __init__(self, header: pb.Vector, expected_size: int) -> None:
        """Raise WireError unless the header announces exactly `expected_size` float32 values in proper frames."""
        expected_bytes = expected_size * _DTYPE.itemsize
        if header.size_bytes != expected_bytes:
            raise WireError(f"announces {header.size_bytes} bytes, the model has {expected_bytes}")
        if header.frames != max(1, -(-expected_bytes // MAX_FRAME_BYTES)):
            raise WireError(f"announces {header.frames} frames for {expected_bytes} bytes")
        self._size_bytes = expected_bytes
        self._n_frames = header.frames
        self._digest = header.digest
        self._payloads: list[bytes] = []
        self.add(header.first)

    @property
    def complete(self) -> bool:
        """True once every frame is here."""
        return len(self._payloads) == self._n_frames

    def add(self, frame: pb.Frame) -> None:
        """Take the next frame; WireError if it is out of order or of the wrong length."""
        index = len(self._payloads)
        if frame.index != index or self.complete:
            raise WireError(f"frame {frame.index} where frame {index} of {self._n_frames} was due")
        payload = frame.payload
        if len(payload) != min(MAX_FRAME_BYTES, self._size_bytes - index * MAX_FRAME_BYTES):
            raise WireError(f"frame {index} has {len(payload)} bytes")
        self._payloads.append(payload)

    def finish(self, *, check_finite: bool) -> Vector:
        """The vector, (size,) float32, read-only; WireError on a bad checksum or (if asked) a non-finite value."""
        data = self._payloads[0] if len(self._payloads) == 1 else b"".join(self._payloads)
        if xxhash.xxh3_128_hexdigest(data) != self._digest:
            raise WireError("checksum does not match")
        vector: Vector = np.frombuffer(data, _DTYPE)
        if check_finite and not np.isfinite(vector).all():
            raise WireError("holds values that are not finite")
        return vector


def serialise_job(round: int, attempt: int, model: Vector, model_digest: str) -> Sequence[bytes]:
    """A round's job as the bytes of its messages: made once and sent to every chosen client as they are."""
    header, frames = frame_vector(model, model_digest)
    first = pb.ServerMessage(job=pb.Job(round=round, attempt=attempt, model=header))
    return [first.SerializeToString(), *(pb.ServerMessage(frame=frame).SerializeToString() for frame in frames)]


def _bytes_of(vector: npt.NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(vector, _DTYPE).data.cast("B")
