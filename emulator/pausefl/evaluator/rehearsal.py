"""Errors of a user's model or data set before round 1, told in one line."""

from collections.abc import Iterator
from contextlib import contextmanager

from pausefl.evaluator.plan import EvaluatorPlan
from pausefl_client.data.datasets import DATASETS
from pausefl_client.registries import MODELS
from pausefl_process.plugins import with_place
from pausefl_proto.errors import PauseflError


@contextmanager
def told_in_one_line(plan: EvaluatorPlan, what: str) -> Iterator[None]:
    """Turn what is raised into a PauseflError: `what` failed, the error, and FILE:LINE of the code a user brought."""
    try:
        yield
    except PauseflError:
        raise
    except Exception as error:  # the code is the user's
        code = (MODELS.code_of(plan.model), DATASETS.code_of(plan.dataset))
        key = f'workload.model = "{plan.model}" on "{plan.dataset}"'
        raise PauseflError(f"{key}: {what} failed: {with_place(error, code)}") from error
