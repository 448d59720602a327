"""When a round's measurements are not to be trusted: its hosts were too busy, too late, or not their own masters."""

from collections.abc import Iterable
from dataclasses import dataclass

from pausefl_process.host_monitor import HostReport
from pausefl_server.records import Signal

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
_SERVER_COMPUTES = "the server's own work made up the round: choose fewer clients a round, or a smaller model"


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
        found = [f"server {name}" for name in self._passed(server)]
        of_clients = {name for report in clients for name in self._passed(report)}
        if signal == "communication" or total_delays:
            of_clients.discard("compute_share")
        return (*found, *(f"clients {name}" for name in ADVICE if name in of_clients))

    def _passed(self, report: HostReport) -> list[str]:
        return [name for name in ADVICE if getattr(report, name) > getattr(self, name)]


def advice(doubt: str) -> str:
    """One doubt as a sentence that says what to do."""
    host, name = doubt.split()
    if doubt == "server compute_share":
        return f"the server, {name}: {_SERVER_COMPUTES}"
    return f"{'the server' if host == 'server' else 'client hosts'}, {name}: {ADVICE[name]}"
