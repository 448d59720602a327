"""An evaluator that has been tried: errors of a user's model or data set come before round 1, each in one line."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pausefl.config.client_records import method_of
from pausefl.evaluator.plan import EvaluatorPlan
from pausefl.extras import require
from pausefl_client.data.datasets import DATASETS
from pausefl_client.registries import MODELS
from pausefl_process.plugins import OWN_CODE_ERRORS, with_place
from pausefl_proto.errors import PauseflError

if TYPE_CHECKING:
    from pausefl.evaluator.model import Evaluator


def rehearsed_evaluator(plan: EvaluatorPlan) -> "Evaluator":
    """The evaluator of a plan, which has trained one step and evaluated once.

    ConfigError where there is no torch; PauseflError when its model or data cannot be made, trained or evaluated.
    """
    require("evaluator")
    import torch  # here and not above: a server that imports this module needs no torch

    from pausefl.evaluator.model import Evaluator

    torch.set_num_threads(1)
    with told_in_one_line(plan, "making the model and its data"):
        evaluator = Evaluator(
            plan.dataset,
            plan.model,
            seed=plan.seed,
            split_seed=plan.split_seed,
            device=plan.device,
            subset_examples=plan.subset_examples,
        )
    with told_in_one_line(plan, "one training step and one evaluation before round 1"):
        evaluator.rehearse(plan.training, method_of(plan.workload))
    return evaluator


@contextmanager
def told_in_one_line(plan: EvaluatorPlan, what: str) -> Iterator[None]:
    """Turn what is raised into a PauseflError: `what` failed, the error, and FILE:LINE of the code a user brought."""
    try:
        yield
    except PauseflError:
        raise
    except OWN_CODE_ERRORS as error:
        code = (MODELS.code_of(plan.model), DATASETS.code_of(plan.dataset))
        key = f'workload.model = "{plan.model}" on "{plan.dataset}"'
        raise PauseflError(f"{key}: {what} failed: {with_place(error, code)}") from error
