"""TLS from PEM files: a process's own certificate and key, and the CA that must have signed the peer's certificate.

Files are read again for every use, so that renewed certificates need no restart.
"""

import math
import ssl
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pausefl_proto.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Pem:
    """The contents of the PEM files. None where there is no file."""

    certificate: bytes | None
    """The certificate, and the chain of certificates that signed it."""
    key: bytes | None
    ca: bytes | None


@dataclass(frozen=True)
class Tls:
    """Paths of PEM files for TLS. A process without any of them uses no encryption.

    A path is empty if there is no file. ConfigError if only one of `certificate` and `key` is given.
    """

    certificate: str = ""
    """The certificate that this process presents. In a client's paths, {client_id} stands for its id."""
    key: str = ""
    """The private key of `certificate`."""
    ca: str = ""
    """With `ca`, a process rejects peers whose certificate that CA did not sign. If both sides have `ca`, both must
    present a certificate."""

    def __post_init__(self) -> None:
        for name, path, other in (("certificate", self.certificate, "key"), ("key", self.key, "certificate")):
            if path and not getattr(self, other):
                raise ConfigError(f'tls.{name} = "{path}": needs tls.{other} as well')

    def in_use(self, client_id: str = "{client_id}") -> "Tls | None":
        """These paths with the client's id filled in. None if the process uses no encryption."""
        certificate, key, ca = (p.replace("{client_id}", client_id) for p in (self.certificate, self.key, self.ca))
        return Tls(certificate, key, ca) if certificate or ca else None

    def to_listen(self) -> Pem:
        """The contents of the files for a server. ConfigError names a missing or wrong file."""
        if not self.certificate:
            raise ConfigError(f'tls.ca = "{self.ca}": a side that listens needs tls.certificate and tls.key as well')
        return self._read()

    def to_connect(self) -> Pem:
        """The contents of the files for a process that connects. ConfigError names a missing or wrong file."""
        if not self.ca:
            raise ConfigError(f'tls.certificate = "{self.certificate}": a side that connects needs tls.ca as well')
        return self._read()

    def ends_at_s(self) -> float:
        """The Unix time at which the certificate expires; NaN if the file cannot be read."""
        from cryptography import x509

        try:
            own = x509.load_pem_x509_certificate(Path(self.certificate).read_bytes())
        except (OSError, ValueError):
            return math.nan
        return own.not_valid_after_utc.timestamp()

    def _read(self) -> Pem:
        pem = Pem(_read("certificate", self.certificate), _read("key", self.key), _read("ca", self.ca))
        # gRPC's errors say little about a wrong file. Those of the standard library say more.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        wrong = f'tls.ca = "{self.ca}": is no certificate in PEM'
        try:
            if pem.ca is not None:
                context.load_verify_locations(cadata=pem.ca.decode("ascii", "ignore"))  # comments may be in UTF-8
            pair = f'tls.certificate = "{self.certificate}", tls.key = "{self.key}"'
            wrong = f"{pair}: are no certificate and its key in PEM"
            if pem.certificate is not None:
                context.load_cert_chain(self.certificate, self.key, password=lambda: "")
                _check_dates(self.certificate, pem.certificate)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            why = getattr(error, "reason", None) or str(error).partition(" (_ssl")[0].partition(". ")[0]
            raise ConfigError(f"{wrong} ({why})") from None
        return pem


def is_no_servers(pem: bytes) -> bool:
    """Whether a certificate lists its purposes and "server" is not among them, or cannot be read."""
    from cryptography import x509  # imported here: processes without TLS need not pay for it
    from cryptography.x509.oid import ExtendedKeyUsageOID

    try:
        uses = x509.load_pem_x509_certificate(pem).extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return False
    except ValueError:  # gRPC can read the certificate, but `cryptography` cannot
        return True
    return ExtendedKeyUsageOID.SERVER_AUTH not in uses


def _check_dates(path: str, pem: bytes) -> None:
    """Raise ConfigError if a certificate is not valid now: the other side would hang up without a reason."""
    from cryptography import x509

    own = x509.load_pem_x509_certificate(pem)  # the first one; a chain may follow
    begins, ends = own.not_valid_before_utc, own.not_valid_after_utc
    now = datetime.fromtimestamp(time.time(), UTC)
    if not begins <= now <= ends:
        wrong, at = ("has expired on", ends) if now > ends else ("is not valid before", begins)
        raise ConfigError(f'tls.certificate = "{path}": {wrong} {at:%Y-%m-%d %H:%M} UTC, by this machine\'s clock')


def _read(name: str, path: str) -> bytes | None:
    try:
        return Path(path).read_bytes() if path else None
    except OSError as error:
        raise ConfigError(f'tls.{name} = "{path}": cannot be read ({error.strerror})') from None
