"""Hosts of a fleet: network namespaces on one bridge with the server, or simply this machine."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

SERVER_NAME = "server.fleet"
_BRIDGE, _NET = "pausefl-day", "10.78.0"


def do(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


class Hosts:
    """The hosts of the clients; this base class stands for this machine, whose links cannot be cut."""

    server_address = "127.0.0.1"
    server_name = "localhost"

    def command(self, number: int, command: Sequence[str]) -> list[str]:
        """The command line that runs `command` on the host of this number."""
        return list(command)

    def cut(self, number: int, *, is_cut: bool) -> bool:
        """Cut or mend a host's link. Return False if the link cannot be cut."""
        return False

    def move_server(self) -> None:
        """Give the server another address under the same name, if the server has a name of its own."""


class Namespaces(Hosts):
    """One network namespace a host. The server is on the bridge."""

    server_name = SERVER_NAME

    def __init__(self, count: int) -> None:
        self.server_address = f"{_NET}.1"
        self._names = [f"pausefl-day-{number}" for number in range(count)]

    def make(self) -> None:
        do("ip", "link", "add", _BRIDGE, "type", "bridge")
        do("ip", "address", "add", f"{_NET}.1/24", "dev", _BRIDGE)
        do("ip", "link", "set", _BRIDGE, "up")
        for number, name in enumerate(self._names):
            do("ip", "netns", "add", name)
            do("ip", "link", "add", f"pfday{number}", "type", "veth", "peer", "name", "eth0", "netns", name)
            do("ip", "link", "set", f"pfday{number}", "master", _BRIDGE, "up")
            do("ip", "-n", name, "address", "add", f"{_NET}.{number + 10}/24", "dev", "eth0")
            do("ip", "-n", name, "link", "set", "lo", "up")
            do("ip", "-n", name, "link", "set", "eth0", "up")
        self._resolve()

    def take_down(self) -> None:
        for name in self._names:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)
            shutil.rmtree(f"/etc/netns/{name}", ignore_errors=True)
        subprocess.run(["ip", "link", "delete", _BRIDGE], check=False, capture_output=True)

    def command(self, number: int, command: Sequence[str]) -> list[str]:
        return ["ip", "netns", "exec", self._names[number], *command]

    def cut(self, number: int, *, is_cut: bool) -> bool:
        do("ip", "link", "set", f"pfday{number}", "down" if is_cut else "up")
        return True

    def move_server(self) -> None:
        self.server_address = f"{_NET}.2"
        do("ip", "address", "add", f"{self.server_address}/24", "dev", _BRIDGE)
        self._resolve()

    def _resolve(self) -> None:
        """Write each namespace's /etc/hosts, which gives the address of the server's name."""
        for name in self._names:
            folder = Path("/etc/netns", name)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "hosts").write_text(f"127.0.0.1 localhost\n{self.server_address} {SERVER_NAME}\n")


@contextmanager
def hosts_of(count: int) -> Iterator[Hosts]:
    """Yield namespaces, which need root and `ip`, else this machine."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        yield Hosts()
        return
    namespaces = Namespaces(count)
    namespaces.take_down()
    try:
        namespaces.make()
        yield namespaces
    finally:
        namespaces.take_down()
