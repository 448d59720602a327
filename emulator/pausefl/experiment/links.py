"""The [latency] table, and the links made from it: each client's delay law, bandwidth and access point."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Self

from annotated_types import Ge
from pydantic import Field, model_validator

from pausefl.experiment.delay_laws.base import Delay
from pausefl.experiment.delay_laws.combined import Sum
from pausefl.experiment.delay_laws.laws import NoDelay
from pausefl.experiment.delays.laws import DELAYS, EXCHANGE_DELAYS, LawReader, law_readers
from pausefl.experiment.kinds import Kinds
from pausefl.experiment.validation import TomlTable
from pausefl_client.link import Mode
from pausefl_proto.errors import ConfigError
from pausefl_proto.number_types import Count, Positive, Share

# The greatest number of ports of a Linux bridge, which joins the netem links.
_BRIDGE_PORTS = 1023

_Law = Annotated[dict[str, Any], Kinds(DELAYS)]
_ExchangeLaw = Annotated[dict[str, Any], Kinds(EXCHANGE_DELAYS, "halves")]


class BandwidthTable(TomlTable):
    """The bandwidth of a link: a token bucket on payload bytes for each direction."""

    down_bytes_per_s: Positive | None = None
    """The rate from server to client. Without it, the rate is not limited."""
    up_bytes_per_s: Positive | None = None
    """The rate from client to server. Without it, the rate is not limited."""
    burst_bytes: Count = 16_384
    """How many bytes a full bucket lets through at once."""


class GroupBandwidthTable(TomlTable):
    """The bandwidth of each client of a link group. Keys that are not set come from `latency.bandwidth`."""

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
    delay: _Law | None = None
    """The group's law for a whole exchange."""
    down: _Law | None = None
    """The group's law from server to client."""
    up: _Law | None = None
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
    """How network delays are produced and measured."""

    signal: Literal["round_trip", "communication"] = "round_trip"
    """The latency that policies learn from: the whole round trip, or the round trip without the client's own work."""
    mode: Mode = "additive"
    """ "additive" adds drawn time to real time. "total" makes a whole exchange take the drawn time, if it can."""
    injection: Literal["link", "netem"] = "link"
    """ "link": each client holds its messages back itself. "netem": the kernel delays packets (`--netem`)."""
    time_scale: Annotated[float, Ge(1e-6)] = 1.0
    """The factor from emulated to real time: 0.1 waits a tenth of each drawn delay."""
    tau_min_s: Positive | Literal["auto"] = 0.05
    """τ_min, the least latency of the reward τ_min/τ. "auto" takes the 5 % quantile of the clients' least
    latencies, or a tenth of their median if that is more."""
    down_share: Share = 0.5
    """The share of `delay` that is injected on the way down. The rest is injected on the way up."""
    down: _Law | None = None
    """The law of the delay from server to client. `down` and `up` are drawn separately and replace `delay`."""
    up: _Law | None = None
    """The law of the delay from client to server."""
    delay: _ExchangeLaw | None = Field(default_factory=_published_unless_said)
    """The law of a whole exchange's delay. Without `delay`, `down` and `up`, the published halves apply."""
    bandwidth: BandwidthTable = BandwidthTable()
    """The bandwidth of each client's link."""
    groups: tuple[LinkGroup, ...] = ()
    """Links that differ from the others': a list of tables."""
    access_points: tuple[AccessPointTable, ...] = ()
    """Access points that several clients share: a list of tables."""

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.delay is self.down is self.up is None:
            raise ValueError("delay = None: cannot be said in TOML, and a resumed run would have the default")
        if self.injection == "netem" and (self.mode == "total" or self.access_points):
            raise ConfigError('latency.injection = "netem": goes with latency.mode = "additive", without access_points')
        if self.mode == "additive":
            return self
        if self.signal != "round_trip" or self.time_scale != 1:
            raise ConfigError(
                'latency.mode = "total": the drawn time is the whole round trip, so it goes with'
                ' latency.signal = "round_trip" and latency.time_scale = 1'
            )
        of_groups = (_group_bandwidth(self, group) for group in self.groups)
        bandwidths = [self.bandwidth, *of_groups, *self.access_points]
        if any(b.down_bytes_per_s or b.up_bytes_per_s for b in bandwidths):
            raise ConfigError(
                'latency.mode = "total": the drawn time is all an exchange takes, so it goes without bandwidth'
            )
        return self


@dataclass(frozen=True)
class LinkPlan:
    """One client's link, in seconds and bytes at the emulated scale."""

    delay: Delay | None
    """The law of a whole exchange's delay. None if `down` and `up` are drawn separately."""
    down: Delay
    up: Delay
    bandwidth: BandwidthTable
    access_point: int | None
    """An index into `latency.access_points`."""

    @property
    def exchange(self) -> Delay:
        """The law of a whole exchange's delay. It excludes waits at a bucket, which depend on other messages."""
        return self.delay or Sum((self.down, self.up))


def plan_links(latency: LatencyTable, client_ids: Sequence[str], seed: int) -> dict[str, LinkPlan]:
    """The link of every client, by client id. Raises ConfigError that names the key of the mistake."""
    planner = _LinkPlanner(latency, client_ids, seed)
    return {client_id: planner.link(client_id) for client_id in client_ids}


def sampled_links(latency: LatencyTable, groups: Mapping[str, Sequence[str]], seed: int) -> dict[str, LinkPlan]:
    """The links of the first and the last client of each link group, by client id: enough to check an experiment.

    `groups` are the client ids of each group of `[clients.groups]`. Raises ConfigError like `plan_links`, and if an
    access point has clients of several groups, which do not share a process.
    """
    group_of = {client_id: group for group, ids in groups.items() for client_id in ids}
    client_ids = list(group_of)
    planner = _LinkPlanner(latency, client_ids, seed)
    behind: dict[int, str] = {}
    for client_id, index in planner.access_points.items():
        other = behind.setdefault(index, client_id)
        if group_of[other] != group_of[client_id]:
            raise ConfigError(
                f"latency.access_points.{index}.clients: {other} and {client_id} are of different clients.groups,"
                " whose processes share no bucket"
            )
    first = {planner.groups.get(client_id): client_id for client_id in reversed(client_ids)}
    last = {planner.groups.get(client_id): client_id for client_id in client_ids}
    return {client_id: planner.link(client_id) for client_id in [*first.values(), *last.values()]}


def processes_of(plans: Mapping[str, LinkPlan], per_process: int) -> list[list[str]]:
    """The client ids of each process. Clients behind one access point share one; others are split by `per_process`."""
    behind: dict[int, list[str]] = {}
    alone: list[str] = []
    for client_id, plan in plans.items():
        (alone if plan.access_point is None else behind.setdefault(plan.access_point, [])).append(client_id)
    return [alone[i : i + per_process] for i in range(0, len(alone), per_process)] + list(behind.values())


def check_netem(links: Mapping[str, LinkPlan], clients: int, clients_per_process: int) -> None:
    """Raise ConfigError if netem cannot produce these links. `clients` is the number of all clients."""
    if clients_per_process != 1:
        raise ConfigError('latency.injection = "netem": goes with clients.per_process = 1, a namespace for each')
    if clients > _BRIDGE_PORTS:
        raise ConfigError(f'latency.injection = "netem": goes with at most {_BRIDGE_PORTS} clients, not {clients}')
    for client_id, link in links.items():
        laws = {"down": link.down, "up": link.up} if link.delay is None else {"delay": link.delay}
        for name, law in laws.items():
            _check_netem_law(law, f"latency.{name} of {client_id}")


def _check_netem_law(law: Delay, name: str) -> None:
    """Raise ConfigError unless √3 sd <= mean: netem draws uniformly from mean ± √3 sd, and no delay is negative."""
    if not math.isfinite(law.mean_s):
        raise ConfigError(f'latency.injection = "netem": needs laws with a finite mean, not {name}')
    sd_s = float(law.points().std())
    if math.sqrt(3) * sd_s > law.mean_s * (1 + 1e-9):
        raise ConfigError(
            f'latency.injection = "netem": {name} has a spread of {sd_s:.3g} s; around a mean of {law.mean_s:.3g} s'
            f" netem keeps at most mean/√3 = {law.mean_s / math.sqrt(3):.3g} s: choose another law, or injection ="
            ' "link"'
        )


def _members(selections: Sequence[str | tuple[str, ...]], client_ids: Sequence[str], key: str) -> dict[str, int]:
    """The index of the group of each client that belongs to a group, by client id."""
    group_of, places = dict[str, int](), {client_id: place for place, client_id in enumerate(client_ids)}
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


_Laws = Mapping[str, tuple[str, dict[str, Any]]]
"""The law tables of one client's link, each with its key: "delay" alone, or "down", "up" or both."""


def _laws(latency: LatencyTable, group: LinkGroup, key: str) -> _Laws:
    """The laws of a link group, completed by those of [latency]."""
    common, own = _said(latency, "latency"), _said(group, key)
    if "delay" in own or len(own) > 1:
        return own
    if own and "delay" in common:
        missing, given = ("up", "down") if "down" in own else ("down", "up")
        raise ConfigError(
            f"{key}.{missing}: is missing; [latency] has one law for a whole exchange, so a group with {given} needs"
            " both ways"
        )
    return {**common, **own}


def _said(table: LatencyTable | LinkGroup, key: str) -> _Laws:
    said = {name: law for name in ("delay", "down", "up") if (law := getattr(table, name)) is not None}
    if "delay" in said and len(said) > 1:
        raise ConfigError(f"{key}.delay: a whole exchange's delay goes without {key}.down and {key}.up")
    return {name: (f"{key}.{name}", law) for name, law in said.items()}


def _group_bandwidth(latency: LatencyTable, group: LinkGroup) -> BandwidthTable:
    said = {} if group.bandwidth is None else group.bandwidth.model_dump(exclude_none=True)
    return latency.bandwidth.model_copy(update=said)


class _LinkPlanner:
    """Everything that an experiment's links have in common."""

    def __init__(self, latency: LatencyTable, client_ids: Sequence[str], seed: int) -> None:
        """Raises ConfigError for a mistake that no single client's link shows."""
        self.groups = _members([g.clients for g in latency.groups], client_ids, "latency.groups")
        """The index into `latency.groups` of each client that belongs to a group, by client id."""
        selections = [a.clients for a in latency.access_points]
        self.access_points = _members(selections, client_ids, "latency.access_points")
        for index, table in enumerate(latency.access_points):
            if table.down_bytes_per_s is None and table.up_bytes_per_s is None:
                raise ConfigError(f"latency.access_points.{index}: needs down_bytes_per_s, up_bytes_per_s or both")
        groups = (*latency.groups, LinkGroup(clients=()))  # the last one: clients without a group
        self._laws = [_laws(latency, group, f"latency.groups.{i}") for i, group in enumerate(groups)]
        self._bandwidths = [_group_bandwidth(latency, group) for group in groups]
        self._reader = law_readers(client_ids, seed, "delay-parameter")

    def link(self, client_id: str) -> LinkPlan:
        """The link of one client. Raises ConfigError for a bad law."""
        group, access_point = self.groups.get(client_id, -1), self.access_points.get(client_id)
        laws, bandwidth = self._laws[group], self._bandwidths[group]
        reader = self._reader(client_id)
        delay, down, up = (_law(reader, laws[name]) if name in laws else None for name in ("delay", "down", "up"))
        return LinkPlan(delay, down or NoDelay(), up or NoDelay(), bandwidth, access_point)


def _law(reader: LawReader, said: tuple[str, dict[str, Any]]) -> Delay:
    key, table = said
    if key != "latency.delay":
        return reader.read(table, key)
    return replace(reader, kinds=EXCHANGE_DELAYS).read(table, key)
