"""The numbers of progress events, by the names that dashboards of others show."""

from collections.abc import Mapping

from pausefl_process.events import ModelEvaluated, ProgressEvent, RoundCommitted

_OF_A_ROUND = (
    *("round_latency_s", "total_latency_s", "max_epsilon_spent", "wall_clock_s", "selection_s"),
    *("connected", "rejected", "missed_jobs", "suspect_rounds"),
)


def figures(event: ProgressEvent) -> Mapping[str, tuple[int, float]]:
    """Name -> (round, value), for a round or an evaluation; empty for other events."""
    match event:
        case RoundCommitted(number):
            return {name: (number, float(getattr(event, name))) for name in _OF_A_ROUND}
        case ModelEvaluated(number, split, accuracy, loss):
            losses = {} if loss is None else {f"loss/{split}": (number, loss)}
            return {f"accuracy/{split}": (number, accuracy), **losses}
    return {}
