"""Common to all ends of this project's gRPC connections: limits, keepalive, TLS, and the words for a failure."""

import socket

import grpc

from pausefl_proto.addresses import host_and_port
from pausefl_proto.errors import ConfigError
from pausefl_proto.foreign_text import shown
from pausefl_proto.tls import Pem, Tls
from pausefl_proto.wire import MAX_MESSAGE_BYTES

DEAD_AFTER_S = 15.0
"""How long a peer may be silent, pings included, before its connection is closed, unless said otherwise."""

HELLOS_AT_ONCE = 4
"""How many clients of one connection say hello at a time; the others wait for their turn."""

Options = tuple[tuple[str, int], ...]

_SERVER_OPTIONS = (("grpc.so_reuseport", 0), ("grpc.http2.max_ping_strikes", 0))
_CHANNEL_OPTIONS = (("grpc.enable_http_proxy", 0),)


def make_server(dead_after_s: float = DEAD_AFTER_S, options: Options = ()) -> "grpc.aio.Server":
    """A server that listens nowhere yet."""
    return grpc.aio.server(options=(*_options(dead_after_s), *_SERVER_OPTIONS, *options))


def _options(dead_after_s: float) -> Options:
    """Limits and keepalive of both ends.

    A ping leaves after half of `dead_after_s` without data, and its answer may take a third: a sixth is left for
    noticing. A peer whose process is stopped still acknowledges TCP segments, so only pings find it.
    """
    answer_ms = int(dead_after_s * 1000 / 3)
    return (
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.keepalive_time_ms", int(dead_after_s * 1000 / 2)),
        ("grpc.keepalive_timeout_ms", answer_ms),
        # gRPC also pings to measure bandwidth. While such a ping is out, this timeout counts, 60 s by default.
        ("grpc.http2.ping_timeout_ms", answer_ms),
        ("grpc.http2.max_pings_without_data", 0),
    )


def listen(server: "grpc.aio.Server", table: str, host: str, port: int, tls: Tls | None) -> int:
    """Bind a server and return its port (port 0: any free one).

    ConfigError when the port, a key of the experiment's `table`, is taken, the host is not this machine's, or a file
    for TLS is wrong.
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
    """ConfigError with the reason, which gRPC would tell standard error only."""
    try:
        family, *_, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except socket.gaierror:
        raise ConfigError(f'{table}.host = "{host}": no such host') from None
    except OSError as error:
        where = host_and_port(host, port)
        raise ConfigError(f"{table}.port = {port}: cannot listen on {where} ({error.strerror})") from None


def open_channel(
    address: str, tls: Tls | None, dead_after_s: float = DEAD_AFTER_S, options: Options = ()
) -> "grpc.aio.Channel":
    """A channel to HOST:PORT, which connects when it is used; ConfigError when a file for TLS is wrong."""
    options = (*_options(dead_after_s), *_CHANNEL_OPTIONS, *options)
    if tls is None:
        return grpc.aio.insecure_channel(address, options=options)
    pem = tls.to_connect()
    credentials = grpc.ssl_channel_credentials(pem.ca, pem.key, pem.certificate)
    return grpc.aio.secure_channel(address, credentials, options=options)


def failure(error: "grpc.aio.AioRpcError", address: str, tls: Tls | None) -> Exception:
    """Why a call to HOST:PORT failed: an OSError, or a ConfigError where trying again is of no use."""
    details = shown(error.details() or str(error.code()))
    ca = tls.ca if tls else ""
    _, distrusted, because = details.partition("CERTIFICATE_VERIFY_FAILED: ")
    if distrusted:
        because = because.removesuffix(": OK")
        return ConfigError(f'tls.ca = "{ca}": does not vouch for the certificate of {address} ({because})')
    if "Hostname Verification Check failed" in details:
        return ConfigError(f"tls.certificate of {address}: does not name this host")
    if "WRONG_VERSION_NUMBER" in details:
        return ConfigError(f'tls.ca = "{ca}": {address} does not speak TLS')
    if "failed to connect" in details and "Socket closed" in details:
        # The other side hung up before a word was said, and TLS does not tell this side why.
        what = f"does it demand TLS with {'tls.certificate' if tls else 'tls.ca'}?"
        if tls and tls.certificate:
            what = f'does its tls.ca sign tls.certificate = "{tls.certificate}", and do the clocks of both agree?'
        return OSError(f"{address} hangs up at once, {what} ({details})")
    return OSError(details)


def _server_credentials(tls: Tls) -> "grpc.ServerCredentials":
    """Credentials whose files are looked at again before every handshake."""
    current = tls.to_listen()

    def renewed() -> "grpc.ServerCertificateConfiguration | None":
        """None: nothing has changed, or the files are being replaced and do not go together yet."""
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
