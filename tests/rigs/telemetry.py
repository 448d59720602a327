"""Telemetry of a short invented run, and events of its progress as a server reports them."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from prometheus_client import CollectorRegistry

from pausefl_process.events import ModelEvaluated, RoundCommitted
from pausefl_process.host_monitor import HostReport
from pausefl_proto.budget import Budget
from pausefl_server.monitoring.metrics import make_registry
from pausefl_server.monitoring.telemetry import Telemetry
from pausefl_server.records import Evaluation, LogEvent, Miss, MissKind, Observation, RoundRecord, Timing
from pausefl_server.selection.policies.baselines import All
from pausefl_server.settings import MetricsSettings, PrivacySettings
from pausefl_server.state import RunState, replay
from rigs.log import record

BUDGET = Budget(epsilon_budget=10.0, eta=0.5)
SIZE = 1000
DOUBTS = ("server loop_lag_s",)
TAU_MIN_S = 0.75
MISSES: dict[MissKind, int] = {"unneeded": 1, "rejected": 2, "refused": 3, "timeout": 4, "lost": 5}
"""Misses in the failed attempts at round 2, by kind. Two more clients time out in rounds that succeed."""
HOSTS = {
    "a": HostReport(0.001, 0.002, 0.03, 0.4),
    "b": HostReport(0.005, 0.006, 0.07, 0.8),
    "server": HostReport(0.009, 0.01, 0.11, 0.12),
}
PARTS_S = {"framing": 0.001, "download": 0.002, "queue": 0.003, "train": 0.004, "privatise": 0.005, "upload": 0.006}
PARTS_S |= {"server_wait": 0.007, "reconnect": 0.008, "injected_down": 0.075, "injected_up": 0.125}


def observation(client_id: str, i: int, round_trip_s: float) -> Observation:
    """Its injected delays sum to 0.2 s; its drawn delays are 0.05 s and 0.125 s. That of "b" is in doubt."""
    return Observation(
        client_id=client_id,
        timing=Timing(round_trip_s, **{f"{part}_s": seconds for part, seconds in PARTS_S.items()}),
        latency_s=2 * round_trip_s,
        n_examples=10,
        participation=i,
        epsilon=BUDGET.epsilon(i) if i else 0.0,
        epsilon_spent=BUDGET.spent(i),
        bytes_down=400,
        bytes_up=300,
        drawn_down_s=0.05,
        drawn_up_s=0.125,
        staleness=2,
        handed_out_s=4.0,
        came_back_s=4.0 + round_trip_s,
        host=HOSTS.get(client_id, HostReport()),
        suspect=("clients steal_share",) if client_id == "b" else (),
    )


def records(*, private: bool = True) -> list[RoundRecord]:
    """Three rounds: "a" answers in all, "b" in two, "c" in none before it retires.

    Every kind of event has a different count, so that a test notices when two counts are confused.
    """
    joins = tuple(LogEvent("joined", client_id, n_examples=10) for client_id in "abc")
    late = LogEvent("late", "b", count=2), LogEvent("late", "b", count=0), *[LogEvent("withdrawn", "c")] * 3
    return [
        _record(1, "abc", 1.5, _observations(private, a=(1, 0.5), b=(1, 0.125)), joins),
        _record(2, "aac", 2.0, _observations(private, a=(2, 0.125)), late, failed_attempts=tuple(_failed_attempts())),
        _record(3, "ab", 0.5, _observations(private, a=(3, 0.125), b=(2, 0.25)), (LogEvent("retired", "c"),)),
    ]


def _observations(private: bool, **of_clients: tuple[int, float]) -> tuple[Observation, ...]:
    return tuple(observation(client_id, i * private, trip_s) for client_id, (i, trip_s) in of_clients.items())


def _failed_attempts() -> Iterator[RoundRecord]:
    """Yield five attempts. In each, three clients miss, one update is late and one job is withdrawn."""
    kinds = [kind for kind, times in MISSES.items() for _ in range(times)]
    events = LogEvent("late", "a"), LogEvent("withdrawn", "b")
    for attempt in range(1, 6):
        of_attempt = zip("abc", kinds[3 * attempt - 3 : 3 * attempt], strict=True)
        misses = tuple(Miss(client_id, kind, 0.125, 0.125, "", 0.125) for client_id, kind in of_attempt)
        yield replace(_record(2, "abc", 0.125, (), events), attempt=attempt, misses=misses)


def _record(
    round: int,
    chosen: str,
    latency_s: float,
    observations: tuple[Observation, ...],
    events: tuple[LogEvent, ...],
    failed_attempts: tuple[RoundRecord, ...] = (),
) -> RoundRecord:
    """A round that lasts `latency_s`. If "c" is chosen, it times out at that moment."""
    return record(
        round,
        *observations,
        attempt=len(failed_attempts) + 1,
        chosen=tuple(chosen),
        events=events,
        round_latency_s=latency_s,
        selection_s=0.003,
        host=HOSTS["server"],
        misses=(Miss("c", "timeout", latency_s, latency_s, "", latency_s),) if "c" in chosen else (),
        failed_attempts=failed_attempts,
        suspect=DOUBTS,
        elapsed_s=7.0 * round,
    )


def commit(telemetry: Telemetry, *, private: bool = True) -> None:
    """Report the rounds to `telemetry` as a server does while it plays them."""

    def tell(record: RoundRecord, state: RunState) -> None:
        if record.observations:
            telemetry.round_committed(record, state, budgets_end=40)
        else:
            telemetry.attempt_failed(record, state)

    replay(RunState.start(All(2), 1, tau_min_s=TAU_MIN_S), records(private=private), tell)


def play(telemetry: Telemetry, *, private: bool = True) -> None:
    """Report rounds, evaluations, a ping, rejections, and clients that come and go."""
    commit(telemetry, private=private)
    for connected in range(1, 21):
        telemetry.arrived("a", connected, 0)
    for connected in range(19, 10, -1):
        telemetry.departed("a", "its stream ended", connected, 0)
    for _ in range(6):
        telemetry.rejected("client a was refused")
    telemetry.pinged(1, 0.002)
    telemetry.evaluator(is_there=False)
    telemetry.evaluated(3, Evaluation("test", subset=False, n_examples=100, accuracy=0.75, loss=1.0))
    telemetry.evaluated(3, Evaluation("validation", subset=True, n_examples=50, accuracy=0.5, loss=1.0))


def private(unit: str = "coordinate") -> PrivacySettings:
    return PrivacySettings(BUDGET, unit, "agreed")  # type: ignore[arg-type]  # a string that is one of the units


def registry_of(telemetry: Telemetry, **limits: int) -> CollectorRegistry:
    return make_registry(telemetry, MetricsSettings(**limits))  # type: ignore[arg-type]  # values of several types


def round_event(number: int, **changes: Any) -> RoundCommitted:
    fields: dict[str, Any] = {
        "round": number, "rounds": 100, "chosen": ("[red]c", "d"), "round_latency_s": 0.25,
        "total_latency_s": 0.25 * number, "max_epsilon_spent": 1.5, "epsilon_budget": 40.0,
        "privacy_unit": "coordinate", "connected": 30, "rejected": 2, "wall_clock_s": 2.0 * number,
        "selection_s": 0.0004, "suspect": (), "suspect_rounds": 0, "budgets_end_after_round": None,
    }  # fmt: skip
    return RoundCommitted(**(fields | changes))


def evaluation(number: int, accuracy: float) -> ModelEvaluated:
    return ModelEvaluated(number, "test", accuracy, loss=1.0)
