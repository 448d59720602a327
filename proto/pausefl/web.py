"""A small HTTP server from which a process can be watched: GET only, a thread a request, nothing changes by it."""

import errno
import ipaddress
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from urllib.parse import urlsplit

from pausefl.errors import ConfigError

# Whoever does not say what it wants, or does not take what it gets, is cut off; closing waits no longer for anybody.
# Browsers open connections for later.
_ASK_WITHIN_S = 1.0
_TAKE_WITHIN_S = 5.0
_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


@dataclass(frozen=True)
class Response:
    """What a route answers; the body is sent chunk by chunk, as they come."""

    content_type: str
    body: Iterable[bytes]
    headers: Mapping[str, str] = field(default_factory=dict)
    status: HTTPStatus = HTTPStatus.OK


Route = Callable[[Mapping[str, str]], Response]
"""The request's headers (by "Their-Name") -> the response. Called in a thread of the request's own."""


def is_loopback(host: str) -> bool:
    """Whether nobody but this machine can reach what listens there."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class WebServer:
    """Serves `routes` (path -> route) from threads until closed.

    Bound to a loopback address, it answers only to names of that: a page from elsewhere whose name was made to resolve
    to 127.0.0.1 (DNS rebinding) can read nothing.
    """

    def __init__(self, host: str, port: int, routes: Mapping[str, Route], *, key: str) -> None:
        """Port 0 takes any free one; ConfigError, naming the experiment's `key`, when it cannot be listened on."""
        try:
            self._server = _Server(host, port, routes)
        except OSError as error:
            if isinstance(error, socket.gaierror):
                raise ConfigError(f'{key.replace("port", "host")} = "{host}": no such host') from None
            if error.errno not in (errno.EADDRINUSE, errno.EACCES, errno.EADDRNOTAVAIL):
                raise
            raise ConfigError(f"{key} = {port}: cannot listen on {host}:{port} ({error.strerror})") from None
        name = f"[{host}]" if ":" in host else host
        self.address = f"{name}:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="web", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Take no further request, and wait for those that are being answered."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = False  # closing waits for them
    request_queue_size = 64

    def __init__(self, host: str, port: int, routes: Mapping[str, Route]) -> None:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        self.address_family = family
        self.routes = routes
        self._is_private = is_loopback(str(address[0]))
        self._names = {"localhost", "127.0.0.1", "::1", host.lower()}
        super().__init__((host, port), _Handler)

    def goes_by(self, name: str) -> bool:
        """Whether a request's Host header means this server; on other than loopback addresses any does."""
        with suppress(ValueError):
            return not self._is_private or urlsplit(f"//{name}").hostname in self._names
        return False

    def server_bind(self) -> None:
        """Without the look-up of this host's name in the DNS that HTTPServer begins with."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]  # of both families


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _ASK_WITHIN_S
    server_version, sys_version = "pausefl", ""

    def do_GET(self) -> None:
        """Answer by the path's route."""
        name = self.headers.get("Host", "localhost")
        route = self.server.routes.get(urlsplit(self.path).path)
        if not self.server.goes_by(name):
            self._answer(_text(HTTPStatus.FORBIDDEN, f"{name} is no name of this machine's loopback address"))
        elif route is None:
            self._answer(_text(HTTPStatus.NOT_FOUND, f"try {' '.join(self.server.routes)}"))
        else:
            self._answer(route({key.title(): value for key, value in self.headers.items()}))

    def log_message(self, *_: object) -> None:
        """Log nothing: a scrape each second would drown the log."""

    def _answer(self, response: Response) -> None:
        self.connection.settimeout(_TAKE_WITHIN_S)
        with suppress(OSError):  # whoever asked has gone, or takes nothing any more
            self.send_response(response.status)
            for key, value in {**_HEADERS, "Content-Type": response.content_type, **response.headers}.items():
                self.send_header(key, value)
            self.end_headers()
            for chunk in response.body:
                self.wfile.write(chunk)


def _text(status: HTTPStatus, text: str) -> Response:
    return Response("text/plain; charset=utf-8", [f"{text}\n".encode()], status=status)
