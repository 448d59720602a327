"""TLS from PEM files: what a side shows of itself, and by whom it wants the other side's certificate signed.

Files are read again for every use, so that renewed certificates are taken up without a restart.
"""

import re
import ssl
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pausefl_proto.errors import ConfigError

# The first certificate of a file, which is a process's own; and in it when it begins and ceases to be valid, in either
# of the two forms that times have. Python's library reads these of trusted certificates alone.
_FIRST = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_VALIDITY = re.compile(rb"(?:\x17\x0d|\x18\x0f)(\d{12,14})Z(?:\x17\x0d|\x18\x0f)(\d{12,14})Z")

# What a certificate that is not for every use is for, and that one of its uses is to be a server.
_USES, _AS_SERVER = bytes.fromhex("0603551d25"), bytes.fromhex("06082b06010505070301")


@dataclass(frozen=True, slots=True)
class Pem:
    """The contents of the files."""

    certificate: bytes | None
    """With whatever chain leads to it."""
    key: bytes | None
    ca: bytes | None


@dataclass(frozen=True, slots=True)
class Tls:
    """The files' paths, empty where there is none; ConfigError where one of a pair is missing."""

    certificate: str = ""
    key: str = ""
    ca: str = ""

    def __post_init__(self) -> None:
        for name, path, other in (("certificate", self.certificate, "key"), ("key", self.key, "certificate")):
            if path and not getattr(self, other):
                raise ConfigError(f'tls.{name} = "{path}": needs tls.{other} as well')

    def to_listen(self) -> Pem:
        """What a side that is called needs: a certificate. ConfigError names the file that is wrong."""
        if not self.certificate:
            raise ConfigError(f'tls.ca = "{self.ca}": a side that listens needs tls.certificate and tls.key as well')
        return self._read()

    def to_connect(self) -> Pem:
        """What a side that calls needs: to know whom it trusts. ConfigError names the file that is wrong."""
        if not self.ca:
            raise ConfigError(f'tls.certificate = "{self.certificate}": a side that connects needs tls.ca as well')
        return self._read()

    def _read(self) -> Pem:
        pem = Pem(_read("certificate", self.certificate), _read("key", self.key), _read("ca", self.ca))
        # gRPC says little of what is wrong with a file; the standard library's reader says more.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        if pem.ca is not None:
            try:
                context.load_verify_locations(cadata=pem.ca.decode("ascii", "replace"))
            except ssl.SSLError as error:
                raise ConfigError(f'tls.ca = "{self.ca}": is no certificate in PEM ({error.reason})') from None
        if self.certificate:
            try:
                context.load_cert_chain(self.certificate, self.key, password=lambda: "")
            except ssl.SSLError as error:
                pair = f'tls.certificate = "{self.certificate}", tls.key = "{self.key}"'
                raise ConfigError(f"{pair}: are no certificate and its key in PEM ({error.reason})") from None
        if pem.certificate is not None:
            _check_dates(self.certificate, pem.certificate)
        return pem


def is_no_servers(pem: bytes) -> bool:
    """Whether a certificate says what it is for, and not that it is for a server."""
    der = _first_of(pem)
    return _USES in der and _AS_SERVER not in der


def _check_dates(path: str, pem: bytes) -> None:
    """ConfigError where a certificate is not valid now: the other side would hang up, and TLS does not say why."""
    validity = _VALIDITY.search(_first_of(pem))
    if validity is None:
        return
    begins, ends = (_time_of(text.decode()) for text in validity.groups())
    now = datetime.fromtimestamp(time.time(), UTC)
    if not begins <= now <= ends:
        wrong = (
            f"has expired on {ends:%Y-%m-%d %H:%M}" if now > ends else f"is not valid before {begins:%Y-%m-%d %H:%M}"
        )
        raise ConfigError(f'tls.certificate = "{path}": {wrong} UTC, by this machine\'s clock')


def _first_of(pem: bytes) -> bytes:
    """The first certificate in a text, in DER; empty where there is none."""
    found = _FIRST.search(pem.decode("ascii", "replace"))
    return ssl.PEM_cert_to_DER_cert(found[0]) if found else b""


def _time_of(digits: str) -> datetime:
    """The time that a certificate states; years from 2050 on have four digits."""
    century = "20" if len(digits) == 12 else ""
    return datetime.strptime(f"{century}{digits}+0000", "%Y%m%d%H%M%S%z")


def _read(name: str, path: str) -> bytes | None:
    try:
        return Path(path).read_bytes() if path else None
    except OSError as error:
        raise ConfigError(f'tls.{name} = "{path}": cannot be read ({error.strerror})') from None
