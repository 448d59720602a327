"""Limits beyond which a round's measurements are in doubt: its hosts were too busy, too late, stopped or suspended."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from pausefl_process.host_monitor import HostReport
from pausefl_proto.number_types import Positive, Share
from pausefl_server.records import Observation, RoundRecord, Signal

ADVICE = {
    "loop_lag_s": "the event loop answered late: run fewer clients or processes on this machine, or leave it alone"
    " meanwhile",
    "timer_overshoot_s": "sleeps took too long, so delays were injected late: run fewer processes on this machine, or"
    " raise latency.time_scale until the overshoot is small beside the delays",
    "steal_share": "the hypervisor took processor time away: measure on a machine that is not shared",
    "compute_share": "computing, not the network, made up the measured time: where clients share this machine set"
    ' latency.signal = "communication" or raise latency.time_scale',
    "stopped_s": "the process was stopped, its container paused or its machine frozen: let it run while it measures",
    "suspended_s": "the machine was suspended: keep it awake while it measures",
}
"""Advice for each doubt, by the name of its limit."""
OVERDUE = "server deadline_s"
"""The doubt about a server that went on after more than twice a round's deadline: it stood still meanwhile."""
DOUBTS = {
    **{f"server {name}": f"the server, {name}: {text}" for name, text in ADVICE.items()},
    "server compute_share": "the server, compute_share: the server's own work made up the round: choose fewer clients a"
    " round, or a smaller model",
    OVERDUE: "the server, deadline_s: it passed a deadline by more than the deadline; let it run while it waits",
    **{f"clients {name}": f"client hosts, {name}: {text}" for name, text in ADVICE.items()},
}
"""All doubts, in the order of reports, each in words with advice on what to do."""
_STOOD_STILL = {OVERDUE, *(f"{host} {name}" for host in ("server", "clients") for name in ("stopped_s", "suspended_s"))}


@dataclass(frozen=True)
class HostLimits:
    """Host-interference limits, for the server's host and for clients' hosts. Measurements beyond a limit are marked
    as suspect."""

    loop_lag_s: Positive = 0.05
    """The greatest lag of a process's event loop."""
    timer_overshoot_s: Positive = 0.05
    """The greatest time by which a timer may fire late."""
    steal_share: Share = 0.05
    """The greatest share of the machine's processor time that its hypervisor takes away."""
    compute_share: Share = 0.5
    """The greatest share of a measured time that the process itself computes. A client's share counts only with the
    signal "round_trip" and the mode "additive"."""
    learn_from_stops: bool = False
    """Whether policies learn from latencies measured while a process was stopped or its machine slept. Such latencies
    are marked as suspect in any case."""
    stopped_s: ClassVar[float] = 0.0
    suspended_s: ClassVar[float] = 0.0

    def of_server(self, report: HostReport, *, is_overdue: bool = False) -> list[str]:
        """Doubts about a measurement on the server's side, such as "server loop_lag_s"; empty if there are none.

        `is_overdue`: the server went on only after more than twice the deadline.
        """
        return [f"server {name}" for name in self._passed(report)] + [OVERDUE] * is_overdue

    def of_client(self, report: HostReport, signal: Signal, *, total_delays: bool = False) -> list[str]:
        """Doubts about a measurement on the client's side, such as "clients loop_lag_s".

        Computing is no reason for doubt with the signal "communication", which excludes it. Nor is it with
        `total_delays`: drawn delays then include it, and overruns are counted.
        """
        passed = self._passed(report)
        if (signal == "communication" or total_delays) and "compute_share" in passed:
            passed.remove("compute_share")
        return [f"clients {name}" for name in passed]

    def teaches(self, suspect: Iterable[str]) -> bool:
        """Whether latency estimates count a measurement with these doubts. They do if load alone caused the doubts."""
        return self.learn_from_stops or _STOOD_STILL.isdisjoint(suspect)

    def _passed(self, report: HostReport) -> list[str]:
        return [name for name in ADVICE if getattr(report, name) > getattr(self, name)]


def ordered(doubts: Iterable[str]) -> tuple[str, ...]:
    """These doubts, each once, in the order of `DOUBTS`."""
    return tuple(sorted({*DOUBTS} & {*doubts}, key=[*DOUBTS].index))


def clients_behind(doubt: str, observations: Iterable[Observation]) -> list[str]:
    """The clients whose hosts gave this reason for doubt; none for a doubt about the server."""
    return [o.client_id for o in observations if doubt.startswith("clients") and doubt in o.suspect]


def still_s(doubt: str, record: RoundRecord) -> float:
    """The longest time that a host stood still, if the doubt is about a stop or a sleep; else 0."""
    host, name = doubt.split()
    if not name.startswith(("stopped", "suspended")):
        return 0.0
    reports = [record.host] if host == "server" else [o.host for o in record.observations]
    return max((float(getattr(report, name)) for report in reports), default=0.0)
