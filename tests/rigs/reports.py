"""A run directory written by hand: three rounds of three clients, and the summary that goes with it."""

import json
from pathlib import Path
from typing import Any

from pausefl_server.host_limits import DOUBTS
from pausefl_server.records import Evaluation, LogEvent, Observation, Ping, RoundRecord, Timing
from pausefl_server.storage import store
from rigs.log import record

CLIENTS = ("<script>", "$x$", "c")
"""Client ids. The first two are hostile to HTML and to matplotlib's mathtext; the third is never chosen."""


def observation(client_id: str, i: int, injected_s: float) -> Observation:
    timing = Timing(0.1 + 2 * injected_s, 0.01, injected_s, 0.002, 0.05, 0.003, injected_s, 0.02, 0.001, 0.004)
    return Observation(
        client_id, timing, timing.round_trip_s, 40, i, 0.5, 0.5 * i, drawn_down_s=injected_s, drawn_up_s=injected_s
    )


def records() -> list[RoundRecord]:
    """Three rounds: both clients, the first, the second. The second had one earlier release not seen here."""
    both, first, second = [("<script>", 1, 0.1), ("$x$", 2, 0.2)], [("<script>", 2, 0.1)], [("$x$", 3, 0.3)]
    joined = tuple(LogEvent("joined", client_id, "", 40) for client_id in CLIENTS)
    rows = []
    for number, of_round in enumerate((both, first, second), start=1):
        seen = [observation(*row) for row in of_round]
        more: dict[str, Any] = {"events": joined, "suspect": ("clients steal_share",)} if number == 1 else {}
        rows.append(record(number, *seen, round_latency_s=max(o.latency_s for o in seen), **more))
    return rows


def summary(**changes: Any) -> dict[str, Any]:
    return {
        "policy": "pause", "policy_parameters": {"window": None}, "seed": 7, "rounds": 3, "clients": 3, "m": 2,
        "mode": "rounds",
        "model_size": 1000, "final_accuracy": 0.8, "best_accuracy": 0.9, "wall_clock_s": 3.0, "total_latency_s": 1.5,
        "latency_signal": "round_trip", "time_scale": 1.0, "timing_error_s": {"p50": 0.0012, "p99": 0.034},
        "privacy_unit": "coordinate", "epsilon_budget": 40.0, "max_epsilon_spent": 1.5, "vector_epsilon_max": 1500.0,
        "private": True, "noise": "laplace", "delta": 1e-5, "epsilon_at_delta": 1.25, "epsilon_floor": 0.0,
        "failed_attempts": 0, "unneeded_jobs": 0, "withdrawn_jobs": 0, "late_updates": 0, "merged_updates": 0,
        "budget_per": "run", "measured_latency_s": 1.25, "censored_rounds": 1, "missed_jobs": {"timeout": 1},
        "tau_min_s": 0.05, "clamped_latencies": 2, "capped": {"c": {"stated examples": 1000}},
        "disclosed": ["n_examples", "<b>more</b>"], "selection_s_median": 1e-4, "rejected_updates": 0,
        "stopped_because": "all rounds done", "outcome": "completed", "failures": [], "suspect_rounds": 1,
        "suspect_because": {"clients steal_share": {"rounds": 1, "advice": DOUBTS["clients steal_share"],
                                                    "clients": {}}},
        "metric": "accuracy", "test_examples": 1000, "best_round": 2, "data": None, "clock": "real", "elapsed_s": 0.0,
        "asked_per_round": None, "clients_at_work": 0.0, "idle_share": None, "staleness": None, "noise_to_clip": None,
        "median_epsilon_spent": None, "retired_clients": 0, "selections_by_group": None, "absent_clients": [],
        "suspect_observations": 1, "starts": None, "missing_figures": {},
    } | changes  # fmt: skip


def write_run(path: Path, **changes: Any) -> Path:
    path.mkdir()
    log = store.Store(path / "run.db")
    for each in records():
        log.commit_round(each, [Ping("$x$", 0.002 * each.round)])
    log.save_evaluations(0, [Evaluation("test", True, 100, 0.1, 2.3)])
    at_interruptions = Evaluation("test", False, 1000, 0.2, 2.2)
    log.save_evaluations(1, [at_interruptions])
    log.save_evaluations(2, [Evaluation("test", True, 100, 0.5, 1.2), Evaluation("validation", True, 50, 0.6, 1.1)])
    log.save_evaluations(2, [at_interruptions])
    log.save_evaluations(3, [Evaluation("test", True, 100, 0.7, 0.9), Evaluation("test", False, 1000, 0.8, 0.8)])
    log.close()
    (path / "summary.json").write_text(json.dumps(summary(**changes)))
    (path / "config.toml").write_text('[experiment]\nname = "<i>demo</i>"\n')
    return path
