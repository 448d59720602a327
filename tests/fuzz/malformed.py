"""Malformed messages made from sound ones; the same random generator gives the same bytes."""

import math
import random
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from pausefl_proto.wire import pack

Way = Callable[[Message, bytes, random.Random], bytes]

_INTEGERS = (0, 1, 2, 127, 128, 2**16, 2**31 - 1, 2**31, 2**32 - 1)
_LONG_INTEGERS = (*_INTEGERS, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1)
_FLOATS = (math.nan, math.inf, -math.inf, -1.0, -0.0, 5e-324, 1e30, 1.7e308)
_TEXTS = ("", "\0", "\x1b[2J", "client-000", "../../etc/passwd", "é" * 99, "<img src=x>", "%n%s", "x" * 70_000)
_VALUES: dict[int, Sequence[object]] = {
    FieldDescriptor.CPPTYPE_DOUBLE: _FLOATS,
    FieldDescriptor.CPPTYPE_STRING: _TEXTS,
    FieldDescriptor.CPPTYPE_BOOL: (False, True),
    FieldDescriptor.CPPTYPE_UINT64: _LONG_INTEGERS,
}
_MOST_REPEATS = 300


def malformed(message: Message, payload: bytes, rng: random.Random) -> tuple[str, bytes]:
    """Damage a message in a random way; returns the way's name and the bytes."""
    name = rng.choice(list(WAYS))
    return name, WAYS[name](message, payload, rng)


def _fields(message: Message) -> Iterator[tuple[Message, Any]]:
    """Every field of the message and of its nested messages, set or not."""
    for field in message.DESCRIPTOR.fields:
        yield message, field
        if field.message_type is not None and not field.is_repeated and message.HasField(field.name):
            yield from _fields(getattr(message, field.name))


def _hostile_value(field: Any, rng: random.Random) -> object:
    if field.type == FieldDescriptor.TYPE_BYTES:
        return rng.randbytes(rng.randrange(64))
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        return rng.randrange(-1, 99)
    return rng.choice(_VALUES.get(field.cpp_type, _INTEGERS))


def _spoil(parent: Message, field: Any, rng: random.Random) -> None:
    """Give one field a value that no honest peer sends, or clear it."""
    values = getattr(parent, field.name)
    if field.is_repeated and field.message_type is not None and field.message_type.GetOptions().map_entry:
        value = field.message_type.fields_by_name["value"]
        hostile = (_hostile_value(value, rng) for _ in range(rng.randrange(_MOST_REPEATS)))
        values.update({f"{rng.choice(_TEXTS)}{i}": one for i, one in enumerate(hostile)})
    elif field.is_repeated and field.message_type is not None:
        for _ in range(rng.randrange(_MOST_REPEATS)):
            values.add().CopyFrom(values[0])
    elif field.is_repeated:
        values.extend(_hostile_value(field, rng) for _ in range(rng.randrange(_MOST_REPEATS)))
    elif field.message_type is not None or rng.random() < 0.1:
        parent.ClearField(field.name)
    else:
        setattr(parent, field.name, _hostile_value(field, rng))


def _hostile_fields(message: Message, payload: bytes, rng: random.Random) -> bytes:
    copy = type(message)()
    copy.CopyFrom(message)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        _spoil(*rng.choice(list(_fields(copy))), rng)
    return _packed(copy, payload)


def _packed(message: Message, payload: bytes) -> bytes:
    return pack(message, memoryview(payload)) if payload else message.SerializeToString()


def _truncated(message: Message, payload: bytes, rng: random.Random) -> bytes:
    data = _packed(message, payload)
    return data[: rng.randrange(len(data))] if data else data


def _flipped(message: Message, payload: bytes, rng: random.Random) -> bytes:
    data = bytearray(_packed(message, payload))
    for _ in range(rng.choice((1, 1, 2, 8))):
        if data:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def _wrong_size(message: Message, payload: bytes, rng: random.Random) -> bytes:
    return _packed(message, payload[: rng.randrange(len(payload) + 1)] + rng.randbytes(rng.randrange(9)))


def _wrong_values(message: Message, payload: bytes, rng: random.Random) -> bytes:
    """Floats that no update or model has, under another vector's checksum."""
    value = struct.pack("<f", rng.choice((math.nan, math.inf, -math.inf, 3e38)))
    return _packed(message, value * max(1, len(payload) // 4))


def _lying_payload(message: Message, payload: bytes, rng: random.Random) -> bytes:
    """A payload that states a wrong length."""
    length = rng.choice((b"\xff" * 4 + b"\x0f", b"\xff" * 9 + b"\x01", b"\x80\x80", b"\x05", b""))
    return b"\x7a" + length + rng.randbytes(rng.randrange(5)) + message.SerializeToString()


def _unknown_fields(message: Message, payload: bytes, rng: random.Random) -> bytes:
    """Nested groups, and fields of other protocols."""
    depth = rng.choice((1, 10, 99, 101, 5000))
    deep = b"\xa3\x06" * depth + b"\xa4\x06" * rng.choice((depth, depth - 1, 0))
    return rng.choice((deep, b"\xf8\xff\xff\xff\x0f\x01", b"\xc2\x3e\x03abc" * 50)) + _packed(message, payload)


WAYS: dict[str, Way] = {
    "hostile fields": _hostile_fields,
    "truncated": _truncated,
    "flipped bits": _flipped,
    "random bytes": lambda _, __, rng: rng.randbytes(rng.choice((0, 1, 2, 5, 30, 300, 3000))),
    "doubled": lambda message, payload, _: message.SerializeToString() + _packed(message, payload),
    "wrong size": _wrong_size,
    "wrong values": _wrong_values,
    "lying payload": _lying_payload,
    "unknown fields": _unknown_fields,
}
"""By name. Callers choose the messages to damage, also of other rounds, attempts and kinds."""
