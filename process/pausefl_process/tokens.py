"""Files of who may join: a client's own token, and the server's digests of tokens and list of ids."""

import hashlib
from pathlib import Path

from pausefl_proto.errors import ConfigError

_OF_NO_TOKEN = hashlib.sha256().digest()


def read_token(path: str) -> str:
    """A client's token; ConfigError when the file cannot be read or holds none."""
    token = _read("admission.token", path).strip()
    if not (token and token.isascii() and token.isprintable()):  # all that a header of the connection may hold
        raise ConfigError(f'admission.token = "{path}": holds no token of printable ASCII characters')
    return token


def read_token_digests(path: str) -> dict[str, bytes]:
    """SHA-256 of each client's token by its id, from lines of id and hexadecimal digest; ConfigError for others.

    An empty token is none: every stranger shows as much.
    """
    digests = {}
    for number, line in enumerate(_read("admission.tokens", path).splitlines(), 1):
        client_id, _, digest = line.rpartition(" ")
        try:
            digests[client_id] = bytes.fromhex(digest)
        except ValueError:
            digests[client_id] = b""
        if not client_id or len(digests[client_id]) != 32:
            raise ConfigError(f'admission.tokens = "{path}": line {number} is no id and digest; see pausefl certs')
        if digests[client_id] == _OF_NO_TOKEN:
            raise ConfigError(f'admission.tokens = "{path}": line {number} is the digest of an empty token')
    if not digests:
        raise ConfigError(f'admission.tokens = "{path}": holds no client')
    return digests


def read_ids(path: str) -> tuple[str, ...]:
    """The ids that may join, or patterns of them, one a line; ConfigError when the file cannot be read."""
    return tuple(line.strip() for line in _read("admission.clients_file", path).splitlines() if line.strip())


def _read(key: str, path: str) -> str:
    try:
        return Path(path).read_text("utf-8-sig")
    except OSError as error:
        raise ConfigError(f'{key} = "{path}": cannot be read ({error.strerror})') from None
    except UnicodeDecodeError:
        raise ConfigError(f'{key} = "{path}": is no text') from None
