"""The [latency] table: which law, bandwidth and access point each client's link has, and the links themselves."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
from pydantic import Field

from pausefl.draws import generator
from pausefl.errors import ConfigError
from pausefl_client.link import Delays, Link, Mode, TokenBucket
from pausefl_emulator.delay_tables import make_record, read_delay
from pausefl_emulator.delays import Delay, NoDelay, Sum, published_delay
from pausefl_emulator.tables import Count, Positive, Share, Table


class BandwidthTable(Table):
    """A token bucket on payload bytes, each way; a way without a rate is as fast as the machine."""

    down_bytes_per_s: Positive | None = None
    up_bytes_per_s: Positive | None = None
    burst_bytes: Count = 16_384
    """What a rested bucket lets through at once."""


class GroupTable(Table):
    """Clients whose links differ from the others'. What a group does not say it takes from [latency]."""

    clients: str | tuple[str, ...]
    """Client ids, or "first..last"."""
    delay: dict[str, Any] | None = None
    down: dict[str, Any] | None = None
    up: dict[str, Any] | None = None
    bandwidth: BandwidthTable | None = None


class AccessPointTable(BandwidthTable):
    """Clients behind one access point share its bucket; they run in one process, which owns it."""

    clients: str | tuple[str, ...]
    """Client ids, or "first..last"."""


def _published_unless_said(table: Mapping[str, Any]) -> dict[str, Any] | None:
    return {"kind": "halves"} if table.get("down") is None and table.get("up") is None else None


class LatencyTable(Table):
    """How network time is made and measured."""

    signal: Literal["round_trip", "communication"] = "round_trip"
    mode: Mode = "additive"
    """"additive": drawn time comes on top of real time; "total": an exchange takes the drawn time where it can."""
    injection: Literal["link", "netem"] = "link"
    """"link": each client holds its messages back itself; "netem": the kernel does, packet by packet (`--netem`)."""
    time_scale: Positive = 1.0
    tau_min_s: Positive | Literal["auto"] = 0.05
    down_share: Share = 0.5
    """The share of `delay` that is injected on the way down; the rest is injected on the way up."""
    down: dict[str, Any] | None = None
    up: dict[str, Any] | None = None
    """Laws for either way, drawn apart, in place of `delay`."""
    delay: dict[str, Any] | None = Field(default_factory=_published_unless_said)
    """One law for a whole exchange; without it and `down` and `up`, the published halves."""
    bandwidth: BandwidthTable = BandwidthTable()
    groups: tuple[GroupTable, ...] = ()
    access_points: tuple[AccessPointTable, ...] = ()


@dataclass(frozen=True)
class _Halves:
    """The parameters of kind = "halves"."""

    floor_s: float = 0.05
    sd_s: float = 0.05

    def __post_init__(self) -> None:
        for name in ("floor_s", "sd_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} = {value}: must be a finite number, at least 0")


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
    plans = {}
    for k, client_id in enumerate(client_ids):
        plan = LinkPlan(None, NoDelay(), NoDelay(), latency.bandwidth, access_points.get(client_id))
        group = groups.get(client_id)
        table, key = (latency, "latency") if group is None else (latency.groups[group], f"latency.groups.{group}")
        if isinstance(table, GroupTable):
            plan = replace(plan, bandwidth=table.bandwidth or latency.bandwidth)
            if not (table.delay or table.down or table.up):
                table, key = latency, "latency"
        plans[client_id] = _with_delays(plan, table, key, client_id, seed, (k, len(client_ids)))
    return plans


def processes(plans: Mapping[str, LinkPlan], per_process: int) -> list[list[str]]:
    """Which clients share a process: those behind one access point, and the others in parts of `per_process`."""
    behind: dict[int, list[str]] = {}
    alone: list[str] = []
    for client_id, plan in plans.items():
        (alone if plan.access_point is None else behind.setdefault(plan.access_point, [])).append(client_id)
    return [alone[i : i + per_process] for i in range(0, len(alone), per_process)] + list(behind.values())


def make_links(
    latency: LatencyTable, plans: Mapping[str, LinkPlan], client_ids: Sequence[str], seed: int
) -> dict[str, Link]:
    """The links of the clients in this process. Whoever shares an access point must be here with the others."""
    if latency.injection == "netem":
        return {client_id: Link() for client_id in client_ids}
    shared = {}
    for index in {plans[c].access_point for c in client_ids} - {None}:
        missing = [c for c, plan in plans.items() if plan.access_point == index and c not in client_ids]
        if missing:
            raise ConfigError(f"latency.access_points.{index}: {missing[0]} must run in the same process as the others")
        shared[index] = _buckets(latency.access_points[index or 0], latency.time_scale)
    links = {}
    for client_id in client_ids:
        plan = plans[client_id]
        own, access_point = _buckets(plan.bandwidth, latency.time_scale), shared.get(plan.access_point, ((), ()))
        draw = partial(_draw, plan, latency, seed, client_id)
        links[client_id] = Link(draw, latency.mode, own[0] + access_point[0], own[1] + access_point[1])
    return links


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
    bandwidths = [latency.bandwidth, *(g.bandwidth for g in latency.groups if g.bandwidth), *latency.access_points]
    if any(b.down_bytes_per_s or b.up_bytes_per_s for b in bandwidths):
        raise ConfigError(
            'latency.mode = "total": the drawn time is all an exchange takes, so it goes without bandwidth'
        )


def _members(selections: Sequence[str | tuple[str, ...]], client_ids: Sequence[str], key: str) -> dict[str, int]:
    """The group of each client that is in one."""
    group_of: dict[str, int] = {}
    for group, selection in enumerate(selections):
        for part in (selection,) if isinstance(selection, str) else selection:
            first, dots, last = part.partition("..")
            ends = (first, last if dots else first)
            if not set(ends) <= set(client_ids):
                raise ConfigError(
                    f'{key}.{group}.clients = "{part}": must be ids from {client_ids[0]} to {client_ids[-1]},'
                    ' or "first..last"'
                )
            for client_id in client_ids[client_ids.index(ends[0]) : client_ids.index(ends[1]) + 1]:
                if client_id in group_of:
                    raise ConfigError(f"{key}.{group}.clients: {client_id} is in two of them")
                group_of[client_id] = group
    return group_of


def _with_delays(
    plan: LinkPlan, table: LatencyTable | GroupTable, key: str, client_id: str, seed: int, position: tuple[int, int]
) -> LinkPlan:
    def rng_for(drawn: str) -> np.random.Generator:
        return generator(seed, "delay-parameter", client_id, drawn)

    if table.delay is None:
        down, up = (
            read_delay(law, f"{key}.{way}", rng_for) if law is not None else NoDelay()
            for way, law in (("down", table.down), ("up", table.up))
        )
        return replace(plan, down=down, up=up)
    if table.down is not None or table.up is not None:
        raise ConfigError(f"{key}.delay: a whole exchange's delay goes without {key}.down and {key}.up")
    if key == "latency" and table.delay.get("kind", "halves") == "halves":
        k, clients = position
        values = {name: value for name, value in table.delay.items() if name != "kind"}
        halves: _Halves = make_record(_Halves, values, "latency.delay", rng_for)
        return replace(plan, delay=published_delay(k, clients, floor_s=halves.floor_s, sd_s=halves.sd_s))
    return replace(plan, delay=read_delay(table.delay, f"{key}.delay", rng_for))


def _draw(plan: LinkPlan, latency: LatencyTable, seed: int, client_id: str, round: int) -> Delays:
    """A function of (seed, client, round); multiplied by `latency.time_scale`."""

    def draw_s(law: Delay, purpose: str) -> float:
        if isinstance(law, NoDelay):
            return 0.0  # without the generator, which costs more than a small exchange's own work
        return float(law.sample(generator(seed, purpose, client_id, round), 1, round)[0]) * latency.time_scale

    if plan.delay is None:
        return Delays(draw_s(plan.down, "delay-down"), draw_s(plan.up, "delay-up"))
    delay_s = draw_s(plan.delay, "delay")
    down_s = delay_s * latency.down_share
    return Delays(down_s, delay_s - down_s)


def _buckets(bandwidth: BandwidthTable, time_scale: float) -> tuple[tuple[TokenBucket, ...], tuple[TokenBucket, ...]]:
    """Down and up; waiting is injected time like any other, so `time_scale` stretches it."""
    down, up = (
        (TokenBucket(rate / time_scale, bandwidth.burst_bytes),) if rate else ()
        for rate in (bandwidth.down_bytes_per_s, bandwidth.up_bytes_per_s)
    )
    return down, up
