"""gRPC servers and channels with this project's limits, keepalive and TLS, and the errors of failed connections."""

import socket

import grpc

from pausefl_proto.addresses import host_and_port
from pausefl_proto.errors import ConfigError
from pausefl_proto.foreign_text import shown
from pausefl_proto.tls import Pem, Tls
from pausefl_proto.wire import MAX_MESSAGE_BYTES

DEAD_AFTER_S = 15.0
"""The default of how long a peer may be silent, pings included, before its connection is closed."""

HELLOS_AT_ONCE = 4
"""How many clients of one connection may say hello at the same time. The others wait."""

Options = tuple[tuple[str, int], ...]

_SERVER_OPTIONS = (("grpc.so_reuseport", 0), ("grpc.http2.max_ping_strikes", 0))
_CHANNEL_OPTIONS = (("grpc.enable_http_proxy", 0),)


def make_server(dead_after_s: float = DEAD_AFTER_S, options: Options = ()) -> "grpc.aio.Server":
    """A server with these limits that does not listen yet, see `listen`."""
    return grpc.aio.server(options=(*_options(dead_after_s), *_SERVER_OPTIONS, *options))


def answers_within_s(dead_after_s: float) -> float:
    """How long the answer to a ping may take. It waits behind a model that a slow link carries."""
    return dead_after_s / 3


def _options(dead_after_s: float) -> Options:
    """The limits and keepalive of both ends.

    A ping is sent after half of `dead_after_s` without data. Its answer may take a third. A sixth remains to detect the
    failure. The kernel of a stopped process still acknowledges TCP segments, so only pings detect it.
    """
    answer_ms = int(answers_within_s(dead_after_s) * 1000)
    return (
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.per_message_decompression", 0),  # no peer of ours compresses, and gRPC 1.73 limits sizes after it
        ("grpc.keepalive_time_ms", int(dead_after_s * 1000 / 2)),
        ("grpc.keepalive_timeout_ms", answer_ms),
        # gRPC also sends pings to measure bandwidth; without them, a long link would carry a model far more slowly.
        # This timeout holds for their answers, by default 60 s. Until then, a dead peer would not be noticed.
        ("grpc.http2.ping_timeout_ms", answer_ms),
        ("grpc.http2.max_pings_without_data", 0),
    )


def listen(server: "grpc.aio.Server", table: str, host: str, port: int, tls: Tls | None) -> int:
    """Bind a server to host and port, and return the port. Port 0 takes any free one.

    `table`: the experiment's table with the keys `host` and `port`. ConfigError if the port is taken, the host is not
    an address of this machine, or a TLS file is wrong.
    """
    credentials = None if tls is None else _server_credentials(tls)
    _check_free(table, host, port)
    address = host_and_port(host, port)
    try:
        if credentials is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, credentials)
    except RuntimeError:
        raise ConfigError(f"{table}.port = {port}: cannot listen on {address}") from None


def _check_free(table: str, host: str, port: int) -> None:
    """Raise ConfigError with the reason if the port cannot be bound. gRPC would only print it to standard error."""
    try:
        family, *_, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except (socket.gaierror, UnicodeError):  # an empty or too long part of a name raises the latter
        raise ConfigError(f'{table}.host = "{host}": no such host') from None
    except OSError as error:
        where = host_and_port(host, port)
        raise ConfigError(f"{table}.port = {port}: cannot listen on {where} ({error.strerror})") from None


def open_channel(
    address: str, tls: Tls | None, dead_after_s: float = DEAD_AFTER_S, options: Options = ()
) -> "grpc.aio.Channel":
    """A channel to HOST:PORT that connects at its first use. ConfigError if a TLS file is wrong."""
    options = (*options, *_options(dead_after_s), *_CHANNEL_OPTIONS)  # of equal ones, the first counts
    if tls is None:
        return grpc.aio.insecure_channel(address, options=options)
    pem = tls.to_connect()
    credentials = grpc.ssl_channel_credentials(pem.ca, pem.key, pem.certificate)
    return grpc.aio.secure_channel(address, credentials, options=options)


def failure(error: "grpc.aio.AioRpcError", address: str, tls: Tls | None) -> Exception:
    """The reason why a call to HOST:PORT failed: an OSError, or a ConfigError if another try is useless."""
    details = shown(error.details() or str(error.code()))
    ca = tls.ca if tls else ""
    _, distrusted, because = details.removesuffix(": OK").partition("CERTIFICATE_VERIFY_FAILED: ")
    if distrusted:
        return ConfigError(f'tls.ca = "{ca}": does not vouch for the certificate of {address} ({because})')
    if "Hostname Verification Check failed" in details:
        return ConfigError(f"tls.certificate of {address}: does not name this host")
    if "WRONG_VERSION_NUMBER" in details:
        return ConfigError(f'tls.ca = "{ca}": {address} does not speak TLS')
    if "failed to connect" in details and "Socket closed" in details:
        # The other side closed the connection at once. TLS does not tell this side why.
        what = f"does it demand TLS with {'tls.certificate' if tls else 'tls.ca'}?"
        if tls and tls.certificate:
            what = f'does its tls.ca sign tls.certificate = "{tls.certificate}", and do the clocks of both agree?'
        return OSError(f"{address} hangs up at once, {what} ({details})")
    slow = "; on a slow link, raise server.dead_after_s at both ends" if "ping timeout" in details else ""
    return OSError(details + slow)


def _server_credentials(tls: Tls) -> "grpc.ServerCredentials":
    """Credentials whose files are read again before every handshake."""
    current = tls.to_listen()

    def renewed() -> "grpc.ServerCertificateConfiguration | None":
        """The new configuration. None if no file has changed, or files are being replaced and do not match yet."""
        nonlocal current
        try:
            latest = tls.to_listen()
        except ConfigError:
            return None
        if latest == current:
            return None
        current = latest
        return _configuration(latest)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(current),
        renewed,  # type: ignore[arg-type]  # gRPC documents None; its types do not
        require_client_authentication=current.ca is not None,
    )


def _configuration(pem: Pem) -> "grpc.ServerCertificateConfiguration":
    assert pem.key is not None
    assert pem.certificate is not None
    return grpc.ssl_server_certificate_configuration([(pem.key, pem.certificate)], pem.ca)
