"""Links made by the kernel (`latency.injection = "netem"`): each client in a network namespace of its own.

A bridge holds the server's address; every client's veth pair is shaped both ways: netem for the delay, tbf for the
bandwidth. Needs root and pyroute2; both, and what the kernel has, are probed before anything starts.
"""

import hashlib
import math
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

from pausefl.experiment.delay_laws import Delay, NoDelay, Scale
from pausefl.experiment.links import LatencyTable, LinkPlan
from pausefl_proto.errors import ConfigError, PauseflError

# RFC 2544's addresses for benchmarks: no network in use has them. A run takes one of 32 parts.
_PREFIX_BITS = 20
_SUBNETS = list(IPv4Network("198.18.0.0/15").subnets(new_prefix=_PREFIX_BITS))
# What may wait in a tbf or a netem; beyond it packets are dropped and TCP slows down.
_QUEUE_BYTES = 4 << 20
_QUEUE_PACKETS = 100_000
_NETEM_UNIT_S = 1e-6
_NAMESPACES = Path("/run/netns")


@dataclass(frozen=True)
class Shape:
    """One way of a link as the kernel knows it: netem's delay, uniform in delay ± jitter, then tbf's rate."""

    delay_s: float = 0.0
    jitter_s: float = 0.0
    rate_bytes_per_s: float | None = None
    burst_bytes: int = 0

    def qdiscs(self) -> list[dict[str, Any]]:
        """Arguments of `tc add`, outermost first."""
        qdiscs: list[dict[str, Any]] = []
        if self.delay_s:
            delay, jitter = (round(s / _NETEM_UNIT_S) for s in (self.delay_s, self.jitter_s))
            qdiscs.append({"kind": "netem", "handle": "1:", "delay": delay, "jitter": jitter, "limit": _QUEUE_PACKETS})
        if self.rate_bytes_per_s:
            place = {"parent": "1:1", "handle": "2:"} if qdiscs else {"handle": "1:"}
            rate = {"rate": math.ceil(self.rate_bytes_per_s), "burst": self.burst_bytes, "limit": _QUEUE_BYTES}
            qdiscs.append({"kind": "tbf", **place, **rate})
        return qdiscs


def shapes(plan: LinkPlan, down_share: float, time_scale: float) -> tuple[Shape, Shape]:
    """A link's two ways. netem draws per packet and uniformly: mean and spread are the law's, its form is not.

    Laws are as `check_netem` lets them pass: their means are finite, and at least √3 times their spread.
    """
    down, up = plan.down, plan.up
    if plan.delay is not None:
        down, up = (Scale(plan.delay, share) if share else NoDelay() for share in (down_share, 1 - down_share))
    b = plan.bandwidth
    return (
        _shape(down, b.down_bytes_per_s, b.burst_bytes, time_scale),
        _shape(up, b.up_bytes_per_s, b.burst_bytes, time_scale),
    )


def _shape(law: Delay, rate_bytes_per_s: float | None, burst_bytes: int, time_scale: float) -> Shape:
    mean_s, sd_s = law.mean_s, float(law.points().std())
    return Shape(
        mean_s * time_scale,
        math.sqrt(3) * sd_s * time_scale,
        rate_bytes_per_s and rate_bytes_per_s / time_scale,
        burst_bytes,
    )


@contextmanager
def kernel_network(links: Mapping[str, tuple[Shape, Shape]] | None, run_dir: Path) -> Iterator[str | None]:
    """Build the namespaces and yield the server's address on their bridge; all of it is gone afterwards.

    None, and nothing is built, without links: clients inject their delays themselves. ConfigError for what this
    machine lacks.
    """
    if links is None:
        yield None
        return
    probe({qdisc["kind"] for ways in links.values() for way in ways for qdisc in way.qdiscs()})
    with ExitStack() as undo:
        try:
            address = _build(run_dir, links, undo)
        except (_pyroute2().NetlinkError, subprocess.CalledProcessError) as error:
            raise PauseflError(f"--netem: the namespaces could not be made ({error})") from error
        yield address


def probe(kinds: set[str]) -> None:
    """ConfigError, in one line, unless this process can make namespaces with these qdiscs."""
    pyroute2 = _pyroute2()
    if os.geteuid() != 0:
        raise ConfigError("--netem: network namespaces need root (CAP_NET_ADMIN and CAP_SYS_ADMIN)")
    if shutil.which("ip") is None:
        raise ConfigError("--netem: needs the command ip (Debian's package iproute2)")
    samples = {"netem": Shape(delay_s=0.001), "tbf": Shape(rate_bytes_per_s=1e6, burst_bytes=16_384)}
    with pyroute2.IPRoute() as ip:
        for kind in sorted(kinds):
            try:
                with ExitStack() as undo:
                    index = _add_veth(ip, f"pf{os.getpid() % 10**8}", undo)
                    (qdisc,) = samples[kind].qdiscs()
                    ip.tc("add", index=index, **qdisc)
            except pyroute2.NetlinkError as error:
                raise ConfigError(
                    f"--netem: this kernel has no {kind}, or this container may not use it ({error.args[-1]});"
                    " without --netem clients inject delays and bandwidth themselves"
                ) from error


def enter_namespace(
    latency: LatencyTable, plans: Mapping[str, LinkPlan], run_dir: Path, client_id: str, server: str
) -> None:
    """Move this process (its main thread, before it starts others) into its namespace and shape the way up there.

    `server` is the address that the bridge holds. A process that was killed and is started again finds the address and
    the shape of the one before.
    """
    pyroute2 = _pyroute2()
    with _NAMESPACES.joinpath(_name(run_dir, client_id)).open() as namespace:
        pyroute2.netns.setns(namespace.fileno(), fork=False)
    subnet = IPv4Network((server, _PREFIX_BITS), strict=False)
    k = list(plans).index(client_id)
    _, up = shapes(plans[client_id], latency.down_share, latency.time_scale)
    with pyroute2.IPRoute() as ip:
        (index,) = ip.link_lookup(ifname=f"{_digest(run_dir)}-{k}p")
        ip.addr("replace", index=index, address=str(subnet[k + 2]), prefixlen=subnet.prefixlen)
        ip.link("set", index=index, state="up")
        for qdisc in up.qdiscs():
            ip.tc("replace", index=index, **qdisc)


def _build(run_dir: Path, links: Mapping[str, tuple[Shape, Shape]], undo: ExitStack) -> str:
    """Make the bridge and all links; returns the server's address."""
    pyroute2 = _pyroute2()
    ip = undo.enter_context(pyroute2.IPRoute())
    bridge = _digest(run_dir)
    _remove_left_over(ip, bridge)
    subnet = _free_subnet(ip)
    ip.link("add", ifname=bridge, kind="bridge")
    (bridge_index,) = ip.link_lookup(ifname=bridge)
    undo.callback(ip.link, "del", index=bridge_index)
    ip.addr("add", index=bridge_index, address=str(subnet[1]), prefixlen=subnet.prefixlen)
    ip.link("set", index=bridge_index, state="up")
    for k, (client_id, (down, _)) in enumerate(links.items()):
        name = _name(run_dir, client_id)
        _ip_netns("add", name)
        undo.callback(_ip_netns, "delete", name)
        index = _add_veth(ip, f"{bridge}-{k}", undo, master=bridge_index)
        for qdisc in down.qdiscs():
            ip.tc("add", index=index, **qdisc)
        (peer,) = ip.link_lookup(ifname=f"{bridge}-{k}p")
        with _NAMESPACES.joinpath(name).open() as namespace:
            ip.link("set", index=peer, net_ns_fd=namespace.fileno())
    return str(subnet[1])


def _remove_left_over(ip: Any, bridge: str) -> None:
    """Remove what a run of this directory that was killed has left; no other process plays it, as it is locked."""
    for namespace in sorted(_NAMESPACES.glob(f"{bridge}-*")):
        _ip_netns("delete", namespace.name)
    for link in ip.get_links():
        name = link.get_attr("IFLA_IFNAME")
        if name == bridge or name.startswith(f"{bridge}-"):
            with suppress(_pyroute2().NetlinkError):  # the other end of a pair went with it, or with its namespace
                ip.link("del", index=link["index"])


def _ip_netns(*arguments: str) -> None:
    # pyroute2 makes namespaces in a fork of this process, which has threads; iproute2 in a process of its own.
    subprocess.run(["ip", "netns", *arguments], check=True)


def _add_veth(ip: Any, name: str, undo: ExitStack, **options: Any) -> int:
    """Make a pair NAME and NAMEp, removed with `undo`; returns the index of NAME, which is up."""
    ip.link("add", ifname=name, kind="veth", peer=f"{name}p")
    index: int
    (index,) = ip.link_lookup(ifname=name)
    undo.callback(ip.link, "del", index=index)
    ip.link("set", index=index, state="up", **options)
    return index


def _digest(run_dir: Path) -> str:
    return "pf" + hashlib.sha256(str(run_dir.resolve()).encode()).hexdigest()[:6]


def _name(run_dir: Path, client_id: str) -> str:
    return f"{_digest(run_dir)}-{client_id}"


def _free_subnet(ip: Any) -> IPv4Network:
    """The first subnet of which this machine has no address: another run may have one."""
    used = {IPv4Address(message.get_attr("IFA_ADDRESS")) for message in ip.get_addr(family=socket.AF_INET)}
    free = (subnet for subnet in _SUBNETS if not any(address in subnet for address in used))
    if (subnet := next(free, None)) is None:
        raise PauseflError(f"--netem: {len(_SUBNETS)} runs have a network on this machine, and no more can")
    return subnet


def _pyroute2() -> Any:
    if sys.platform != "linux":
        raise ConfigError("--netem: works on Linux only")
    try:
        import pyroute2
    except ImportError:
        raise ConfigError('--netem: needs pyroute2 (pip install "pausefl[netem]")') from None
    return pyroute2
