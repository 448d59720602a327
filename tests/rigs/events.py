"""Events of a run's progress, as a server tells them."""

from typing import Any

from pausefl_process.events import ModelEvaluated, RoundCommitted


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
