"""Tries out what processes of a run would find wrong a minute later: data, partition, model, one training step."""

from collections.abc import Callable

from pausefl.config.client_records import method_of, partitioner_of
from pausefl.config.experiment import Experiment
from pausefl.evaluator.plan import evaluator_plan
from pausefl.evaluator.rehearsal import told_in_one_line
from pausefl.extras import is_installed
from pausefl_client.data.datasets import check_is_here, load_dataset
from pausefl_client.data.partition import partition


def try_out(experiment: Experiment, say: Callable[[str], None]) -> None:
    """Load the data, deal them out, train the model one step and evaluate it; nothing is downloaded or kept.

    ConfigError or PauseflError, one line, as a run would end with. `say` is told what cannot be tried here.
    """
    workload = experiment.workload
    if workload.model == "synthetic":
        return
    if not is_installed("client"):
        say('data and model were not tried: that needs pip install "pausefl[client]"')
        return
    check_is_here(workload.dataset)
    plan = evaluator_plan(experiment)
    with told_in_one_line(plan, "making the data"):
        _deal_out(experiment)
    from pausefl.evaluator.model import Evaluator

    with told_in_one_line(plan, "making the model and its data"):
        evaluator = Evaluator(plan.dataset, plan.model, seed=plan.seed, split_seed=plan.split_seed, device=plan.device)
    with told_in_one_line(plan, "one training step and one evaluation"):
        evaluator.rehearse(plan.training, method_of(workload))


def _deal_out(experiment: Experiment) -> None:
    """Give each client its examples, as client processes do; ConfigError where that is not possible."""
    workload, seed = experiment.workload, experiment.experiment.seed_of("split")
    data = load_dataset(workload.dataset, examples=workload.examples, seed=seed)
    partition(
        partitioner_of(workload),
        data.train.labels,
        clients=experiment.clients.count,
        classes=data.classes,
        seed=seed,
        owners=data.train.owners,
    )
