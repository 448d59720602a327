"""Host names, and addresses of the form HOST:PORT."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens on this host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def host_and_port(host: str, port: int) -> str:
    """The address HOST:PORT, with an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"
