"""Plays experiments under both clocks: how far the real clock is from the virtual one, exchange by exchange, and why.

Of asynchronous steps it compares elapsed time and staleness: once two exchanges change places, no others match either.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any

import numpy as np

from pausefl.bench.runs import BARE, play_experiment
from pausefl.experiment.experiment import Experiment, parse_experiment
from pausefl.experiment.server_records import selected_policy
from pausefl.runtime.client.plan import client_plan
from pausefl.runtime.server.plan import settings_of
from pausefl_proto.arrays import FloatArray
from pausefl_server.records import Observation, RoundRecord, Timing
from pausefl_server.rounds.choosing import context_of
from pausefl_server.selection.policies.pause import Pause
from pausefl_server.state import RunState, replay

_PRIVATE = ("clients.count=10", "privacy.enabled=true", "privacy.reproducible_noise=true")
_COMMON = (*_PRIVATE, "selection.m=3", "latency.signal=round_trip")
_DELAYS = (
    "latency.delay.kind=normal",
    'latency.delay.mean_s={kind="normal",mean_s=0.3,sd_s=0.08}',
    "latency.delay.sd_s=0.02",
    "latency.delay.floor_s=0.01",
)
_DELAYED = ("selection.policy=pause", *_DELAYS)
# Random choices do not depend on latencies, so they are the same under both clocks.
_UNDELAYED = ("selection.policy=random",)
_EXPERIMENTS: Mapping[str, tuple[str, ...]] = {
    "delays alone": (*_COMMON, "workload.model=synthetic"),
    "with training of a stated time": (*_COMMON, "workload.model=mlp", "workload.epochs=1", "workload.step_s=0.02"),
}
_STEPS = (
    *_PRIVATE,
    *_DELAYS,
    "workload.model=synthetic",
    "selection.policy=random",
    "server.mode=asynchronous",
    "asynchronous.concurrency=5",
)

Exchanges = Mapping[tuple[int, str], Observation]
"""The observations of a run, by round and client id."""


def cases(rounds: int = 40) -> Iterator[dict[str, Any]]:
    """Yields a case per experiment: what both clocks chose, and residuals (real minus virtual) of exchanges by part.

    Then two cases of asynchronous steps: a step at each arrival, and a step at every third arrival.
    """
    for name, overrides in _EXPERIMENTS.items():
        undelayed, delayed = ((*overrides, *delays) for delays in (_UNDELAYED, _DELAYED))
        exchange_s = median_residual_s(*(_played(undelayed, rounds, clock) for clock in ("real", "virtual")))
        real, virtual = (_played(delayed, rounds, clock) for clock in ("real", "virtual"))
        changed = changed_choices(_experiment(delayed, rounds), real, virtual)
        yield {"name": "twin", "case": name, **compared(real, virtual, exchange_s), **changed}
    for buffer in (1, 3):
        steps = (*_STEPS, f"asynchronous.buffer={buffer}")
        logs = (_played(steps, rounds, clock) for clock in ("real", "virtual"))
        yield {"name": "twin", "case": f"asynchronous, C = 5, K = {buffer}", **steps_compared(*logs)}


def steps_compared(real: list[RoundRecord], virtual: list[RoundRecord]) -> dict[str, float]:
    """The elapsed time at the last step and the mean staleness by clock, and the ratio of times, real to virtual."""
    logs = {"real": real, "virtual": virtual}
    staleness = {clock: [o.staleness for record in log for o in record.observations] for clock, log in logs.items()}
    return {
        "steps": len(real),
        **{f"{clock}_elapsed_s": log[-1].elapsed_s for clock, log in logs.items()},
        "elapsed_ratio": real[-1].elapsed_s / virtual[-1].elapsed_s,
        **{f"{clock}_staleness": fmean(found) for clock, found in staleness.items()},
    }


def _experiment(overrides: tuple[str, ...], rounds: int, clock: str = "real") -> Experiment:
    return parse_experiment(BARE, [*overrides, f"experiment.clock={clock}", f"experiment.rounds={rounds}"])


def _played(overrides: tuple[str, ...], rounds: int, clock: str) -> list[RoundRecord]:
    return play_experiment(_experiment(overrides, rounds, clock))


def compared(real: list[RoundRecord], virtual: list[RoundRecord], exchange_s: float) -> dict[str, Any]:
    """The differences between two logs of one experiment. Exchanges are matched by round and client.

    `exchange_s` is the time of an exchange without delays. The error of a latency is the residual minus that time.
    """
    pairs = _pairs(real, virtual)
    residuals_ms = 1e3 * _residuals_s(pairs)
    errors_ms = np.abs(residuals_ms - 1e3 * exchange_s)
    same = [set(a.chosen) == set(b.chosen) for a, b in zip(real, virtual, strict=True)]
    return {
        "rounds": len(real),
        "same_sets": sum(same),
        "exchanges": len(pairs),
        **{f"residual_p{q}_ms": _percentile(residuals_ms, q) for q in (50, 99, 100)},
        "exchange_ms": 1e3 * exchange_s,
        **{f"error_p{q}_ms": _percentile(errors_ms, q) for q in (50, 99)},
        **{f"{part}_ms": 1e3 * fmean(_parts(a)[part] - _parts(b)[part] for a, b in pairs) for part in _PARTS},
        "real_s": [float(a.round_trip_s) for a, _ in pairs],
        "virtual_s": [float(b.round_trip_s) for _, b in pairs],
    }


def median_residual_s(real: list[RoundRecord], virtual: list[RoundRecord]) -> float:
    """The median residual, real minus virtual, of the round trips that both logs have, in seconds."""
    return float(np.median(_residuals_s(_pairs(real, virtual))))


def changed_choices(experiment: Experiment, real: list[RoundRecord], virtual: list[RoundRecord]) -> dict[str, Any]:
    """In how many rounds of the real log PAUSE would choose another set from virtual latencies, and how close the two
    are: the greatest difference of their objectives, eq. (14), whose latency term is 1 at most.

    These choices share their past. Two separate runs can differ in all rounds after the first difference.
    """
    settings = settings_of(experiment, "", client_plan(experiment))
    policy = selected_policy(experiment.selection)
    assert isinstance(policy, Pause)
    gaps: list[float] = []

    def choose_again(attempt: RoundRecord, state: RunState) -> None:
        context = context_of(settings, state, None, attempt.round, attempt.attempt)
        selection = policy.select(state.policy_state, context)
        recorded = state.table.rows(attempt.chosen)
        if set(selection.rows.tolist()) != set(recorded.tolist()):
            choice = policy.choice(state.policy_state, context)
            ours, theirs = (np.flatnonzero(np.isin(choice.rows, rows)) for rows in (selection.rows, recorded))
            gaps.append(choice.energy(ours) - choice.energy(theirs))

    fresh = RunState.start(policy, settings.seed, tau_min_s=settings.tau_min_s, examples_max=settings.examples_max)
    replay(fresh, with_virtual_latencies(real, virtual), before_each=choose_again)
    return {"changed_choices": len(gaps), "changed_gap_max": max(gaps, default=0.0)}


def with_virtual_latencies(real: list[RoundRecord], virtual: list[RoundRecord]) -> list[RoundRecord]:
    """The real log with the virtual clock's round trips: delays as drawn, and training times as stated."""
    train_s = {client_id: o.timing.train_s for (_, client_id), o in _exchanges(virtual).items()}

    def virtually(o: Observation) -> Observation:
        return replace(o, latency_s=o.drawn_down_s + train_s.get(o.client_id, 0.0) + o.drawn_up_s)

    return [replace(record, observations=tuple(map(virtually, record.observations))) for record in real]


_PARTS = ("wire", "queue", "train", "privatise", "link")


def _parts(timing: Timing) -> dict[str, float]:
    """The parts of the round trip by name, in seconds. They add up to it."""
    return {
        "wire": timing.download_s + timing.upload_s + timing.propagation_s + timing.reconnect_s,
        "queue": timing.queue_s,
        "train": timing.train_s,
        "privatise": timing.privatise_s,
        "link": timing.injected_down_s + timing.injected_up_s,
    }


def _pairs(real: list[RoundRecord], virtual: list[RoundRecord]) -> list[tuple[Timing, Timing]]:
    """The timings, (real, virtual), of each exchange that both logs have."""
    ours, theirs = _exchanges(real), _exchanges(virtual)
    return [(ours[key].timing, theirs[key].timing) for key in ours if key in theirs]


def _residuals_s(pairs: list[tuple[Timing, Timing]]) -> FloatArray:
    return np.array([a.round_trip_s - b.round_trip_s for a, b in pairs])


def _exchanges(log: list[RoundRecord]) -> Exchanges:
    return {(record.round, o.client_id): o for record in log for o in record.observations}


def _percentile(values: FloatArray, q: int) -> float:
    return float(np.percentile(values, q)) if values.size else float("nan")
