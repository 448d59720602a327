"""The plan of a whole run, made once: the settings of each process, the network between them, what observers get."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pausefl.experiment.experiment import Experiment
from pausefl.experiment.groups import ClientGroups
from pausefl.experiment.in_force import Tables, in_force
from pausefl.experiment.links import LinkPlan, check_netem, processes_of
from pausefl.experiment.tables import ClientGroup
from pausefl.runtime.client.plan import ClientPlan, client_plan
from pausefl.runtime.netem import Shape, shapes
from pausefl.runtime.server.plan import ServerPlan, server_plan
from pausefl.runtime.standing_fleet import StandingFleet


@dataclass(frozen=True)
class ProcessPlan:
    """The clients of one client process. They belong to one group."""

    client_ids: list[str]
    group: ClientGroup


@dataclass(frozen=True)
class RunPlan:
    """Everything derived from an experiment before a run begins. The code that plays the run sees no `Experiment`."""

    server: ServerPlan
    clients: ClientPlan
    processes: tuple[ProcessPlan, ...]
    """The client processes. Empty on the virtual clock, and if the clients come from outside."""
    is_virtual: bool
    """Whether the run uses the virtual clock, where one process plays all parts."""
    network: Mapping[str, tuple[Shape, Shape]] | None
    """Each client's downlink and uplink, if the kernel emulates them; None: clients delay their messages themselves."""
    settings: Tables
    """The experiment's tables, which bind the run's directory, and which observers get."""


def plan_of(experiment: Experiment, run: str, fleet: StandingFleet | None = None) -> RunPlan:
    """The plan of a run whose directory has the name `run`. With `fleet`, its clients come from outside.

    ConfigError for errors that no single table of settings shows.
    """
    clients, is_virtual = client_plan(experiment), experiment.experiment.clock == "virtual"
    processes = _processes(experiment.groups, clients.links, experiment.clients_per_process)
    latency, links = experiment.latency, clients.links
    network = None
    if latency.injection == "netem":
        check_netem(links, len(links), experiment.clients_per_process)
        network = {c: shapes(link, latency.down_share, latency.time_scale) for c, link in links.items()}
    return RunPlan(
        server=server_plan(experiment, run, clients, fleet.farewell if fleet else ""),
        clients=clients,
        processes=() if is_virtual or fleet else tuple(processes),
        is_virtual=is_virtual,
        network=network,
        settings=in_force(experiment),
    )


def _processes(groups: ClientGroups, links: Mapping[str, LinkPlan], each: int) -> Iterator[ProcessPlan]:
    for name, group in groups.items():
        of_group = {client_id: links[client_id] for client_id in group.client_ids(name)}
        for client_ids in processes_of(of_group, each):
            yield ProcessPlan(client_ids, group)
