"""A small HTTP server to watch a process: GET and HEAD only, one thread per request, and requests change nothing."""

import errno
import io
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any
from urllib.parse import urlsplit

from pausefl_proto.addresses import host_and_port, is_loopback
from pausefl_proto.errors import ConfigError

# A client is cut off if it has not sent its whole request, or has not read the answer, within these times. The server's
# end waits no longer for any client. (Browsers open connections ahead of requests.)
_ASK_WITHIN_S = 1.0
_TAKE_WITHIN_S = 5.0
# Each connection has a thread. Readers of the live page are at most a third of them.
_CONNECTIONS_MAX = 96
# Why a waiting connection cannot be accepted: this process or the machine has no more file descriptors or memory.
_NO_ROOM = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_NO_ROOM_S = 0.2
_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


@dataclass(frozen=True)
class Response:
    """The answer of a route. The chunks of the body are sent as they become available."""

    content_type: str
    body: Iterable[bytes]
    headers: Mapping[str, str] = field(default_factory=dict)
    status: HTTPStatus = HTTPStatus.OK


Route = Callable[[Mapping[str, str]], Response]
"""The request's headers (by "Their-Name") -> the response. Called in the request's own thread."""


class WebServer:
    """Serves `routes` (path -> route) from threads until it is closed.

    Bound to a loopback address, it answers only requests to names of that address. So a foreign web page whose name was
    made to resolve to 127.0.0.1 (DNS rebinding) can read nothing. Bound to another address, it answers requests to any
    name, since it cannot know its legitimate names (for example of a container with a published port).
    """

    def __init__(self, host: str, port: int, routes: Mapping[str, Route], *, key: str) -> None:
        """Listen on `port`; 0 means any free port. ConfigError, naming the experiment's `key`, if that fails."""
        host = host.strip("[]")
        try:
            self._server = _Server(host, port, routes)
        except (socket.gaierror, UnicodeError):  # an empty or too long part of a name raises the latter
            raise ConfigError(f'{key.replace("port", "host")} = "{host}": no such host') from None
        except OSError as error:
            address = host_and_port(host, port)
            raise ConfigError(f"{key} = {port}: cannot listen on {address} ({error.strerror})") from None
        self.address = host_and_port(host, self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, name="web", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Accept no more requests, and wait a limited time for those that are being answered."""
        with suppress(OSError):  # not every system can; there, the thread looks for its end twice a second
            self._server.socket.shutdown(socket.SHUT_RDWR)  # ends its wait for connections
        self._server.shutdown()
        self._thread.join()
        patience = threading.Timer(_TAKE_WITHIN_S, self._server.cut_off)
        patience.start()
        self._server.server_close()
        patience.cancel()


class _Server(ThreadingTCPServer):  # HTTPServer would look up this host's name
    allow_reuse_address = True
    request_queue_size = 64

    def __init__(self, host: str, port: int, routes: Mapping[str, Route]) -> None:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        self.address_family = family
        self.routes = routes
        self._is_private = is_loopback(str(address[0]))
        self._names = {"localhost", "127.0.0.1", "::1", host.lower()}
        self._open: set[socket.socket] = set()
        super().__init__((host, port), _Handler)

    def goes_by(self, name: str) -> bool:
        """Whether a request's Host header names this server. If it is not bound to loopback, any name does."""
        with suppress(ValueError):
            return not self._is_private or urlsplit(f"//{name}").hostname in self._names
        return False

    def get_request(self) -> tuple[socket.socket, Any]:
        """The next connection. Without room for one, wait before raising: the connection would be retried at once."""
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in _NO_ROOM:
                time.sleep(_NO_ROOM_S)
            raise

    def process_request(self, request: "socket.socket | tuple[bytes, socket.socket]", client_address: object) -> None:
        """Answer in a new thread, unless there are too many connections already."""
        assert isinstance(request, socket.socket)
        if len(self._open) >= _CONNECTIONS_MAX:
            self.shutdown_request(request)
            return
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: "socket.socket | tuple[bytes, socket.socket]") -> None:
        """End a connection. Called for each one, whether it was answered or not."""
        super().shutdown_request(request)
        self._open.discard(request)

    def handle_error(self, request: "socket.socket | tuple[bytes, socket.socket]", client_address: Any) -> None:
        """Print an error, unless it only means that the client broke its connection."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    def cut_off(self) -> None:
        """End all connections, whatever their threads are doing."""
        for connection in tuple(self._open):
            with suppress(OSError):  # the connection has already ended
                connection.shutdown(socket.SHUT_RDWR)


class _DeadlineReader(io.RawIOBase):
    """Reads a connection's bytes until a deadline for all of them. TimeoutError afterwards."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._until_s = time.monotonic() + _ASK_WITHIN_S

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left_s = self._until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._connection.settimeout(left_s)
        return self._connection.recv_into(buffer)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version, sys_version = "pausefl", ""

    def setup(self) -> None:
        """Limit the time of a whole request. The socket's own timeout would start again with every byte."""
        super().setup()
        self.rfile = io.BufferedReader(_DeadlineReader(self.connection))

    def do_GET(self) -> None:
        self._answer(self._response())

    def do_HEAD(self) -> None:
        self._answer(replace(self._response(), body=()))

    def _response(self) -> Response:
        name = self.headers.get("Host", "localhost")
        if not self.server.goes_by(name):
            return text_response(HTTPStatus.FORBIDDEN, f"{name} is no name of this machine's loopback address")
        try:
            route = self.server.routes.get(urlsplit(self.path).path)
        except ValueError as error:
            return text_response(HTTPStatus.BAD_REQUEST, f"{self.path}: {error}")
        if route is None:
            return text_response(HTTPStatus.NOT_FOUND, f"try {' '.join(self.server.routes)}")
        return route({key.title(): value for key, value in self.headers.items()})

    def log_message(self, *_: object) -> None:
        """Log nothing: a scrape every second would fill the log."""

    def _answer(self, response: Response) -> None:
        self.connection.settimeout(_TAKE_WITHIN_S)
        with suppress(OSError):  # the client is gone, or has stopped reading
            self.send_response(response.status)
            for key, value in {**_HEADERS, "Content-Type": response.content_type, **response.headers}.items():
                self.send_header(key, value)
            self.end_headers()
            for chunk in response.body:
                self.wfile.write(chunk)


def text_response(status: HTTPStatus, text: str) -> Response:
    """A response of one line of text."""
    return Response("text/plain; charset=utf-8", [f"{text}\n".encode()], status=status)
