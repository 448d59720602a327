"""Certificates for tests of TLS."""

import subprocess
from pathlib import Path

from pausefl_proto.tls import Tls


class Authority:
    """A certificate authority for tests, made with the openssl command."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        self.ca = str(folder / "ca.pem")
        self._openssl("req", "-x509", *self._new_key("ca"), "-out", self.ca, "-subj", f"/CN={folder.name}")

    def certify(self, name: str, names: str = "DNS:localhost,IP:127.0.0.1") -> Tls:
        """A certificate for the host names `names`, its key, and this authority as the one to trust."""
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
