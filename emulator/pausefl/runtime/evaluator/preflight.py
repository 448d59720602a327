"""Tries out what could fail later in a run's processes: keys and tokens, data, partition, one training step."""

import math
from collections.abc import Callable

from pausefl.experiment.client_records import dealt_out, has_control
from pausefl.experiment.experiment import Experiment
from pausefl.experiment.groups import check_rounds
from pausefl.experiment.server_records import noise_of
from pausefl.extras import is_installed
from pausefl.runtime.client.plan import client_plan
from pausefl.runtime.evaluator.plan import InitialModel, evaluator_plan
from pausefl.runtime.evaluator.rehearsal import rehearsed_evaluator, told_in_one_line
from pausefl.runtime.observers import load_observers
from pausefl_client.data.datasets import check_is_here, load_dataset
from pausefl_process.tokens import read_token
from pausefl_proto.endpoint import answers_within_s
from pausefl_proto.errors import ConfigError
from pausefl_server.rounds.admission import Admission


def check_own_code(experiment: Experiment) -> None:
    """ConfigError for observers that cannot be made, and for a round in which no client is present."""
    check_rounds(client_plan(experiment).presence)
    load_observers(experiment.experiment.observers)


def try_out(experiment: Experiment, say: Callable[[str], None]) -> list[str]:
    """Read keys and tokens, deal the data out, train the model one step and evaluate it. Downloads and keeps nothing.

    Returns sentences on how many values travel, and how much noise they get. Raises the one-line ConfigError or
    PauseflError with which a run would end. `say` receives what cannot be tried here.
    """
    _read_credentials(experiment, say)
    workload = experiment.workload
    noise = [text] if (text := noise_of(experiment)[0]) else []
    if workload.model == "synthetic":
        return noise
    if not is_installed("client"):
        say('data and model were not tried: that needs pip install "pausefl[client]"')
        return noise
    check_is_here(workload.dataset)
    with told_in_one_line(workload, "making the data"):
        _deal_out(experiment)
    initial = rehearsed_evaluator(evaluator_plan(experiment), say, when="").initial
    return [_what_travels(initial, experiment), *noise]


def _what_travels(model: InitialModel, experiment: Experiment) -> str:
    """A sentence on how many of a model's values travel, how many stay, and how fast a link must be."""
    is_controlled, local = has_control(experiment.workload), model.rest.local.size
    manifest = model.manifest.with_control() if is_controlled else model.manifest
    stay = sum(math.prod(constant.shape) for constant in model.rest.constants)
    statistics = f"{local:,} are estimated on held-out data" if local else f"{manifest.statistics.size:,} are averaged"
    travel = f"{manifest.charged.size:,} trained values{' and control variates' if is_controlled else ''} travel"
    least = 8e-6 * 4 * manifest.size / answers_within_s(experiment.server.dead_after_s)
    slow = f"a link below {least:.2g} Mbit/s needs a greater server.dead_after_s at both ends"
    return f"{travel}, {stay:,} constants stay; of running statistics {statistics}; {slow}"


def _read_credentials(experiment: Experiment, say: Callable[[str], None]) -> None:
    """Read the files of [tls] and [admission]. ConfigError names a file that is wrong.

    If a path contains {client_id}, at least one client's files must be right. `say` receives the number of the others.
    """
    Admission(tokens_file=experiment.admission.tokens, clients_file=experiment.admission.clients_file).read()
    tls_files = experiment.tls
    paths = (tls_files.certificate, tls_files.key, tls_files.ca, experiment.admission.token)
    client_ids = experiment.client_ids if any("{client_id}" in path for path in paths) else [""]
    wrong = []
    for client_id in client_ids:
        try:
            if tls := tls_files.in_use(client_id):
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
    """Try to deal the data set out. ConfigError if that fails, or if an example is not finite."""
    workload, seed = experiment.workload, experiment.experiment.seed_of("split")
    data = load_dataset(workload.dataset, examples=workload.examples, seed=seed)
    parts = dealt_out(workload, data, experiment.client_ids, seed)
    if (found := data.train.not_finite()) is not None:
        row, said = found
        of = "".join(f"of {c}, " for c, rows in zip(experiment.client_ids, parts, strict=True) if row in rows)
        raise ConfigError(f'workload.dataset = "{workload.dataset}": {of}train.{said}')
