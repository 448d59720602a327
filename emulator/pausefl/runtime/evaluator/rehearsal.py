"""Makes an evaluator and tries it, so that errors of a user's model or data set appear before round 1, in one line."""

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from pausefl.experiment.client_records import method_of
from pausefl.experiment.tables import Workload
from pausefl.runtime.evaluator.plan import EvaluatorPlan
from pausefl_client.data.datasets import DATASETS
from pausefl_client.registries import MODELS
from pausefl_process.plugins import OWN_CODE_ERRORS, with_place
from pausefl_proto.errors import PauseflError

if TYPE_CHECKING:
    from pausefl.runtime.evaluator.model import Evaluator


def rehearsed_evaluator(plan: EvaluatorPlan, say: Callable[[str], None], when: str = " before round 1") -> "Evaluator":
    """The evaluator of a plan, after one training step and one evaluation. `say` receives what these leave in doubt.

    PauseflError if its model or data cannot be made, trained or evaluated. `when` is the end of that error's text.
    """
    # Imported here, because a server that imports this module needs no torch.
    from pausefl.runtime.evaluator.model import Evaluator
    from pausefl_client.training.torch_trainer import use_one_thread

    use_one_thread()
    with told_in_one_line(plan.workload, "making the model and its data"):
        evaluator = Evaluator(plan)
    with told_in_one_line(plan.workload, f"one training step and one evaluation{when}"):
        if doubt := evaluator.rehearse(plan.workload, method_of(plan.workload)):
            say(doubt)
    w, share = plan.workload, (plan.workload.examples or evaluator.train_examples) // plan.clients
    if w.max_steps == Workload.max_steps and w.steps(share) < (due := replace(w, max_steps=None).steps(share)):
        say(f"workload.max_steps = {w.max_steps} ends each round: workload.epochs = {w.epochs} is about {due:,} steps")
    return evaluator


@contextmanager
def told_in_one_line(workload: Workload, what: str) -> Iterator[None]:
    """Turn an error into a PauseflError: that `what` failed, the error, and FILE:LINE of the user's own code."""
    try:
        yield
    except PauseflError:
        raise
    except OWN_CODE_ERRORS as error:
        model, dataset = workload.model, workload.dataset
        key = f'workload.model = "{model}" on "{dataset}"'
        raise PauseflError(f"{key}: {what} failed: {_told_with_place(error, model, dataset)}") from error


def _told_with_place(error: BaseException, model: str, dataset: str) -> str:
    """An error in one line, with FILE:LINE of the user's own code if that was running.

    Otherwise with FILE:LINE of the model's or the data set's function, if the error came from its call or its result.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    last = frames[-1].f_code.co_name if frames else ""
    if last == "load_dataset":  # the data set's function takes other arguments
        return with_place(error, [DATASETS.code_of(dataset)])
    is_of_model = any(frame.f_globals.get("__name__") == "torch.nn.modules.module" for frame in frames)
    return with_place(error, [MODELS.code_of(model)] if is_of_model or last == "build_model" else [])
