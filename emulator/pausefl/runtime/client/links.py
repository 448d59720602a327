"""Makes the links of a client process from their plans: delays drawn for each round, and token buckets."""

from collections.abc import Mapping, Sequence
from functools import partial

from pausefl.experiment.delay_laws.base import Delay, sampled_delays
from pausefl.experiment.delay_laws.laws import NoDelay
from pausefl.experiment.links import BandwidthTable, LatencyTable, LinkPlan
from pausefl_client.link import SPIN_S, Delays, Link, TokenBucket
from pausefl_proto.draws import generator
from pausefl_proto.errors import ConfigError


def make_links(
    latency: LatencyTable, plans: Mapping[str, LinkPlan], client_ids: Sequence[str], seed: int, spin_s: float = SPIN_S
) -> dict[str, Link]:
    """The links of the clients in this process. ConfigError unless clients of one access point are in one process."""
    if latency.injection == "netem":
        return {client_id: Link() for client_id in client_ids}
    shared = {}
    for index in {plans[c].access_point for c in client_ids} - {None}:
        if missing := [c for c, plan in plans.items() if plan.access_point == index and c not in client_ids]:
            raise ConfigError(f"latency.access_points.{index}: {missing[0]} must run in the same process as the others")
        shared[index] = _buckets(latency.access_points[index or 0], latency.time_scale)
    links = {}
    for client_id in client_ids:
        plan = plans[client_id]
        own, access_point = _buckets(plan.bandwidth, latency.time_scale), shared.get(plan.access_point, ((), ()))
        draw = partial(_draw, plan, latency, seed, client_id)
        links[client_id] = Link(draw, latency.mode, own[0] + access_point[0], own[1] + access_point[1], spin_s)
    return links


def _draw(plan: LinkPlan, latency: LatencyTable, seed: int, client_id: str, round: int) -> Delays:
    """A client's delays in a round, multiplied by `latency.time_scale`. They depend only on seed, client and round."""

    def draw_s(law: Delay, purpose: str) -> float:
        if isinstance(law, NoDelay):
            return 0.0  # making a generator costs more than a small exchange
        return float(sampled_delays(law, generator(seed, purpose, client_id, round), 1, round)[0]) * latency.time_scale

    if plan.delay is None:
        return Delays(draw_s(plan.down, "delay-down"), draw_s(plan.up, "delay-up"))
    delay_s = draw_s(plan.delay, "delay")
    down_s = delay_s * latency.down_share
    return Delays(down_s, delay_s - down_s)


def _buckets(bandwidth: BandwidthTable, time_scale: float) -> tuple[tuple[TokenBucket, ...], tuple[TokenBucket, ...]]:
    """The token buckets (down, up). Their waits are injected time, so `time_scale` stretches them like delays."""
    down, up = (
        (TokenBucket(rate / time_scale, bandwidth.burst_bytes),) if rate else ()
        for rate in (bandwidth.down_bytes_per_s, bandwidth.up_bytes_per_s)
    )
    return down, up
