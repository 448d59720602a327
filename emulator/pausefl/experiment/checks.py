"""Checks whether the keys of an experiment's tables fit together."""

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pausefl.experiment.client_records import check_names, check_privacy, partitioner_of, with_statistics
from pausefl.experiment.delays.laws import plan_training_times
from pausefl.experiment.groups import check_groups
from pausefl.experiment.links import check_netem, sampled_links
from pausefl.experiment.tables import SelectionTable
from pausefl.experiment.validation import check_address, check_finite, unknown_key
from pausefl_proto.errors import ConfigError

if TYPE_CHECKING:
    from pausefl.experiment.experiment import Experiment

_WITHOUT_A_NETWORK: Mapping[str, object] = {
    "latency.injection": "link",
    "metrics.client_port": -1,
    **dict.fromkeys(("evaluation.address", "tls.certificate", "tls.ca"), ""),
    **dict.fromkeys(("admission.tokens", "admission.clients_file", "admission.token"), ""),
}
"""The keys that the virtual clock needs at these values, as all others need a network."""


def check_fit(experiment: "Experiment") -> None:
    """Raise ConfigError for keys that do not fit together."""
    check_finite(experiment.model_dump(exclude={"selection"}))  # sa-pause accepts an infinite cap
    _check_counts(experiment)
    check_groups(experiment.groups)
    check_privacy(experiment.privacy)
    check_names(experiment.workload)
    with_statistics(experiment.workload, experiment.privacy)
    partitioner_of(experiment.workload)
    if experiment.evaluation.address:
        check_address("evaluation.address", experiment.evaluation.address)
    _check_links(experiment)
    _check_clock(experiment)
    for name, parameters in (experiment.selection.__pydantic_extra__ or {}).items():
        if not isinstance(parameters, dict):
            raise ConfigError(unknown_key(f"selection.{name}", sorted(SelectionTable.model_fields)))


def _check_counts(experiment: "Experiment") -> None:
    clients, m = experiment.clients, experiment.selection.m
    if not experiment.is_asynchronous and m > clients.count:
        raise ConfigError(f"selection.m = {m}: must be at most clients.count = {clients.count}")
    if experiment.minimum_clients > clients.count:
        raise ConfigError(f"clients.minimum = {clients.minimum}: must be at most clients.count = {clients.count}")
    if (count := sum(group.count for group in experiment.groups.values())) != clients.count:
        raise ConfigError(f"clients.count = {clients.count}: its groups add up to {count}")
    if clients.ids and clients.groups:
        raise ConfigError("clients.ids: goes without clients.groups, each of which has ids of its own")
    for name, group in experiment.groups.items():
        if group.ids and len(group.ids) != group.count:
            key = f"clients.groups.{name}" if clients.groups else "clients"
            raise ConfigError(f"{key}.count = {group.count}: its ids name {len(group.ids)} clients")
    if twice := next((i for i, n in Counter(experiment.client_ids).items() if n > 1), None):
        raise ConfigError(f'clients: two have the id "{twice}"')
    admitted = experiment.admitted_ids
    if not isinstance(admitted, str) and len(admitted) > clients.count:
        raise ConfigError(f"admission.clients: names {len(admitted)} clients, clients.count = {clients.count}")
    examples = None if experiment.workload.model == "synthetic" else experiment.workload.examples
    if examples is not None and examples < clients.count:
        raise ConfigError(
            f"workload.examples = {examples}: must be at least clients.count = {clients.count}, one for each"
        )


def _check_links(experiment: "Experiment") -> None:
    links = sampled_links(experiment.latency, experiment.ids_by_group, experiment.experiment.seed_of("latency"))
    if experiment.latency.injection == "netem":
        check_netem(links, experiment.clients.count, experiment.clients_per_process)
        if experiment.metrics.client_port >= 0:
            raise ConfigError(
                f"metrics.client_port = {experiment.metrics.client_port}: clients in network namespaces of their own"
                ' (latency.injection = "netem") cannot be scraped'
            )


def _check_clock(experiment: "Experiment") -> None:
    """Raise ConfigError for settings that the clock does not allow, or if a training time is stated twice."""
    workload = experiment.workload
    if workload.step_s is not None and workload.training_time:
        raise ConfigError("workload.step_s: goes without workload.training_time, which states the same")
    if workload.model == "synthetic" and workload.step_s is not None:
        raise ConfigError('workload.step_s: model "synthetic" takes no steps; state workload.train_s')
    if workload.model == "synthetic" and workload.train_s and workload.training_time:
        raise ConfigError("workload.train_s: goes without workload.training_time, which states the same")
    plan_training_times(workload.training_time, experiment.client_ids, experiment.experiment.seed)
    if experiment.experiment.clock == "virtual":
        for key, without in _WITHOUT_A_NETWORK.items():
            table, _, name = key.partition(".")
            if (value := getattr(getattr(experiment, table), name)) != without:
                shown = f'"{value}"' if isinstance(value, str) else value
                raise ConfigError(f'experiment.clock = "virtual": goes without {key} = {shown}, which needs a network')
    elif experiment.clients.batched == "on":
        raise ConfigError(
            'clients.batched = "on": goes with experiment.clock = "virtual"; on the real clock a client\'s training'
            " time is measured, and clients that are trained together have none of their own"
        )
