"""What several test files share: a tap on the wire, certificates, and telemetry of no run, a coordinator."""

import shutil
import subprocess
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from pausefl_proto.tls import Tls
from pausefl_proto.v1 import federation_pb2 as pb
from pausefl_proto.wire import MAX_MESSAGE_BYTES, SERVICE, unpack
from pausefl_server.monitoring.telemetry import Telemetry
from pausefl_server.settings import Privacy
from rigs.coordinator import MakeRig, Rig
from rigs.settings import server_settings

_OPTIONS = (("grpc.max_receive_message_length", MAX_MESSAGE_BYTES), ("grpc.so_reuseport", 0))


@dataclass
class Stream:
    """All messages of one client's stream, as their header (a message without payload) and payload."""

    up: list[tuple[pb.ClientMessage, bytes]] = field(default_factory=list)
    down: list[tuple[pb.ServerMessage, bytes]] = field(default_factory=list)

    @property
    def client_id(self) -> str:
        """Who said hello."""
        return self.up[0][0].hello.client_id

    def updates(self) -> Iterator[tuple[pb.Result, bytes]]:
        """Every answer that carried an update, with as many of its bytes as left before the stream broke."""
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
    """A gRPC relay that outlives the server behind it and the clients before it, and remembers all that passed."""

    def __init__(self) -> None:
        self.streams: list[Stream] = []
        self.upstream = ""
        self._passed = threading.Condition()
        self._count = 0
        join = grpc.stream_stream_rpc_method_handler(self._join)
        self._threads = ThreadPoolExecutor(32)
        self._server = grpc.server(self._threads, options=_OPTIONS)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Join": join}),))
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()

    def wait_for(self, messages: int, timeout_s: float = 30.0) -> None:
        """Return when so many more messages have passed."""
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
        """Cut every stream."""
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
            call = channel.stream_stream(f"/{SERVICE}/Join")(up())
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


@pytest.fixture
def wiretap() -> Iterator[Wiretap]:
    """A relay to put between clients and a server."""
    tap = Wiretap()
    yield tap
    tap.close()


class Authority:
    """A certificate authority of its own, by the openssl command."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        self.ca = str(folder / "ca.pem")
        self._openssl("req", "-x509", *self._new_key("ca"), "-out", self.ca, "-subj", f"/CN={folder.name}")

    def certify(self, name: str, names: str = "DNS:localhost,IP:127.0.0.1") -> Tls:
        """A certificate for these host names, its key, and this authority as the one to trust."""
        request, certificate, extensions = (self._folder / f"{name}.{end}" for end in ("csr", "pem", "ext"))
        extensions.write_text(f"subjectAltName={names}")
        self._openssl("req", *self._new_key(name), "-out", request, "-subj", f"/CN={name}")
        signed_by = ("-CA", self.ca, "-CAkey", self._folder / "ca.key", "-CAcreateserial", "-days", "1")
        self._openssl("x509", "-req", "-in", request, *signed_by, "-out", certificate, "-extfile", extensions)
        return Tls(str(certificate), str(self._folder / f"{name}.key"), self.ca)

    def _new_key(self, name: str) -> tuple[object, ...]:
        kind = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
        return (*kind, "-nodes", "-keyout", self._folder / f"{name}.key")

    @staticmethod
    def _openssl(*arguments: object) -> None:
        subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Whom both sides trust."""
    return _authority(tmp_path_factory, "ours")


@pytest.fixture(scope="session")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Whom nobody trusts."""
    return _authority(tmp_path_factory, "strange")


def _authority(tmp_path_factory: pytest.TempPathFactory, name: str) -> Authority:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl command here to make certificates with")
    return Authority(tmp_path_factory.mktemp("certificates") / name)


@pytest.fixture(scope="session")
def make_telemetry() -> Callable[..., Telemetry]:
    """(privacy, model_size, other settings...) -> telemetry as a server has it before round 1."""

    def make(privacy: Privacy | None, model_size: int = 1, **changes: Any) -> Telemetry:
        settings = server_settings(model_size, **{"privacy": privacy, "rounds": 10, "tau_min_s": None, **changes})
        return Telemetry(settings, clock=lambda: 1000.0)

    return make


@pytest.fixture
def rig(tmp_path: Path) -> MakeRig:
    """(policy, other settings...) -> a coordinator with its real store, and nobody connected yet."""
    return lambda policy=None, **changes: Rig(tmp_path, policy, **changes)
