"""Tensors on the wire: one flat little-endian vector, cut into frames, with a manifest and a digest.

No pickle anywhere: bytes from the other side become an array of floats or a `WireError`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import xxhash
from google.protobuf.message import DecodeError, Message

from pausefl_proto.encoding import FLOAT32, Encoding
from pausefl_proto.errors import DamageError, WireError
from pausefl_proto.foreign_text import shown
from pausefl_proto.v1 import federation_pb2 as pb

Vector = npt.NDArray[np.float32]
Checked = TypeVar("Checked", pb.ClientMessage, pb.ServerMessage, pb.ExperimentOffer)
"""A message that carries a checksum of its own."""

PROTOCOL_VERSION = 1
SERVICE = pb.DESCRIPTOR.services_by_name["Federation"].full_name
MOST_ROUNDS = 1_000_000
"""The most rounds of a run. Before a round, a client may take time linear in its number, as for stepping a schedule."""
NOT_FINITE = "holds values that are not finite, or too great to be averaged"
"""Why an update is refused whose training diverged."""
MAX_FRAME_BYTES = 1 << 20
# A message holds one frame and its header.
MAX_MESSAGE_BYTES = MAX_FRAME_BYTES + (64 << 10)
MAX_STATISTICS = 1024
"""So many statistics fit beside a frame; clients of data sets with more labels disclose no label counts."""

_DTYPE = np.dtype("<f4")
# What is told of a name that the other side wrote, in characters.
_LONGEST_NAME = 100
# A mean of such values is still finite.
_GREATEST = np.float32(1e30)
# The name of a control variate's tensor, or of a running statistic, is that of the model's tensor after this.
_CONTROL = "control/"
_STATISTICS = "statistics/"
# Field 15, length-delimited: `payload` of every message that has one.
_PAYLOAD_TAG = b"\x7a"
# Field 14, eight bytes: `checksum` of every message that has one.
_CHECKSUM_TAG = b"\x71"
_CHECKSUM_BYTES = 9


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One named array of a model."""

    name: str
    shape: tuple[int, ...]

    @property
    def name_in_model(self) -> str:
        """Its name in the model itself."""
        return self.name.removeprefix(_STATISTICS)

    @property
    def size(self) -> int:
        """Number of float32 values."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Manifest:
    """The meaning of a flat vector: its tensors, in order."""

    tensors: tuple[TensorSpec, ...]
    constants: str = ""
    """A digest of the rest of the model, which is the same everywhere; empty where there is none."""

    @cached_property
    def size(self) -> int:
        """Number of float32 values, d."""
        return sum(tensor.size for tensor in self.tensors)

    @cached_property
    def of_model(self) -> "Manifest":
        """The model's own tensors: all but a control variate's."""
        return Manifest(tuple(tensor for tensor in self.tensors if not tensor.name.startswith(_CONTROL)))

    @cached_property
    def model_size(self) -> int:
        """Number of values of the trained parameters, which come first."""
        return self.of_model.size - self.statistics.size

    @cached_property
    def statistics(self) -> "Manifest":
        """The running statistics, which come last: averaged beside the update, neither clipped, noised nor charged."""
        return Manifest(tuple(tensor for tensor in self.tensors if tensor.name.startswith(_STATISTICS)))

    @cached_property
    def charged(self) -> "Manifest":
        """The part that is clipped, noised and charged: all but the statistics."""
        return Manifest(self.tensors[: len(self.tensors) - len(self.statistics.tensors)])

    def with_control(self) -> "Manifest":
        """The same with a control variate behind the parameters, of their shapes: it travels with them both ways."""
        control = (TensorSpec(f"{_CONTROL}{t.name}", t.shape) for t in self.charged.tensors)
        return replace(self, tensors=(*self.charged.tensors, *control, *self.statistics.tensors))

    def with_statistics(self, statistics: Mapping[str, tuple[int, ...]]) -> "Manifest":
        """The same followed by statistics, their shapes by name."""
        behind = (TensorSpec(f"{_STATISTICS}{name}", shape) for name, shape in statistics.items())
        return replace(self, tensors=(*self.tensors, *behind))

    def with_no_control(self, values: Vector) -> Vector:
        """Those of this manifest's tensors, where `values` are a model's: a control variate, if it has one, is 0."""
        d = self.model_size
        return np.concatenate((values[:d], np.zeros(self.size - values.size, np.float32), values[d:]))

    def without_control(self, values: Vector) -> Vector:
        """The other way round: a model's of this manifest's tensors."""
        return np.concatenate((values[: self.model_size], values[self.charged.size :]))

    def to_message(self) -> pb.Manifest:
        """The manifest as it travels."""
        return pb.Manifest(
            tensors=[pb.Tensor(name=t.name, shape=t.shape, dtype="float32") for t in self.tensors],
            constants=self.constants,
        )

    @staticmethod
    def from_message(message: pb.Manifest) -> "Manifest":
        """The manifest as it arrived; WireError for a dtype other than float32."""
        for tensor in message.tensors:
            if tensor.dtype != "float32":
                name, dtype = (shown(text, _LONGEST_NAME) for text in (tensor.name, tensor.dtype))
                raise WireError(f"tensor {name!r} has dtype {dtype!r}, only float32 travels")
        return Manifest(tuple(TensorSpec(t.name, tuple(t.shape)) for t in message.tensors), message.constants)

    def split(self, vector: Vector) -> dict[str, Vector]:
        """Views of `vector`, (size,) float32, by the tensor's name in the manifest and in its shape."""
        parts: dict[str, Vector] = {}
        start = 0
        for tensor in self.tensors:
            parts[tensor.name] = vector[start : start + tensor.size].reshape(tensor.shape)
            start += tensor.size
        return parts


def digest(vector: npt.NDArray[Any]) -> str:
    """xxh3_128 of the vector's bytes: finds damage, not malice (that is what TLS is for)."""
    return xxhash.xxh3_128_hexdigest(_bytes_of(vector))


def cut(vector: npt.NDArray[Any], vector_digest: str) -> tuple[pb.Vector, list[memoryview]]:
    """Header and frames of a float32 vector or an encoded one: views of at most 1 MiB, nothing is copied."""
    data = _bytes_of(vector)
    frames = [data[start : start + MAX_FRAME_BYTES] for start in range(0, len(data), MAX_FRAME_BYTES)] or [data]
    return pb.Vector(size_bytes=len(data), frames=len(frames), digest=vector_digest), frames


class Assembler:
    """Puts the frames of one vector together, whose header announced them, and checks the whole at the end.

    Each frame is copied and hashed as it comes, while the processor's caches hold it. A single one is not copied.
    """

    def __init__(self, header: pb.Vector, expected_size: int, encoding: Encoding = FLOAT32) -> None:
        """Raise DamageError unless the header announces exactly `expected_size` encoded values in proper frames."""
        expected_bytes = encoding.size_bytes(expected_size)
        if header.size_bytes != expected_bytes:
            raise DamageError(f"announces {header.size_bytes} bytes, the model has {expected_bytes}")
        if header.frames != max(1, -(-expected_bytes // MAX_FRAME_BYTES)):
            raise DamageError(f"announces {header.frames} frames for {expected_bytes} bytes")
        self._size = expected_size
        self._encoding = encoding
        self._size_bytes = expected_bytes
        self._n_frames = header.frames
        self._n_added = 0
        self._digest = header.digest
        self._hash = xxhash.xxh3_128()
        self._data = memoryview(b"")

    @property
    def complete(self) -> bool:
        """True once every frame is here."""
        return self._n_added == self._n_frames

    def add(self, index: int, payload: memoryview) -> None:
        """Take the next frame; DamageError if it is out of order or of the wrong length."""
        if index != self._n_added or self.complete:
            raise DamageError(f"frame {index} where frame {self._n_added} of {self._n_frames} was due")
        start = index * MAX_FRAME_BYTES
        if len(payload) != min(MAX_FRAME_BYTES, self._size_bytes - start):
            raise DamageError(f"frame {index} has {len(payload)} bytes")
        self._hash.update(payload)
        if self._n_frames == 1:
            self._data = payload
        else:
            if index == 0:
                self._data = np.empty(self._size_bytes, np.uint8).data
            self._data[start : start + len(payload)] = payload
        self._n_added += 1

    def finish(self, *, check_finite: bool) -> Vector:
        """The vector, (size,) float32, read-only.

        DamageError on missing frames or a bad checksum, WireError (if asked) on a non-finite value.
        """
        if not self.complete:
            raise DamageError(f"ends after {self._n_added} of {self._n_frames} frames")
        if self._hash.hexdigest() != self._digest:
            raise DamageError("checksum does not match")
        vector = self._encoding.decode(self._data, self._size)
        vector.flags.writeable = False
        # False for NaN as well: it passes through min and max.
        if check_finite and vector.size and not (vector.min() >= -_GREATEST and vector.max() <= _GREATEST):
            raise WireError(NOT_FINITE)
        return vector


def pack(message: Message, payload: memoryview) -> bytes:
    """The message's encoding with its `payload`, which protobuf never sees: fields may stand in any order.

    The payload comes first, where four bytes of tag and length leave a frame's floats aligned.
    """
    return _behind(payload, message.SerializeToString())


def _behind(payload: memoryview, encoding: bytes) -> bytes:
    return b"".join((_PAYLOAD_TAG, _varint(len(payload)), payload, encoding))


def unpack(data: bytes) -> tuple[bytes, memoryview]:
    """Split an encoding into the message without its payload and the payload, a view; empty where there is none.

    DamageError when the payload is cut off.
    """
    view = memoryview(data)
    if not data.startswith(_PAYLOAD_TAG):
        return data, view[:0]
    length = shift = 0
    for position in range(1, min(len(data), 6)):
        length |= (data[position] & 0x7F) << shift
        shift += 7
        if data[position] < 0x80:
            start, end = position + 1, position + 1 + length
            if end <= len(data):
                return data[end:], view[start:end]
            break
    raise DamageError("sent bytes that are no message")


def encode(message: Checked, payload: memoryview | None = None) -> bytes:
    """The message's encoding with a checksum at its end, behind its payload where it has one."""
    body = message.SerializeToString()
    sealed = b"".join((body, _CHECKSUM_TAG, xxhash.xxh3_64_intdigest(body).to_bytes(8, "little")))
    return sealed if payload is None else _behind(payload, sealed)


def decode(kind: type[Checked], data: bytes) -> tuple[Checked, memoryview]:
    """The message, and its payload as a view.

    DamageError when the bytes are no message of this kind, or not those that its checksum was made of.
    """
    header, payload = unpack(data)
    try:
        message = kind.FromString(header)
    except DecodeError:
        raise DamageError("sent bytes that are no message") from None
    if message.HasField("checksum") and xxhash.xxh3_64_intdigest(header[:-_CHECKSUM_BYTES]) != message.checksum:
        raise DamageError("sent a message that does not match its checksum")
    return message, payload


def pack_job(round: int, attempt: int, model: Vector, model_digest: str, schedule: str = "") -> list[bytes]:
    """A round's job as the bytes of its messages: made once and sent to every chosen client as they are."""
    header, frames = cut(model, model_digest)
    job = pb.ServerMessage(job=pb.Job(round=round, attempt=attempt, model=header, schedule=schedule))
    rest = (pb.ServerMessage(frame=pb.Frame(index=index)) for index in range(1, len(frames)))
    return [encode(message, frame) for message, frame in zip((job, *rest), frames, strict=True)]


def _bytes_of(vector: npt.NDArray[Any]) -> memoryview:
    """Those of an encoded vector, or of one as float32."""
    return np.ascontiguousarray(vector, vector.dtype if vector.dtype == np.uint8 else _DTYPE).data.cast("B")


def _varint(value: int) -> bytes:
    """Protobuf's encoding of a length."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
