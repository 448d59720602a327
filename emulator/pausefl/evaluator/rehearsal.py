"""Errors of a user's model or data set before round 1, told in one line."""

from collections.abc import Iterator
from contextlib import contextmanager

from pausefl.evaluator.plan import EvaluatorPlan
from pausefl_client.factories import is_factory
from pausefl_process.plugins import in_one_line, where_raised
from pausefl_proto.errors import PauseflError


@contextmanager
def told_in_one_line(plan: EvaluatorPlan, what: str) -> Iterator[None]:
    """Turn what is raised into a PauseflError: `what` failed, the error, and FILE:LINE of the code a user brought."""
    try:
        yield
    except PauseflError:
        raise
    except Exception as error:  # the code is the user's
        names = (plan.model, plan.dataset)
        place = where_raised(error, filter(is_factory, names))
        where = f" ({place})" if place else ""
        key = f'workload.model = "{plan.model}" on "{plan.dataset}"'
        raise PauseflError(f"{key}: {what} failed: {in_one_line(error)}{where}") from error
