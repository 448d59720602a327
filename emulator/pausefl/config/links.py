"""The [latency] table: which law, bandwidth and access point each client's link has, and the links themselves."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from pydantic import Field

from pausefl.config.delays.files import ClientPlace
from pausefl.config.delays.laws import EXCHANGE_DELAYS, LawReader
from pausefl.config.validation import Count, Positive, Share, TomlTable
from pausefl.delays import Delay, NoDelay, Sum
from pausefl_client.link import Mode
from pausefl_proto.draws import generator
from pausefl_proto.errors import ConfigError

# As many as a bridge of Linux has, which joins the links of netem.
_BRIDGE_PORTS = 1023


class BandwidthTable(TomlTable):
    """A token bucket on payload bytes, each way."""

    down_bytes_per_s: Positive | None = None
    """The rate from server to client. Without it, as fast as the machine."""
    up_bytes_per_s: Positive | None = None
    """The rate from client to server. Without it, as fast as the machine."""
    burst_bytes: Count = 16_384
    """How many bytes a full bucket lets through at once."""


class GroupBandwidthTable(TomlTable):
    """What differs in a link group's own buckets from `latency.bandwidth`."""

    down_bytes_per_s: Positive | None = None
    """The group's rate from server to client."""
    up_bytes_per_s: Positive | None = None
    """The group's rate from client to server."""
    burst_bytes: Count | None = None
    """How many bytes a full bucket of the group lets through at once."""


class LinkGroup(TomlTable):
    """Clients whose links differ from the others'. What a group does not set, it takes from [latency]."""

    clients: str | tuple[str, ...]
    """The group's clients: an id, a range "first..last", or a list of either."""
    delay: dict[str, Any] | None = None
    """The group's law for a whole exchange."""
    down: dict[str, Any] | None = None
    """The group's law from server to client."""
    up: dict[str, Any] | None = None
    """The group's law from client to server."""
    bandwidth: GroupBandwidthTable | None = None
    """The group's bandwidth."""


class AccessPointTable(BandwidthTable):
    """Clients behind one access point. They share its bucket and run in the process that owns it."""

    clients: str | tuple[str, ...]
    """The clients behind it: an id, a range "first..last", or a list of either."""


def _published_unless_said(table: Mapping[str, Any]) -> dict[str, Any] | None:
    return {"kind": "halves"} if table.get("down") is None and table.get("up") is None else None


class LatencyTable(TomlTable):
    """How network time is made and measured."""

    signal: Literal["round_trip", "communication"] = "round_trip"
    """The latency that policies learn from: the whole round trip, or the round trip without the client's own work."""
    mode: Mode = "additive"
    """ "additive" adds drawn time to real time. "total" makes a whole exchange take the drawn time, where it can."""
    injection: Literal["link", "netem"] = "link"
    """ "link": each client holds its messages back itself. "netem": the kernel delays packets (`--netem`)."""
    time_scale: Positive = 1.0
    """The factor from emulated to real time: 0.1 waits a tenth of each drawn delay."""
    tau_min_s: Positive | Literal["auto"] = 0.05
    """τ_min, the least latency of the reward τ_min/τ. "auto" takes the 5 % quantile of the clients' least
    latencies, or a tenth of their median if that is more."""
    down_share: Share = 0.5
    """The share of `delay` that is injected on the way down. The rest is injected on the way up."""
    down: dict[str, Any] | None = None
    """The law of the way from server to client. `down` and `up` are drawn apart and replace `delay`."""
    up: dict[str, Any] | None = None
    """The law of the way from client to server."""
    delay: dict[str, Any] | None = Field(default_factory=_published_unless_said)
    """The law of a whole exchange. Without it, `down` and `up`, the published halves hold."""
    bandwidth: BandwidthTable = BandwidthTable()
    """The bandwidth of each client's link."""
    groups: tuple[LinkGroup, ...] = ()
    """Links that differ from the others': a list of tables."""
    access_points: tuple[AccessPointTable, ...] = ()
    """Access points that several clients share: a list of tables."""


@dataclass(frozen=True)
class LinkPlan:
    """What one client's link is like, in seconds and bytes at the emulated scale."""

    delay: Delay | None
    """Drawn once an exchange; None: `down` and `up` are drawn apart."""
    down: Delay
    up: Delay
    bandwidth: BandwidthTable
    access_point: int | None
    """An index into `latency.access_points`."""

    @property
    def exchange(self) -> Delay:
        """The law of a whole exchange's delay; a bucket's waits depend on the others and are no part of it."""
        return self.delay or Sum((self.down, self.up))


def plan_links(latency: LatencyTable, client_ids: Sequence[str], seed: int) -> dict[str, LinkPlan]:
    """Every client's link, by id; ConfigError naming the key of whatever is wrong."""
    _check_mode(latency)
    groups = _members([g.clients for g in latency.groups], client_ids, "latency.groups")
    access_points = _members([a.clients for a in latency.access_points], client_ids, "latency.access_points")
    for index, table in enumerate(latency.access_points):
        if table.down_bytes_per_s is None and table.up_bytes_per_s is None:
            raise ConfigError(f"latency.access_points.{index}: needs down_bytes_per_s, up_bytes_per_s or both")
    plans, everybody = {}, frozenset(client_ids)
    for k, client_id in enumerate(client_ids):
        group = groups.get(client_id)
        laws = _laws(latency, group)
        bandwidth = latency.bandwidth if group is None else _group_bandwidth(latency, latency.groups[group])
        plan = LinkPlan(None, NoDelay(), NoDelay(), bandwidth, access_points.get(client_id))
        plans[client_id] = _with_delays(plan, laws, ClientPlace(client_id, k, everybody), seed)
    return plans


def processes(plans: Mapping[str, LinkPlan], per_process: int) -> list[list[str]]:
    """Which clients share a process: those behind one access point, and the others in parts of `per_process`."""
    behind: dict[int, list[str]] = {}
    alone: list[str] = []
    for client_id, plan in plans.items():
        (alone if plan.access_point is None else behind.setdefault(plan.access_point, [])).append(client_id)
    return [alone[i : i + per_process] for i in range(0, len(alone), per_process)] + list(behind.values())


def check_access_points(plans: Mapping[str, LinkPlan], group_of: Mapping[str, str]) -> None:
    """ConfigError where clients of different `[clients.groups]`, which share no process, are to share a bucket."""
    first: dict[int, str] = {}
    for client_id, plan in plans.items():
        if plan.access_point is None:
            continue
        other = first.setdefault(plan.access_point, client_id)
        if group_of[client_id] != group_of[other]:
            raise ConfigError(
                f"latency.access_points.{plan.access_point}.clients: {other} and {client_id} are of different"
                " clients.groups, whose processes share no bucket"
            )


def check_netem(plans: Mapping[str, LinkPlan], clients_per_process: int) -> None:
    """ConfigError for what the kernel cannot make of links."""
    if clients_per_process != 1:
        raise ConfigError('latency.injection = "netem": goes with clients.per_process = 1, a namespace for each')
    if len(plans) > _BRIDGE_PORTS:
        raise ConfigError(f'latency.injection = "netem": goes with at most {_BRIDGE_PORTS} clients, not {len(plans)}')
    for client_id, plan in plans.items():
        laws = {"down": plan.down, "up": plan.up} if plan.delay is None else {"delay": plan.delay}
        for name, law in laws.items():
            _check_netem_law(law, f"latency.{name} of {client_id}")


def _check_netem_law(law: Delay, name: str) -> None:
    """netem draws uniformly from mean ± jitter, and no packet leaves before it came: jitter = √3 sd <= mean."""
    if not math.isfinite(law.mean_s):
        raise ConfigError(f'latency.injection = "netem": needs laws with a finite mean, not {name}')
    sd_s = float(law.points().std())
    if math.sqrt(3) * sd_s > law.mean_s * (1 + 1e-9):
        raise ConfigError(
            f'latency.injection = "netem": {name} has a spread of {sd_s:.3g} s; around a mean of {law.mean_s:.3g} s'
            f" netem keeps at most mean/√3 = {law.mean_s / math.sqrt(3):.3g} s: choose another law, or injection ="
            ' "link"'
        )


def _check_mode(latency: LatencyTable) -> None:
    if latency.injection == "netem" and (latency.mode == "total" or latency.access_points):
        raise ConfigError('latency.injection = "netem": goes with latency.mode = "additive", without access_points')
    if latency.mode == "additive":
        return
    if latency.signal != "round_trip" or latency.time_scale != 1:
        raise ConfigError(
            'latency.mode = "total": the drawn time is the whole round trip, so it goes with'
            ' latency.signal = "round_trip" and latency.time_scale = 1'
        )
    of_groups = (_group_bandwidth(latency, group) for group in latency.groups)
    bandwidths = [latency.bandwidth, *of_groups, *latency.access_points]
    if any(b.down_bytes_per_s or b.up_bytes_per_s for b in bandwidths):
        raise ConfigError(
            'latency.mode = "total": the drawn time is all an exchange takes, so it goes without bandwidth'
        )


def _members(selections: Sequence[str | tuple[str, ...]], client_ids: Sequence[str], key: str) -> dict[str, int]:
    """The group of each client that is in one."""
    group_of: dict[str, int] = {}
    places = {client_id: place for place, client_id in enumerate(client_ids)}
    for group, selection in enumerate(selections):
        if not selection:
            raise ConfigError(f"{key}.{group}.clients = {json.dumps(selection)}: must name at least one client")
        for part in (selection,) if isinstance(selection, str) else selection:
            first, dots, last = part.partition("..")
            ends = (first, last if dots else first)
            if not places.keys() >= set(ends):
                raise ConfigError(
                    f'{key}.{group}.clients = "{part}": must be ids from {client_ids[0]} to {client_ids[-1]},'
                    ' or "first..last"'
                )
            begin, end = (places[client_id] for client_id in ends)
            if end < begin:
                raise ConfigError(f'{key}.{group}.clients = "{part}": the first of a range must come before its last')
            for client_id in client_ids[begin : end + 1]:
                if client_id in group_of:
                    raise ConfigError(f"{key}.{group}.clients: {client_id} is in two of them")
                group_of[client_id] = group
    return group_of


@dataclass(frozen=True)
class _Laws:
    """The tables of laws that hold for one client, each with the key it stands under."""

    delay: tuple[str, dict[str, Any]] | None
    down: tuple[str, dict[str, Any]] | None
    up: tuple[str, dict[str, Any]] | None


def _laws(latency: LatencyTable, group: int | None) -> _Laws:
    """A group's own laws, and those of [latency] where it says nothing."""
    common = _said(latency, "latency")
    if group is None:
        return common
    key = f"latency.groups.{group}"
    own = _said(latency.groups[group], key)
    if own.delay is not None:
        return own
    if own.down is None and own.up is None:
        return common
    if (own.down is None or own.up is None) and common.delay is not None:
        missing, given = ("down", "up") if own.down is None else ("up", "down")
        raise ConfigError(
            f"{key}.{missing}: is missing; [latency] has one law for a whole exchange, so a group with {given} needs"
            " both ways"
        )
    return replace(own, down=own.down or common.down, up=own.up or common.up)


def _said(table: LatencyTable | LinkGroup, key: str) -> _Laws:
    if table.delay is not None and (table.down is not None or table.up is not None):
        raise ConfigError(f"{key}.delay: a whole exchange's delay goes without {key}.down and {key}.up")

    def named(name: str) -> tuple[str, dict[str, Any]] | None:
        law = getattr(table, name)
        return None if law is None else (f"{key}.{name}", law)

    return _Laws(named("delay"), named("down"), named("up"))


def _group_bandwidth(latency: LatencyTable, group: LinkGroup) -> BandwidthTable:
    said = {} if group.bandwidth is None else group.bandwidth.model_dump(exclude_none=True)
    return latency.bandwidth.model_copy(update=said)


def _with_delays(plan: LinkPlan, laws: _Laws, client: ClientPlace, seed: int) -> LinkPlan:
    reader = LawReader(client, partial(generator, seed, "delay-parameter", client.client_id))

    def law_of(said: tuple[str, dict[str, Any]] | None) -> Delay:
        if said is None:
            return NoDelay()
        key, table = said
        if key != "latency.delay":
            return reader.read(table, key)
        return reader.read({"kind": "halves", **table}, key, EXCHANGE_DELAYS)

    if laws.delay is None:
        return replace(plan, down=law_of(laws.down), up=law_of(laws.up))
    return replace(plan, delay=law_of(laws.delay))
