"""Hand-made HTTP/2 that breaks the rules, as any peer without this project's code may send it to a gRPC server."""

import random
import struct
from collections.abc import Callable

from pausefl_proto.wire import SERVICE

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RESET, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
END_STREAM, END_HEADERS = 1, 4


def frame(kind: int, flags: int, stream: int, payload: bytes = b"", length: int | None = None) -> bytes:
    """A frame; `length` is the length it states, if that is a lie."""
    size = len(payload) if length is None else length
    return struct.pack(">I", size)[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def header(name: str, value: str) -> bytes:
    """A literal header that enters no table (RFC 7541, 6.2.2); both texts are shorter than 127 bytes."""
    return b"\0" + bytes((len(name),)) + name.encode() + bytes((len(value),)) + value.encode()


def call(stream: int, path: str = f"/{SERVICE}/Join") -> bytes:
    """The headers that begin a gRPC call."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "localhost",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    return frame(HEADERS, END_HEADERS, stream, b"".join(header(*field) for field in fields.items()))


def message(stream: int, data: bytes, length: int | None = None, *, compressed: bool = False) -> bytes:
    """A gRPC message in one DATA frame; `length` is the length it states, if that is a lie."""
    size = len(data) if length is None else length
    return frame(DATA, 0, stream, bytes((compressed,)) + struct.pack(">I", size) + data)


def opening(settings: bytes = b"") -> bytes:
    """The first bytes of a client's connection."""
    return PREFACE + frame(SETTINGS, 0, 0, settings)


def _random_frame(rng: random.Random) -> bytes:
    stream, payload = rng.choice((0, 1, 2, 3, 2**31 - 1)), rng.randbytes(rng.randrange(40))
    return frame(rng.randrange(12), rng.randrange(256), stream, payload)


def _random_headers(rng: random.Random) -> list[bytes]:
    return [opening(), *(frame(HEADERS, rng.choice((4, 5, 0)), 2 * i + 1, rng.randbytes(30)) for i in range(30))]


def _pings_and_settings(rng: random.Random) -> list[bytes]:
    unknown = struct.pack(">HI", rng.randrange(9), rng.choice((0, 1, 2**31 - 1, 2**32 - 1)))
    flood = [frame(SETTINGS, 0, 0, unknown), frame(PING, 0, 0, bytes(8)), frame(PRIORITY, 0, 1, bytes(5))]
    return [opening(), *(rng.choice(flood) for _ in range(200))]


# Calls that are cancelled at once (CVE-2023-44487), and a header block that never ends (CVE-2024-27316).
_RAPID_RESETS = [opening(), *(call(i) + frame(RESET, 0, i, bytes(4)) for i in range(1, 200, 2))]
_MORE_HEADERS = frame(CONTINUATION, 0, 1, header("x" * 30, "y" * 90) * 20)
_ENDLESS_HEADERS = [opening(), frame(HEADERS, 0, 1, header("a", "b")), *([_MORE_HEADERS] * 100)]
_NO_HTTP2 = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"


def _broken_windows(rng: random.Random) -> list[bytes]:
    window = frame(WINDOW, 0, rng.choice((0, 1)), struct.pack(">I", rng.choice((0, 2**31 - 1, 2**32 - 1))))
    return [opening(), call(1), *([window] * 20)]


def _lying_messages(rng: random.Random) -> list[bytes]:
    lies = [message(1, rng.randbytes(20), rng.choice((0, 5, 2**20, 2**32 - 1)), compressed=rng.random() < 0.3)]
    return [opening(), call(1), *(lies * 20)]


def _other_calls(rng: random.Random) -> list[bytes]:
    paths = ("/", "/x/y", f"/{SERVICE}/", f"/{SERVICE}/Leave", "/grpc.reflection.v1.ServerReflection/Info")
    return [opening(), *(call(2 * i + 1, rng.choice(paths)) + message(2 * i + 1, b"x") for i in range(30))]


def _lying_frames(rng: random.Random) -> list[bytes]:
    return [opening(), call(1), frame(DATA, 0, 1, rng.randbytes(30), rng.choice((0, 16_385, 2**24 - 1)))] * 3


ATTACKS: dict[str, Callable[[random.Random], list[bytes]]] = {
    "no HTTP/2": lambda rng: [rng.randbytes(rng.choice((1, 9, 100, 4000))) for _ in range(4)],
    "TLS or HTTP/1": lambda rng: [rng.choice(_NO_HTTP2)],
    "random frames": lambda rng: [opening(), *(_random_frame(rng) for _ in range(60))],
    "random headers": _random_headers,
    "pings and settings": _pings_and_settings,
    "rapid resets": lambda _: _RAPID_RESETS,
    "endless headers": lambda _: _ENDLESS_HEADERS,
    "broken windows": _broken_windows,
    "lying messages": _lying_messages,
    "other calls": _other_calls,
    "lying frames": _lying_frames,
}
"""By name: the pieces that one connection sends."""
