"""Errors of a user's model or data set before round 1, told in one line."""

from collections.abc import Iterator
from contextlib import contextmanager

from pausefl.config.tables import WorkloadTable
from pausefl_client.data.datasets import DATASETS
from pausefl_client.registries import MODELS
from pausefl_process.plugins import with_place
from pausefl_proto.errors import PauseflError


@contextmanager
def told_in_one_line(workload: WorkloadTable, what: str) -> Iterator[None]:
    """Turn what is raised into a PauseflError: `what` failed, the error, and FILE:LINE of the code a user brought."""
    try:
        yield
    except PauseflError:
        raise
    except Exception as error:  # the code is the user's
        code = (MODELS.code_of(workload.model), DATASETS.code_of(workload.dataset))
        key = f'workload.model = "{workload.model}" on "{workload.dataset}"'
        raise PauseflError(f"{key}: {what} failed: {with_place(error, code)}") from error
