"""Telemetry of a short run that the test makes up."""

from prometheus_client import CollectorRegistry

from pausefl_proto.budget import Budget
from pausefl_server.monitoring.metrics import make_registry
from pausefl_server.monitoring.telemetry import Telemetry
from pausefl_server.records import Evaluation, LogEvent, Observation, RoundRecord, Timing
from pausefl_server.selection.policies.everyone import All
from pausefl_server.settings import MetricsSettings, PrivacySettings
from pausefl_server.state import replay

BUDGET = Budget(epsilon_budget=10.0, eta=0.5)


SIZE = 1000


def observation(client_id: str, i: int, round_trip_s: float) -> Observation:
    """Injected 0.2 s where 0.05 and 0.125 s were drawn."""
    return Observation(
        client_id=client_id,
        timing=Timing(round_trip_s, injected_down_s=0.075, injected_up_s=0.125),
        latency_s=2 * round_trip_s,
        n_examples=10,
        participation=i,
        epsilon=BUDGET.epsilon(i) if i else 0.0,
        epsilon_spent=BUDGET.spent(i),
        drawn_down_s=0.05,
        drawn_up_s=0.125,
    )


DOUBTS = ("server loop_lag_s",)


def records(*, private: bool = True) -> list[RoundRecord]:
    """Two rounds: "a" answers twice, "b" once and then retires."""
    joins = (LogEvent("joined", "a", n_examples=10), LogEvent("joined", "b", n_examples=10))
    rounds = [
        ((observation("a", int(private), 0.5), observation("b", int(private), 0.25)), joins),
        ((observation("a", 2 * private, 0.125),), (LogEvent("retired", "b"),)),
    ]
    return [
        RoundRecord(
            *(t, 1, ("a", "b") if t == 1 else ("a", "a"), None, observations, events),
            *(max(o.latency_s for o in observations), float(t), 0.003, ""),
            suspect=DOUBTS,
        )
        for t, (observations, events) in enumerate(rounds, start=1)
    ]


def play(telemetry: Telemetry, *, private: bool = True) -> None:
    """The two rounds, an evaluation, a ping and a rejection."""
    tell = telemetry.round_committed
    replay(All(2), 1, records(private=private), lambda record, state: tell(record, state, budgets_end=40))
    for connected in (1, 2, 3):
        telemetry.arrived("a", connected, 0)
    telemetry.departed("a", "closed its stream", 2, 0)
    telemetry.rejected("client a was refused")
    telemetry.pinged(1, 0.002)
    telemetry.evaluated(2, Evaluation("test", subset=False, n_examples=100, accuracy=0.75, loss=1.0))


def private(unit: str = "coordinate") -> PrivacySettings:
    return PrivacySettings(BUDGET, unit, "agreed")  # type: ignore[arg-type]


def registry_of(telemetry: Telemetry, **limits: int) -> CollectorRegistry:
    return make_registry(telemetry, MetricsSettings(**limits))  # type: ignore[arg-type]
