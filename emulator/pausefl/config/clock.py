"""What an experiment says about time: its clock, and how long training takes on the emulated devices."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pausefl.config.delays.files import ClientPlace
from pausefl.config.delays.laws import LawReader
from pausefl.delays import Delay
from pausefl_proto.draws import generator
from pausefl_proto.errors import ConfigError

if TYPE_CHECKING:
    from pausefl.config.experiment import Experiment


def plan_training_times(table: dict[str, Any], client_ids: Sequence[str], seed: int) -> dict[str, Delay]:
    """Each client's law of the seconds that training takes; empty for an empty table. ConfigError names the key."""
    if not table:
        return {}
    everyone = frozenset(client_ids)
    readers = {
        client_id: LawReader(
            ClientPlace(client_id, place, everyone), partial(generator, seed, "training-parameter", client_id)
        )
        for place, client_id in enumerate(client_ids)
    }
    return {c: reader.read(table, "workload.training_time") for c, reader in readers.items()}


def check_clock(experiment: "Experiment") -> None:
    """ConfigError for what the virtual clock cannot play, or where a training time is stated twice."""
    workload = experiment.workload
    if workload.step_s is not None and workload.training_time:
        raise ConfigError("workload.step_s: goes without workload.training_time, which states the same")
    if workload.model == "synthetic" and workload.step_s is not None:
        raise ConfigError('workload.step_s: model "synthetic" takes no steps; state workload.train_s')
    if workload.model == "synthetic" and workload.train_s and workload.training_time:
        raise ConfigError("workload.train_s: goes without workload.training_time, which states the same")
    experiment.training_times()
    if experiment.experiment.clock == "virtual":
        for key, value, is_real in _needs_a_network(experiment):
            if is_real:
                raise ConfigError(f'experiment.clock = "virtual": goes without {key} = {value}, which needs a network')


def refuse_virtual(experiment: "Experiment", command: str) -> None:
    """ConfigError for a command that is one part of a run on a real network."""
    if experiment.experiment.clock == "virtual":
        raise ConfigError(
            f'experiment.clock = "virtual": goes with pausefl run, which plays all parts in one process; pausefl'
            f' {command} takes "real"'
        )


def _needs_a_network(experiment: "Experiment") -> list[tuple[str, object, bool]]:
    latency, metrics, evaluation = experiment.latency, experiment.metrics, experiment.evaluation
    return [
        ("latency.injection", f'"{latency.injection}"', latency.injection == "netem"),
        ("metrics.client_port", metrics.client_port, metrics.client_port >= 0),
        ("evaluation.address", f'"{evaluation.address}"', bool(evaluation.address)),
        ("tls.certificate", f'"{experiment.tls.certificate}"', bool(experiment.tls.certificate)),
        ("admission.token", f'"{experiment.admission.token}"', bool(experiment.admission.token)),
    ]
