"""A model that has diverged is said to have, once, whatever else its run reports."""

import math

from pausefl_process.events import Notice, ProgressEvent
from pausefl_server.monitoring.progress import ProgressReporter
from pausefl_server.records import Evaluation, Split
from rigs.settings import server_settings


def evaluation(split: Split, loss: float) -> Evaluation:
    return Evaluation(split, subset=True, n_examples=10, accuracy=0.1, loss=loss)


def test_the_first_loss_that_is_not_finite_is_noticed() -> None:
    said: list[ProgressEvent] = []
    reporter = ProgressReporter(server_settings(8), said.append)
    for t, loss in ((1, 2.3), (2, math.inf), (3, math.inf)):
        reporter.evaluated(t, evaluation("validation", loss))
        reporter.evaluated(t, evaluation("test", loss))
    notices = [event.message for event in said if isinstance(event, Notice)]
    assert notices == ["the model after round 2 has diverged: its validation loss is not finite"]
