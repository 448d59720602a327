"""Measures whether deadlines mislead a policy: the bias of μ̄, and the regret against a genie that knows the laws."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pausefl.experiment.delay_laws.base import Delay
from pausefl.experiment.delay_laws.laws import Constant, LogNormal, Pareto
from pausefl.studies.simulation.engine import Setting, server_of, simulate
from pausefl_proto.arrays import FloatArray
from pausefl_proto.draws import generator
from pausefl_server.clients import ClientTable
from pausefl_server.records import LogEvent, Miss, Observation, RoundRecord, Timing
from pausefl_server.selection import Context, Selection
from pausefl_server.selection.policies.baselines import Ucb

_CLIENTS, _M, _TAU_MIN_S, _DRAWS = 20, 4, 0.05, 4_000


@dataclass(frozen=True)
class IgnoresMisses(Ucb):
    """UCB that learns nothing from misses: μ̄ averages answers alone, and a client without answers keeps ucb = +∞."""

    def select(self, state: Any, context: Context) -> Selection:
        """Selects as `ucb` does, but with T_k as the number of answers."""
        table = replace(context.table, measured=context.table.measured - context.table.missed)
        return super().select(state, replace(context, table=table))


def cases(rounds: int = 3_000) -> Iterator[dict[str, Any]]:
    """Yields per family and deadline the estimate's worst bias, then the regret and total latency of three policies."""
    for family, laws in families().items():
        for deadline_s in (2.0, 0.5, 0.25):
            yield {
                "name": "censoring",
                "case": f"{family}, deadline {deadline_s} s, estimate",
                **bias(laws, deadline_s),
            }
        for deadline_s in (math.inf, 2.0, 0.5, 0.25):
            for label, policy, rest in (
                ("ucb", Ucb(_M), 64),
                ("ucb without rests", Ucb(_M), 0),
                ("ucb, misses ignored", IgnoresMisses(_M), 0),
            ):
                # Without a deadline no client misses, so all three are equal; a dead client would block the run.
                if deadline_s < math.inf or (label == "ucb" and "dead" not in family):
                    yield _played(f"{family}, deadline {deadline_s} s, {label}", policy, laws, deadline_s, rest, rounds)


def families() -> Mapping[str, Mapping[str, Delay]]:
    """Families of heavy-tailed delay laws by client, from fast to slow. With "dead", the last client never answers."""
    steps = np.linspace(0.06, 0.4, _CLIENTS).tolist()
    ids = [f"client-{k:02}" for k in range(_CLIENTS)]
    pareto: dict[str, Delay] = {i: Pareto(s, 1.1) for i, s in zip(ids, steps, strict=True)}
    lognormal: dict[str, Delay] = {i: LogNormal(2 * s, 4 * s) for i, s in zip(ids, steps, strict=True)}
    return {"pareto": pareto, "lognormal": lognormal, "pareto, one dead": {**pareto, ids[-1]: Constant(1e9)}}


def bias(laws: Mapping[str, Delay], deadline_s: float) -> dict[str, float]:
    """The worst bias over the clients of this project's estimate, that of a mean over answers alone, and the bound.

    All use the same draws, so only censoring makes them differ. `bound` is the greatest P(τ ≥ d) τ_min/d.
    """
    censored, of_answers, bounds, enclosed = [], [], [], True
    for client_id, law in laws.items():
        latency_s = law.sample(generator(1, "censoring", client_id), _DRAWS)
        truth = float(np.minimum(_TAU_MIN_S / latency_s, 1.0).mean())
        table = _folded(latency_s, deadline_s)
        lower = _TAU_MIN_S * table.inverse_latency_sum[0] / _DRAWS
        upper = lower + _TAU_MIN_S * table.censored_inverse_sum[0] / _DRAWS
        answers = _DRAWS - int(table.missed[0])
        enclosed &= bool(lower - 1e-12 <= truth <= upper + 1e-12)
        censored.append(lower - truth)
        of_answers.append(lower * _DRAWS / answers - truth if answers else math.inf)
        bounds.append(table.missed[0] / _DRAWS * _TAU_MIN_S / deadline_s)
    worst = {"bias": min(censored), "bias_of_answers_alone": max(of_answers), "bound": max(bounds)}
    return {name: float(value) for name, value in worst.items()} | {"encloses_truth": float(enclosed)}


def _folded(latency_s: FloatArray, deadline_s: float) -> ClientTable:
    """The client table after one client's exchanges, one per round."""
    table = ClientTable(1, _TAU_MIN_S)
    table.apply_events([LogEvent("joined", "a", n_examples=1)], 1)
    for t, s in enumerate(latency_s.tolist(), start=1):
        answers = (Observation("a", Timing(s), s, 1, 0, 0.0, 0.0),) if s < deadline_s else ()
        misses = () if answers else (Miss("a", "timeout", deadline_s, deadline_s),)
        waited_s = min(s, deadline_s)
        table.apply_round(RoundRecord(t, 1, ("a",), None, answers, (), waited_s, misses=misses))
    return table


def _played(
    case: str, policy: Ucb, laws: Mapping[str, Delay], deadline_s: float, rest_rounds_max: int, rounds: int
) -> dict[str, Any]:
    server = server_of(_TAU_MIN_S, round_timeout_s=deadline_s, rest_rounds_max=rest_rounds_max)
    setting = Setting(laws, dict.fromkeys(laws, 100), server)
    result = simulate(policy, setting, rounds)
    return {
        "name": "censoring",
        "case": case,
        "genie_regret": float(result.genie_regret[-1]),
        "missed": 0.0 if result.missed is None else float(result.missed.sum()),
        "slowest_chosen": float(result.chosen[-1] / rounds),
        "total_latency_s": float(result.total_latency_s[-1]),
    }
