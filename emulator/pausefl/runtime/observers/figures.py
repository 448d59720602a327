"""The numbers of progress events, by the names that dashboards of others show."""

import re
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
        case ModelEvaluated(number, split, accuracy, loss, metric, _):
            losses = {} if loss is None else {f"loss/{split}": (number, loss)}
            return {f"{_plain(metric)}/{split}": (number, accuracy), **losses}
    return {}


def _plain(metric: str) -> str:
    """A task's score by a name that MLflow takes as well."""
    return re.sub(r"[^\w .:-]", "_", metric)
