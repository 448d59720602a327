"""`pausefl certs`: makes a certificate authority, a server certificate, and a certificate and a token for each client.

Existing files are kept and used; only missing ones are made. Only their owner can read keys and tokens.
"""

import datetime
import hashlib
import os
import re
import secrets
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from pausefl_process.files import replaced
from pausefl_process.tokens import read_token, read_token_digests
from pausefl_proto.addresses import ip_address
from pausefl_proto.errors import ConfigError

_AUTHORITY_DAYS = 3650
_CERTIFICATE_DAYS = 825
# Certificates are valid from this much earlier, as another machine's clock may be a little behind.
_EARLIER = datetime.timedelta(minutes=5)
# Some networks have names with underscores; a star stands for the first part of a name.
_HOST_NAME = re.compile(r"(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


def make_certificates(folder: Path, hosts: Sequence[str], client_ids: Sequence[str]) -> list[str]:
    """Make the files that are missing in `folder`. Returns a line for each file that was made or kept.

    The authority has ca.pem and ca.key. server.pem and server.key name `hosts`, and also serve a `pausefl evaluator`.
    tokens.txt has a digest of each client's token. Each client has clients/ID.pem, .key and .token. Raises ConfigError
    for a host that clients cannot call, and if a file cannot be read or written.
    """
    for host in hosts:  # a certificate for a name that no client can call, such as HOST:PORT, is useless
        if not _HOST_NAME.fullmatch(host) and ip_address(host) is None:
            raise ConfigError(f'HOST "{host}": is no IP address, and no host name of letters, digits, hyphens and dots')
    try:
        (folder / "clients").mkdir(parents=True, exist_ok=True)
        said, made = list[str](), list[str]()
        authority = _Authority(folder, said)
        if _is_missing(folder / "server.pem", said):
            usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
            authority.certify(folder / "server", "pausefl server", hosts, usages)
        elif unnamed := _not_named(hosts, folder / "server.pem"):
            said[-1] += f", which does not name {', '.join(unnamed)}; delete it for a certificate of these hosts alone"
        digests = read_token_digests(str(folder / "tokens.txt")) if (folder / "tokens.txt").exists() else {}
        for client_id in client_ids:
            if _is_missing(folder / "clients" / f"{client_id}.pem", said):
                usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
                authority.certify(folder / "clients" / client_id, client_id, [client_id], usages)
            token = folder / "clients" / f"{client_id}.token"
            if client_id in digests and not token.exists():  # another one would lock out a client that uses it
                said.append(f"left {token} out: tokens.txt has a line for it; remove that first for a new token")
            elif _is_missing(token, said):
                _write(token, f"{secrets.token_urlsafe(32)}\n".encode(), 0o600)
                made.append(client_id)
        _write_digests(folder, digests, made, said)
    except OSError as error:
        raise ConfigError(f"{error.filename or folder}: cannot be read or written ({error.strerror})") from error
    except ValueError as error:
        raise ConfigError(f"{folder}: ca.pem and ca.key are no authority of pausefl certs ({error})") from error
    return said


class _Authority:
    """The certificate authority of a folder. It is made if the folder has none."""

    def __init__(self, folder: Path, said: list[str]) -> None:
        certificate, key = folder / "ca.pem", folder / "ca.key"
        if certificate.exists() != key.exists():
            there, lacks = (certificate, key) if certificate.exists() else (key, certificate)
            raise ConfigError(f"{there}: is there without {lacks.name}; bring that back, or take another folder")
        if _is_missing(certificate, said):
            self._key = ec.generate_private_key(ec.SECP256R1())
            name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"pausefl {secrets.token_hex(4)}")])
            builder = _builder(name, name, self._key, _AUTHORITY_DAYS).add_extension(
                x509.BasicConstraints(ca=True, path_length=0), critical=True
            )
            self.certificate = builder.sign(self._key, hashes.SHA256())
            _write_pair(folder / "ca", self.certificate, self._key)
            return
        self.certificate = x509.load_pem_x509_certificate(certificate.read_bytes())
        loaded = serialization.load_pem_private_key(key.read_bytes(), None)
        if not isinstance(loaded, ec.EllipticCurvePrivateKey) or loaded.public_key() != self.certificate.public_key():
            raise ConfigError(f"{key}: is not the key of {certificate.name}")
        self._key = loaded

    def certify(self, path: Path, name: str, names: Sequence[str], usages: list[x509.ObjectIdentifier]) -> None:
        """Write a certificate for these alternative names, and its key, to PATH.pem and PATH.key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
        builder = (
            _builder(subject, self.certificate.subject, key, _CERTIFICATE_DAYS)
            .add_extension(x509.SubjectAlternativeName([_alternative(name) for name in names]), critical=False)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        )
        _write_pair(path, builder.sign(self._key, hashes.SHA256()), key)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _alternative(name: str) -> x509.GeneralName:
    address = ip_address(name)
    return x509.DNSName(name) if address is None else x509.IPAddress(address)


def _write_pair(path: Path, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    pem, private = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    _write(path.with_name(f"{path.name}.key"), key.private_bytes(pem, private, serialization.NoEncryption()), 0o600)
    # The certificate is written last: once it exists, the pair counts as made.
    _write(path.with_name(f"{path.name}.pem"), certificate.public_bytes(pem), 0o644)


def _write_digests(folder: Path, digests: dict[str, bytes], made: Sequence[str], said: list[str]) -> None:
    """Write the digests of the tokens that were `made`, and of those that tokens.txt has: a removed line locks out."""
    file, paths = folder / "tokens.txt", {path.stem: path for path in sorted((folder / "clients").glob("*.token"))}
    for client_id in paths.keys() & {*digests, *made} if digests else paths:
        digests[client_id] = hashlib.sha256(read_token(str(paths[client_id])).encode()).digest()
    if digests:
        lines = "".join(f"{client_id} {digests[client_id].hex()}\n" for client_id in sorted(digests))
        _write(file, lines.encode(), 0o644)
        said.append(f"wrote {file}: {len(digests)} clients")
    if out := paths.keys() - digests.keys():
        said[-1] += f"; not among them, so locked out: {', '.join(sorted(out))}"


def _not_named(hosts: Sequence[str], path: Path) -> list[str]:
    """The hosts that a certificate file does not name. Raises ConfigError if the file is no certificate."""
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        named = list(certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except x509.ExtensionNotFound:
        named = []
    except ValueError as error:
        raise ConfigError(f"{path}: is no certificate; delete it to have one made ({error})") from error
    starred = {host: x509.DNSName(f"*.{host.partition('.')[2]}") for host in hosts}
    return [host for host in hosts if _alternative(host) not in named and starred[host] not in named]


def _is_missing(path: Path, said: list[str]) -> bool:
    is_there = path.exists()
    said.append(f"{'kept' if is_there else 'made'} {path}")
    return not is_there


def _write(path: Path, data: bytes, mode: int) -> None:
    with replaced(path, mode) as file:
        os.fchmod(file.fileno(), mode)  # the umask may have taken from it
        file.write(data)
