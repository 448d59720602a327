"""Links emulated by the kernel (`latency.injection = "netem"`): each client runs in its own network namespace.

A bridge holds the server's address. Each client's veth pair is shaped in both directions: netem for the delay, tbf for
the bandwidth. It needs root and pyroute2. Both, and the kernel's support, are probed before anything starts.
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

from pausefl.experiment.delay_laws.base import Delay
from pausefl.experiment.delay_laws.combined import Scale
from pausefl.experiment.delay_laws.laws import NoDelay
from pausefl.experiment.links import LatencyTable, LinkPlan
from pausefl_proto.errors import ConfigError, PauseflError

# RFC 2544 reserves these addresses for benchmarks: no network in use has them. A run takes one of 32 parts.
_PREFIX_BITS = 20
_SUBNETS = list(IPv4Network("198.18.0.0/15").subnets(new_prefix=_PREFIX_BITS))
# Limits of the queues of tbf and netem. Packets beyond them are dropped, and TCP slows down.
_QUEUE_BYTES = 4 << 20
_QUEUE_PACKETS = 100_000
_NETEM_UNIT_S = 1e-6
_NAMESPACES = Path("/run/netns")


@dataclass(frozen=True)
class Shape:
    """One direction of a link in the kernel: netem's delay, uniform in delay ± jitter, then tbf's rate."""

    delay_s: float = 0.0
    jitter_s: float = 0.0
    rate_bytes_per_s: float | None = None
    burst_bytes: int = 0

    def qdiscs(self) -> list[dict[str, Any]]:
        """Arguments of `tc add` for each qdisc (queueing discipline), outermost first."""
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
    """A link's downlink and uplink. netem draws uniformly, per packet: only the law's mean and deviation are kept.

    `check_netem` has accepted the laws: their means are finite, and at least √3 times their standard deviations.
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
    rate = rate_bytes_per_s and rate_bytes_per_s / time_scale
    return Shape(mean_s * time_scale, math.sqrt(3) * sd_s * time_scale, rate, burst_bytes)


@contextmanager
def kernel_network(links: Mapping[str, tuple[Shape, Shape]] | None, run_dir: Path) -> Iterator[str | None]:
    """Build the namespaces for the block and yield the server's address on their bridge. All are removed afterwards.

    If `links` is None, clients inject their delays themselves: nothing is built, and None is yielded. ConfigError if
    this machine lacks something.
    """
    if links is None:
        yield None
        return
    probe({qdisc["kind"] for ways in links.values() for way in ways for qdisc in way.qdiscs()})
    undo, failures = ExitStack(), (_pyroute2().NetlinkError, subprocess.CalledProcessError)
    try:
        try:
            address = _build(run_dir, links, undo)
        except failures as error:
            raise PauseflError(f"--netem: the namespaces could not be made ({error})") from error
        yield address
    finally:
        with suppress(*failures):  # others have removed some of them, which must not hide how the run has ended
            undo.close()


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
                    name = f"pf{os.getpid() % 10**8}"
                    index = _add_link(ip, name, undo, kind="veth", peer=f"{name}p")
                    ip.tc("add", index=index, **samples[kind].qdiscs()[0])
            except pyroute2.NetlinkError as error:
                raise ConfigError(
                    f"--netem: this kernel has no {kind}, or this container may not use it ({error.args[-1]});"
                    " without --netem clients inject delays and bandwidth themselves"
                ) from error


def enter_namespace(
    latency: LatencyTable, plans: Mapping[str, LinkPlan], run_dir: Path, client_id: str, server: str
) -> None:
    """Move this process into the client's namespace, and shape its uplink there.

    Called in the main thread before other threads start. `server` is the bridge's address. After a restart, the
    address and shape of the killed process are still there, and are replaced.
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
    ip = undo.enter_context(_pyroute2().IPRoute())
    bridge = _digest(run_dir)
    _remove_left_over(ip, bridge)
    subnet = _free_subnet(ip)
    bridge_index = _add_link(ip, bridge, undo, kind="bridge")
    ip.addr("add", index=bridge_index, address=str(subnet[1]), prefixlen=subnet.prefixlen)
    for k, (client_id, (down, _)) in enumerate(links.items()):
        name = _name(run_dir, client_id)
        _ip_netns("add", name)
        undo.callback(_ip_netns, "delete", name)
        index = _add_link(ip, f"{bridge}-{k}", undo, kind="veth", peer=f"{bridge}-{k}p", master=bridge_index)
        for qdisc in down.qdiscs():
            ip.tc("add", index=index, **qdisc)
        (peer,) = ip.link_lookup(ifname=f"{bridge}-{k}p")
        with _NAMESPACES.joinpath(name).open() as namespace:
            ip.link("set", index=peer, net_ns_fd=namespace.fileno())
    return str(subnet[1])


def _remove_left_over(ip: Any, bridge: str) -> None:
    """Remove what a killed run of this directory has left. The directory is locked: no other process plays the run."""
    for namespace in sorted(_NAMESPACES.glob(f"{bridge}-*")):
        _ip_netns("delete", namespace.name)
    for link in ip.get_links():
        name = link.get_attr("IFLA_IFNAME")
        if name == bridge or name.startswith(f"{bridge}-"):
            with suppress(_pyroute2().NetlinkError):  # already removed with its peer, or with the namespace
                ip.link("del", index=link["index"])


def _ip_netns(*arguments: str) -> None:
    # pyroute2 would fork this process, which has threads, to make a namespace. iproute2 uses its own process.
    subprocess.run(["ip", "netns", *arguments], check=True)


def _add_link(ip: Any, name: str, undo: ExitStack, **options: Any) -> int:
    """Make a link, which `undo` removes. Returns its index. It is up."""
    ip.link("add", ifname=name, **options)
    (index,) = ip.link_lookup(ifname=name)
    undo.callback(ip.link, "del", index=index)
    ip.link("set", index=index, state="up")
    return int(index)


def _digest(run_dir: Path) -> str:
    return "pf" + hashlib.sha256(str(run_dir.resolve()).encode()).hexdigest()[:6]


def _name(run_dir: Path, client_id: str) -> str:
    return f"{_digest(run_dir)}-{client_id}"


def _free_subnet(ip: Any) -> IPv4Network:
    """The first subnet in which this machine has no address. Other runs may use the others."""
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
