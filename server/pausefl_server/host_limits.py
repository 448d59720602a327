"""When a round's measurements are not to be trusted: its hosts were too busy, too late, or not their own masters."""

from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter

from pausefl_process.host_monitor import HostReport
from pausefl_server.records import Observation, Signal

ADVICE = {
    "loop_lag_s": "the event loop answered late: run fewer clients or processes on this machine, or leave it alone"
    " meanwhile",
    "timer_overshoot_s": "sleeps took too long, so delays were injected late: run fewer processes on this machine, or"
    " raise latency.time_scale until the overshoot is small beside the delays",
    "steal_share": "the hypervisor took processor time away: measure on a machine that is not shared",
    "compute_share": "computing, not the network, made up the measured time: where clients share this machine set"
    ' latency.signal = "communication" or raise latency.time_scale',
}
"""What to do about each doubt, by the name of its limit."""
DOUBTS = tuple(f"{host} {name}" for host in ("server", "clients") for name in ADVICE)
"""Every doubt there is."""
_SERVER_COMPUTES = "the server's own work made up the round: choose fewer clients a round, or a smaller model"
_values = attrgetter(*ADVICE)


@dataclass(frozen=True)
class HostLimits:
    """Beyond these a round is suspect; a share of 1 never is. The keys of `[host]`."""

    loop_lag_s: float = 0.05
    timer_overshoot_s: float = 0.05
    steal_share: float = 0.05
    compute_share: float = 0.5

    def doubts(
        self, server: HostReport, clients: Iterable[HostReport], signal: Signal, *, total_delays: bool = False
    ) -> tuple[str, ...]:
        """What speaks against a round, as "server loop_lag_s" and the like, in a fixed order; empty: nothing does.

        Time that clients compute is no part of the signal "communication", and so no reason to doubt it; nor where a
        drawn total holds it (`total_delays`), of which overruns are counted.
        """
        of_server, of_clients = self._passed([server]), self._passed(clients)
        if (signal == "communication" or total_delays) and "compute_share" in of_clients:
            of_clients.remove("compute_share")
        return (*(f"server {name}" for name in of_server), *(f"clients {name}" for name in of_clients))

    def clients_beyond(self, doubt: str, observations: Iterable[Observation]) -> list[str]:
        """The clients whose hosts were beyond the limit that this doubt names; none for a doubt of the server."""
        host, name = doubt.split()
        limit = getattr(self, name)
        return [o.client_id for o in observations if host == "clients" and getattr(o.host, name) > limit]

    def _passed(self, reports: Iterable[HostReport]) -> list[str]:
        """The limits that at least one of the reports is beyond."""
        worst = map(max, zip(*map(_values, reports), strict=True))
        return [name for name, value, limit in zip(ADVICE, worst, _values(self), strict=False) if value > limit]


def advice(doubt: str) -> str:
    """One doubt as a sentence that says what to do."""
    host, name = doubt.split()
    if doubt == "server compute_share":
        return f"the server, {name}: {_SERVER_COMPUTES}"
    return f"{'the server' if host == 'server' else 'client hosts'}, {name}: {ADVICE[name]}"
