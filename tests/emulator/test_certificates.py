"""`pausefl certs`: its files are private and trusted, and existing files are kept."""

import hashlib
import re
import shutil
import stat
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509

from pausefl.certificates import make_certificates
from pausefl.cli import main
from pausefl_process.tokens import read_ids, read_token, read_token_digests
from pausefl_proto.errors import ConfigError
from pausefl_proto.tls import Tls
from pausefl_server.rounds.admission import Admission


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_keys_and_tokens_are_their_owners_alone(tmp_path: Path) -> None:
    main(["certs", str(tmp_path / "c"), "server.lab", "10.0.0.7", "--clients", "2"])
    made = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "c").rglob("*") if path.is_file()}
    private = {name for name, mode in made.items() if mode == 0o600}
    assert private == {"ca.key", "server.key", *(f"client-00{k}.{end}" for k in range(2) for end in ("key", "token"))}
    assert set(made) - private == {"ca.pem", "server.pem", "tokens.txt", "client-000.pem", "client-001.pem"}


@pytest.mark.parametrize("lasts_days", [825, 20_000])  # dates from 2050 on are encoded differently
def test_an_invalid_certificate_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lasts_days: int) -> None:
    """Otherwise the peer would only close the connection, without a reason."""
    monkeypatch.setattr("pausefl.certificates._CERTIFICATE_DAYS", lasts_days)
    make_certificates(tmp_path, ["server.lab"], [])
    made, lasts_s = time.time(), lasts_days * 86_400

    def at(now_s: float) -> Tls:
        monkeypatch.setattr("time.time", lambda: now_s)
        return Tls(f"{tmp_path}/server.pem", f"{tmp_path}/server.key", f"{tmp_path}/ca.pem")

    assert at(made).to_connect() == at(made + lasts_s - 3600).to_listen()
    day = datetime.fromtimestamp(made + lasts_s, UTC).date()
    key, clock = f'tls.certificate = "{tmp_path}/server.pem"', "by this machine's clock"
    with pytest.raises(ConfigError, match=f"{key}: has expired on {day} .* UTC, {clock}$"):
        at(made + lasts_s + 60).to_connect()
    with pytest.raises(ConfigError, match=rf"{key}: is not valid before \d+-\d\d-\d\d .* UTC, {clock}$"):
        at(made - 3600).to_listen()


def test_what_is_there_is_kept_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_certificates(tmp_path, ["server.lab"], ["a"])
    before = contents(tmp_path)
    main(["certs", str(tmp_path), "elsewhere.lab", "--clients", "a,b"])
    assert {name for name, data in before.items() if (tmp_path / name).read_bytes() != data} == {"tokens.txt"}
    said = capsys.readouterr().out.splitlines()
    assert f"kept {tmp_path}/ca.pem" in said
    renew = "delete it for a certificate of these hosts alone"
    assert f"kept {tmp_path}/server.pem, which does not name elsewhere.lab; {renew}" in said
    Tls(str(tmp_path / "clients/b.pem"), str(tmp_path / "clients/b.key"), str(tmp_path / "ca.pem")).to_connect()


@pytest.mark.parametrize("host", ["ü.lab", "server.lab:50051", "", "a b", "[::1]"])
def test_a_host_that_none_can_call_gets_no_certificate(tmp_path: Path, host: str) -> None:
    """Once such hosts were written into the certificate, or reported as a fault of the authority just made."""
    with pytest.raises(ConfigError, match=f'^HOST "{re.escape(host)}": is no IP address, and no host name'):
        make_certificates(tmp_path / "certs", ["127.0.0.1", host], [])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("named", "host"), [("*.lab", "server.lab"), ("10.0.0.1", "10.0.0.1"), ("::1", "0::1")])
def test_a_kept_certificate_names_what_its_star_and_addresses_stand_for(tmp_path: Path, named: str, host: str) -> None:
    make_certificates(tmp_path, [named], [])
    assert f"kept {tmp_path}/server.pem" in make_certificates(tmp_path, [host], [])


def test_a_kept_certificate_of_another_origin_names_nobody_and_one_that_is_none_is_named(tmp_path: Path) -> None:
    """An authority without its key is not replaced either."""
    make_certificates(tmp_path, ["server.lab"], [])
    shutil.copy(tmp_path / "ca.pem", tmp_path / "server.pem")
    (said,) = (line for line in make_certificates(tmp_path, ["server.lab"], []) if "server.pem" in line)
    assert "which does not name server.lab" in said
    (tmp_path / "server.pem").write_text("torn")
    with pytest.raises(ConfigError, match=f"^{tmp_path}/server.pem: is no certificate; delete it to have one made"):
        make_certificates(tmp_path, ["server.lab"], [])
    (tmp_path / "ca.key").unlink()
    before = contents(tmp_path)
    with pytest.raises(ConfigError, match=r"ca\.pem: is there without ca\.key"):
        make_certificates(tmp_path, ["server.lab"], [])
    assert contents(tmp_path) == before


def test_hosts_are_named_as_names_and_addresses(tmp_path: Path) -> None:
    make_certificates(tmp_path, ["localhost", "*.lab", "my_server.lab", "10.0.0.1", "::1"], [])
    shown = x509.load_pem_x509_certificate((tmp_path / "server.pem").read_bytes()).extensions
    names = shown.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost", "*.lab", "my_server.lab"]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.1", "::1"]


OF_NO_TOKEN = hashlib.sha256().hexdigest()


@pytest.mark.parametrize(
    "text", ["", "a\n", "a 12\n", "a zz\n", f"{'0' * 64}\n", f"a {'0' * 66}\n", f"a {OF_NO_TOKEN}\n"]
)
def test_a_file_that_holds_no_digests_is_bad_input(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tokens.txt"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"admission\.tokens = .*tokens\.txt"):
        read_token_digests(str(path))


def test_ids_may_have_spaces_and_lists_any_editors_marks(tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_bytes(f"\ufeffa b {'0' * 64}\r\n".encode())
    assert read_token_digests(str(path)) == {"a b": bytes(32)}
    path.write_bytes("\ufeffa b \r\n\r\nc-*\r\n".encode())
    assert read_ids(str(path)) == {"a b", "c-*"}


def test_the_server_knows_tokens_by_their_digests_alone_and_an_empty_one_has_none(tmp_path: Path) -> None:
    """With the digest of an empty token in the file, every stranger would pass as that client."""
    make_certificates(tmp_path, ["server.lab"], ["a", "b"])
    token = read_token(str(tmp_path / "clients/a.token"))
    assert token not in (tmp_path / "tokens.txt").read_text()
    assert Admission(tokens=read_token_digests(str(tmp_path / "tokens.txt"))).check("a", (), token)
    (tmp_path / "clients/b.token").write_text("\n")
    with pytest.raises(ConfigError, match=r"clients/b\.token.*holds no token"):
        make_certificates(tmp_path, ["server.lab"], ["a", "b"])
    assert OF_NO_TOKEN not in (tmp_path / "tokens.txt").read_text()


def test_a_new_client_brings_no_client_back_that_was_locked_out(tmp_path: Path) -> None:
    """Nor does it lock one out whose token was moved to its device."""
    make_certificates(tmp_path, ["server.lab"], ["a", "b", "moved"])
    before = read_token_digests(str(tmp_path / "tokens.txt"))
    (tmp_path / "clients/moved.token").unlink()
    kept = [line for line in (tmp_path / "tokens.txt").read_text().splitlines(keepends=True) if line[0] != "b"]
    (tmp_path / "tokens.txt").write_text("".join(kept))
    for asked in (["a", "b", "new"], ["moved"]):
        said = make_certificates(tmp_path, ["server.lab"], asked)
        after = read_token_digests(str(tmp_path / "tokens.txt"))
        assert after == {"a": before["a"], "moved": before["moved"], "new": after["new"]}
        assert said[-1] == f"wrote {tmp_path}/tokens.txt: 3 clients; not among them, so locked out: b"
    assert f"left {tmp_path}/clients/moved.token out: tokens.txt has a line for it" in said[-2]


@pytest.mark.parametrize("text", ["", " \n", "a\tb", "schlüssel"])
def test_a_token_that_cannot_be_shown_is_bad_input(tmp_path: Path, text: str) -> None:
    """A token travels in a header, which holds printable ASCII characters alone."""
    path = tmp_path / "token"
    path.write_text(text, "utf-8")
    with pytest.raises(ConfigError, match=f'admission.token = "{path}": holds no token of printable ASCII characters'):
        read_token(str(path))
