"""Host names, and addresses of the form HOST:PORT."""

import ipaddress
from contextlib import suppress


def ip_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The IP address that a host is written as; None for a name."""
    with suppress(ValueError):
        return ipaddress.ip_address(host)
    return None


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens on this host."""
    address = ip_address(host.strip("[]"))
    return host == "localhost" if address is None else address.is_loopback


def host_and_port(host: str, port: int) -> str:
    """The address HOST:PORT, with an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"
