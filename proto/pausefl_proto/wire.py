"""The wire format of models and updates: one flat little-endian vector, cut into frames, with a manifest and a digest.

Nothing is pickled: bytes from the other side become an array of floats, or raise a `WireError`.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import Any, Protocol, TypeVar

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
"""A type of message that has its own checksum."""

PROTOCOL_VERSION = 1
SERVICE = pb.DESCRIPTOR.services_by_name["Federation"].full_name
MOST_ROUNDS = 1_000_000
"""The greatest number of rounds. A client may need time linear in the round's number, such as to step a schedule."""
NOT_FINITE = "holds values that are not finite, or too great to be averaged"
"""The reason for refusing an update whose training diverged."""
MAX_FRAME_BYTES = 1 << 20
# A message holds one frame and its header.
MAX_MESSAGE_BYTES = MAX_FRAME_BYTES + (64 << 10)
MAX_STATISTICS = 1024
"""This many statistics fit into a message beside a frame. With more labels than this, no label counts are disclosed."""

_DTYPE = np.dtype("<f4")
# The greatest number of characters that errors quote of a name from the other side.
_LONGEST_NAME = 100
# The mean of values up to this one is still finite.
_GREATEST = np.float32(1e30)
# Prefixes. The tensor of a control variate or a running statistic has the model tensor's name after its prefix.
_CONTROL = "control/"
_STATISTICS = "statistics/"
# The protobuf tag of field 15, length-delimited: `payload` of every message that has one.
_PAYLOAD_TAG = b"\x7a"
# The protobuf tag of field 14, eight bytes: `checksum` of every message that has one.
_CHECKSUM_TAG = b"\x71"
_CHECKSUM_BYTES = 9


class MessageStream(Protocol):
    """One end of a client's bidirectional stream, one message a call; OSError when the stream breaks."""

    async def read(self) -> bytes | None:
        """The next message's bytes, None when the other side has closed the stream."""

    async def write(self, message: bytes) -> None:
        """Send one message; returns when it has been handed to the network."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """The name and shape of one tensor of a flat vector."""

    name: str
    shape: tuple[int, ...]

    @property
    def name_in_model(self) -> str:
        """The tensor's name in the model, without the prefix of running statistics."""
        return self.name.removeprefix(_STATISTICS)

    @property
    def size(self) -> int:
        """Number of float32 values."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Manifest:
    """The layout of a flat vector: trained parameters, then their control variate if any, then running statistics."""

    tensors: tuple[TensorSpec, ...]
    constants: str = ""
    """A digest of the model's other tensors, which are not sent and equal everywhere. Empty if there are none."""
    probe: tuple[float, ...] = field(default=(), compare=False)
    """What the model, with fixed values, makes of held-out examples: the same everywhere, but for rounding."""

    @cached_property
    def size(self) -> int:
        """Number of float32 values of the vector, d."""
        return sum(tensor.size for tensor in self.tensors)

    @cached_property
    def of_model(self) -> "Manifest":
        """The manifest of the model's own tensors: all except those of a control variate."""
        return Manifest(tuple(tensor for tensor in self.tensors if not tensor.name.startswith(_CONTROL)))

    @cached_property
    def model_size(self) -> int:
        """Number of values of the trained parameters."""
        return self.of_model.size - self.statistics.size

    @cached_property
    def statistics(self) -> "Manifest":
        """The manifest of the running statistics. They are averaged, but not clipped, noised or charged."""
        return Manifest(tuple(tensor for tensor in self.tensors if tensor.name.startswith(_STATISTICS)))

    @cached_property
    def charged(self) -> "Manifest":
        """The manifest of the part that is clipped, noised and charged: all except the running statistics."""
        return Manifest(self.tensors[: len(self.tensors) - len(self.statistics.tensors)])

    def with_control(self) -> "Manifest":
        """This manifest with a control variate after the parameters, of their shapes. It is sent in both directions."""
        control = (TensorSpec(f"{_CONTROL}{t.name}", t.shape) for t in self.charged.tensors)
        return replace(self, tensors=(*self.charged.tensors, *control, *self.statistics.tensors))

    def with_statistics(self, statistics: Mapping[str, tuple[int, ...]]) -> "Manifest":
        """This manifest followed by running statistics, whose shapes are given by name."""
        behind = (TensorSpec(f"{_STATISTICS}{name}", shape) for name, shape in statistics.items())
        return replace(self, tensors=(*self.tensors, *behind))

    def with_no_control(self, values: Vector) -> Vector:
        """The vector of this manifest for a model's `values`. The control variate, if the manifest has one, is 0."""
        d = self.model_size
        return np.concatenate((values[:d], np.zeros(self.size - values.size, np.float32), values[d:]))

    def without_control(self, values: Vector) -> Vector:
        """The model's values from this manifest's `values`, without the control variate."""
        return np.concatenate((values[: self.model_size], values[self.charged.size :]))

    def to_message(self) -> pb.Manifest:
        """The manifest as a message."""
        tensors = [pb.Tensor(name=t.name, shape=t.shape, dtype="float32") for t in self.tensors]
        return pb.Manifest(tensors=tensors, constants=self.constants, probe=self.probe)

    @staticmethod
    def from_message(message: pb.Manifest) -> "Manifest":
        """The manifest from a message. WireError for a dtype other than float32."""
        for tensor in message.tensors:
            if tensor.dtype != "float32":
                name, dtype = (shown(text, _LONGEST_NAME) for text in (tensor.name, tensor.dtype))
                raise WireError(f"tensor {name!r} has dtype {dtype!r}, only float32 travels")
        tensors = tuple(TensorSpec(t.name, tuple(t.shape)) for t in message.tensors)
        return Manifest(tensors, message.constants, tuple(message.probe))

    def split(self, vector: Vector) -> dict[str, Vector]:
        """Views of `vector`, (size,) float32: one for each tensor by its name, in its shape."""
        parts = np.split(vector, [*accumulate(tensor.size for tensor in self.tensors)])
        return {t.name: part.reshape(t.shape) for t, part in zip(self.tensors, parts, strict=False)}


def check_probe(theirs: Iterable[float], ours: Iterable[float], who: str) -> None:
    """WireError if a client, or an evaluator (`who`), makes other numbers of held-out examples than the run's model."""
    for there, here in zip(theirs, ours, strict=False):
        # Processors and versions of torch round otherwise.
        if not math.isclose(there, here, rel_tol=0.01, abs_tol=0.01):
            found = f"with equal parameters, held-out examples give {there:.4g} at the {who}, {here:.4g} in the run"
            due = "workload.dataset and workload.model must be the same code, and read the same files, on all hosts"
            raise WireError(f"has other data, another model or another loss than this run: {found}; {due}")


def digest(vector: npt.NDArray[Any]) -> str:
    """The xxh3_128 hash of the vector's bytes. It detects damage, but not forgery; TLS prevents that."""
    return xxhash.xxh3_128_hexdigest(_bytes_of(vector))


def cut(vector: npt.NDArray[Any], vector_digest: str) -> tuple[pb.Vector, list[memoryview]]:
    """The header and the frames of a float32 or an encoded vector. Frames are views of at most 1 MiB, not copies."""
    data = _bytes_of(vector)
    frames = [data[start : start + MAX_FRAME_BYTES] for start in range(0, len(data), MAX_FRAME_BYTES)] or [data]
    return pb.Vector(size_bytes=len(data), frames=len(frames), digest=vector_digest), frames


class Assembler:
    """Joins the frames of one vector as its header announced them, and checks the whole vector at the end.

    Each frame is copied and hashed as it arrives, while it is in the processor's caches. A single frame is not copied.
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
        self._header = header
        self._n_added = 0
        self._hash = xxhash.xxh3_128()
        self._data = memoryview(b"")

    @property
    def complete(self) -> bool:
        """Whether all frames have arrived."""
        return self._n_added == self._header.frames

    def add(self, index: int, payload: memoryview) -> None:
        """Add the next frame. DamageError if it is out of order or has the wrong length."""
        if index != self._n_added or self.complete:
            raise DamageError(f"frame {index} where frame {self._n_added} of {self._header.frames} was due")
        start = index * MAX_FRAME_BYTES
        if len(payload) != min(MAX_FRAME_BYTES, self._header.size_bytes - start):
            raise DamageError(f"frame {index} has {len(payload)} bytes")
        self._hash.update(payload)
        if self._header.frames == 1:
            self._data = payload
        else:
            if index == 0:
                self._data = np.empty(self._header.size_bytes, np.uint8).data
            self._data[start : start + len(payload)] = payload
        self._n_added += 1

    def finish(self, *, check_finite: bool) -> Vector:
        """The decoded vector, (size,) float32, read-only.

        DamageError for missing frames or a wrong digest. With `check_finite`, WireError for NaN and beyond ±1e30.
        """
        if not self.complete:
            raise DamageError(f"ends after {self._n_added} of {self._header.frames} frames")
        if self._hash.hexdigest() != self._header.digest:
            raise DamageError("checksum does not match")
        vector = self._encoding.decode(self._data, self._size)
        vector.flags.writeable = False
        # The comparison is also false for NaN, which min and max return.
        if check_finite and vector.size and not (vector.min() >= -_GREATEST and vector.max() <= _GREATEST):
            raise WireError(NOT_FINITE)
        return vector


def pack(message: Message, payload: memoryview) -> bytes:
    """The message's encoding with its `payload`, which is added without protobuf. Fields may be in any order.

    The payload comes first: four bytes of tag and length before it leave a frame's floats aligned.
    """
    return _behind(payload, message.SerializeToString())


def _behind(payload: memoryview, encoding: bytes) -> bytes:
    return b"".join((_PAYLOAD_TAG, _varint(len(payload)), payload, encoding))


def unpack(data: bytes) -> tuple[bytes, memoryview]:
    """Split an encoding into its message and a view of its payload, empty if none. DamageError if it is cut short."""
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
    """The message's encoding: its payload, if there is one, then the message with a checksum at its end."""
    body = message.SerializeToString()
    sealed = b"".join((body, _CHECKSUM_TAG, xxhash.xxh3_64_intdigest(body).to_bytes(8, "little")))
    return sealed if payload is None else _behind(payload, sealed)


def decode(kind: type[Checked], data: bytes) -> tuple[Checked, memoryview]:
    """The message, and a view of its payload. DamageError if it is of another kind or does not match its checksum."""
    header, payload = unpack(data)
    try:
        message = kind.FromString(header)
    except DecodeError:
        raise DamageError("sent bytes that are no message") from None
    if message.HasField("checksum") and xxhash.xxh3_64_intdigest(header[:-_CHECKSUM_BYTES]) != message.checksum:
        raise DamageError("sent a message that does not match its checksum")
    return message, payload


def pack_job(round: int, attempt: int, model: Vector, model_digest: str, schedule: str = "") -> list[bytes]:
    """A round's job as the bytes of its messages. They are made once, and sent unchanged to every chosen client."""
    header, frames = cut(model, model_digest)
    job = pb.ServerMessage(job=pb.Job(round=round, attempt=attempt, model=header, schedule=schedule))
    rest = (pb.ServerMessage(frame=pb.Frame(index=index)) for index in range(1, len(frames)))
    return [encode(message, frame) for message, frame in zip((job, *rest), frames, strict=True)]


def _bytes_of(vector: npt.NDArray[Any]) -> memoryview:
    """The bytes of an encoded vector (uint8), or of a vector as float32."""
    return np.ascontiguousarray(vector, vector.dtype if vector.dtype == np.uint8 else _DTYPE).data.cast("B")


def _varint(value: int) -> bytes:
    """Protobuf's variable-length encoding of a length."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
