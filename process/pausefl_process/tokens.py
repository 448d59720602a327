"""Reads the files that control admission: a client's token, and the server's token digests and list of ids."""

import hashlib
import re
from pathlib import Path

from pausefl_process.files import reason
from pausefl_proto.errors import ConfigError

_OF_NO_TOKEN = hashlib.sha256().digest()


def read_token(path: str) -> str:
    """A client's token. ConfigError if the file cannot be read or holds no token."""
    token = _read("admission.token", path).strip()
    if not (token and token.isascii() and token.isprintable()):  # a header of the connection may hold nothing else
        raise ConfigError(f'admission.token = "{path}": holds no token of printable ASCII characters')
    return token


def read_token_digests(path: str) -> dict[str, bytes]:
    """Client id -> SHA-256 of its token, from lines of an id and a hexadecimal digest. ConfigError for other lines."""
    digests = {}
    for number, line in enumerate(_read("admission.tokens", path).splitlines(), 1):
        if (entry := re.fullmatch(r"(.+) ([0-9a-fA-F]{64})", line)) is None:
            raise ConfigError(f'admission.tokens = "{path}": line {number} is no id and digest; see pausefl certs')
        digests[entry[1]] = bytes.fromhex(entry[2])
        if digests[entry[1]] == _OF_NO_TOKEN:  # a client without any token would match it
            raise ConfigError(f'admission.tokens = "{path}": line {number} is the digest of an empty token')
    if not digests:
        raise ConfigError(f'admission.tokens = "{path}": holds no client')
    return digests


def read_ids(path: str) -> frozenset[str]:
    """The ids, or patterns of ids, that may join, one per line. ConfigError if the file cannot be read or has none."""
    ids = frozenset(line.strip() for line in _read("admission.clients_file", path).splitlines()) - {""}
    if not ids:
        raise ConfigError(f'admission.clients_file = "{path}": holds no client')
    return ids


def _read(key: str, path: str) -> str:
    try:
        return Path(path).read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f'{key} = "{path}": cannot be read ({reason(error)})') from None
