"""Tries out what processes of a run would find wrong later: keys and tokens, data, partition, one training step."""

from collections.abc import Callable

from pausefl.config.client_records import method_of, partitioner_of, tls_of
from pausefl.config.experiment import Experiment
from pausefl.evaluator.plan import evaluator_plan
from pausefl.evaluator.rehearsal import told_in_one_line
from pausefl.extras import is_installed
from pausefl_client.data.datasets import check_is_here, load_dataset
from pausefl_client.data.partition import partition
from pausefl_process.tokens import read_token, read_token_digests
from pausefl_proto.errors import ConfigError


def try_out(experiment: Experiment, say: Callable[[str], None]) -> None:
    """Read keys and tokens, deal the data out, train the model one step and evaluate it; nothing is downloaded or kept.

    ConfigError or PauseflError, one line, as a run would end with. `say` is told what cannot be tried here.
    """
    _read_credentials(experiment, say)
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


def _read_credentials(experiment: Experiment, say: Callable[[str], None]) -> None:
    """Read the files of [tls] and [admission]; ConfigError names one that is wrong.

    Where a path names {client_id}, one client's files must be here; `say` is told of those that are not.
    """
    if experiment.admission.tokens:
        read_token_digests(experiment.admission.tokens)
    paths = (*experiment.tls.model_dump().values(), experiment.admission.token)
    client_ids = experiment.client_ids if any("{client_id}" in path for path in paths) else [""]
    wrong = []
    for client_id in client_ids:
        try:
            if tls := tls_of(experiment.tls, client_id):
                tls.to_connect() if tls.ca else tls.to_listen()
            if token := experiment.admission.token:
                read_token(token.replace("{client_id}", client_id))
        except ConfigError as error:
            wrong.append(error)
    if len(wrong) == len(client_ids):
        raise wrong[0]
    if wrong:
        say(f"{len(wrong)} of {len(client_ids)} clients cannot run here: {wrong[0]}")


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
