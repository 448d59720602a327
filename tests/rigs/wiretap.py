"""A tap on the wire between clients and a server."""

import threading
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import grpc

from pausefl_proto.v1 import federation_pb2 as pb
from pausefl_proto.wire import MAX_MESSAGE_BYTES, SERVICE, unpack

_OPTIONS = (("grpc.max_receive_message_length", MAX_MESSAGE_BYTES), ("grpc.so_reuseport", 0))


@dataclass
class Stream:
    """All messages of one client's stream, as pairs of header (the message without its payload) and payload."""

    up: list[tuple[pb.ClientMessage, bytes]] = field(default_factory=list)
    down: list[tuple[pb.ServerMessage, bytes]] = field(default_factory=list)

    @property
    def client_id(self) -> str:
        """The client id in the stream's hello."""
        return self.up[0][0].hello.client_id

    def updates(self) -> Iterator[tuple[pb.Result, bytes]]:
        """Yield every answer with an update, and those of its bytes that were sent before the stream broke."""
        result: pb.Result | None = None
        data = b""
        for message, payload in [*self.up, (pb.ClientMessage(result=pb.Result()), b"")]:
            kind = message.WhichOneof("kind")
            if kind == "result" and result is not None:
                yield result, data
            if kind == "result":
                result, data = message.result if payload else None, payload
            elif kind == "frame":
                data += payload


class Wiretap:
    """A gRPC relay that records all messages. It keeps running when the server or the clients restart."""

    def __init__(self) -> None:
        self.streams: list[Stream] = []
        self.upstream = ""
        self._passed = threading.Condition()
        self._count = 0
        join: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(self._join)
        self._threads = ThreadPoolExecutor(32)
        self._server = grpc.server(self._threads, options=_OPTIONS)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Join": join}),))
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()

    def wait_for(self, messages: int, timeout_s: float = 30.0) -> None:
        """Return when `messages` more messages have passed."""
        with self._passed:
            until = self._count + messages
            assert self._passed.wait_for(lambda: self._count >= until, timeout_s), "nothing passes any more"

    def updates(self) -> dict[str, list[tuple[pb.Result, bytes]]]:
        """Every update that left a client, by client id, in order."""
        found: dict[str, list[tuple[pb.Result, bytes]]] = defaultdict(list)
        for stream in self.streams:
            if stream.up:
                found[stream.client_id] += stream.updates()
        return found

    def close(self) -> None:
        """Stop the relay and cut every stream."""
        self._server.stop(None).wait()
        self._threads.shutdown()

    def _join(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        stream = Stream()
        self.streams.append(stream)

        def up() -> Iterator[bytes]:
            with suppress(grpc.RpcError):  # the client was killed
                for data in requests:
                    header, payload = unpack(data)
                    stream.up.append((pb.ClientMessage.FromString(bytes(header)), bytes(payload)))
                    self._tick()
                    yield data

        with grpc.insecure_channel(self.upstream, options=_OPTIONS) as channel:
            relay: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(f"/{SERVICE}/Join")
            call = relay(up())
            context.add_callback(call.cancel)
            try:
                for data in call:
                    header, payload = unpack(data)
                    stream.down.append((pb.ServerMessage.FromString(bytes(header)), bytes(payload)))
                    self._tick()
                    yield data
            except grpc.RpcError as error:
                context.abort(grpc.StatusCode.UNAVAILABLE, str(error))

    def _tick(self) -> None:
        with self._passed:
            self._count += 1
            self._passed.notify_all()
