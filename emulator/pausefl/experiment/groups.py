"""Builds the records of [clients.groups]: behaviours, presence by round, and drift laws."""

from collections.abc import Mapping

import numpy as np

from pausefl.experiment.kinds import read_kind
from pausefl.experiment.population.availability import AVAILABILITIES, Availability, Presence, Trace, reached
from pausefl.experiment.population.behaviours import BEHAVIOURS, Behaviour
from pausefl.experiment.population.simulated_drifts import DRIFTS, DriftLaw
from pausefl.experiment.tables import ClientGroup
from pausefl_proto.errors import ConfigError

ClientGroups = Mapping[str, ClientGroup]
"""The groups of an experiment (`Experiment.groups`), by name."""


def behaviours_of(groups: ClientGroups) -> dict[str, tuple[Behaviour, ...]]:
    """The behaviours of each client, by client id. Raises ConfigError for bad parameters."""
    found = {}
    for name, group in groups.items():
        found.update(dict.fromkeys(group.client_ids(name), _behaviours(name, group)))
    return found


def presence_of(groups: ClientGroups, rounds: int, seed: int) -> Presence | None:
    """The clients present in each of `rounds` rounds. None if all clients always are. ConfigError for a bad table."""
    if all(g.join_round == 1 and g.leave_round is None and not g.availability for g in groups.values()):
        return None
    columns = {}
    for name, group in groups.items():
        availability = _availability(groups, name)
        for client_id in group.client_ids(name):
            columns[client_id] = there = reached(availability, client_id, rounds, seed)
            there[: group.join_round - 1] = False
            there[(group.leave_round or rounds + 1) - 1 :] = False
    return Presence(tuple(columns), np.stack(list(columns.values()), axis=1))


def check_rounds(presence: Presence | None) -> None:
    """Raise ConfigError if a round has no client: a run would fail before that round."""
    if presence is not None and not (is_played := presence.table.any(axis=1)).all():
        empty = int(is_played.argmin()) + 1
        raise ConfigError(f"clients.groups: no client is there in round {empty}, before which a run would fail")


def drift_laws_of(groups: ClientGroups) -> dict[str, DriftLaw]:
    """The drift law of each client in a simulation, by client id. Raises ConfigError if a group has no law."""
    laws = {}
    for name, group in groups.items():
        law = _drift_law(name, group)
        if law is None:
            raise ConfigError(
                f"clients.groups.{name}.drift: a simulation of newcomers draws drifts and needs"
                ' their law, such as { kind = "lognormal", mean = 1.0, sd = 0.2 }'
            )
        laws.update(dict.fromkeys(group.client_ids(name), law))
    return laws


def check_groups(groups: ClientGroups) -> None:
    """Raise ConfigError for a mistake within one group."""
    for name, group in groups.items():
        _behaviours(name, group)
        _drift_law(name, group)
        _availability(groups, name)


def _behaviours(name: str, group: ClientGroup) -> tuple[Behaviour, ...]:
    key = f"clients.groups.{name}.behaviours"
    return tuple(read_kind(BEHAVIOURS, table, f"{key}.{place}") for place, table in enumerate(group.behaviours))


def _drift_law(name: str, group: ClientGroup) -> DriftLaw | None:
    return read_kind(DRIFTS, group.drift, f"clients.groups.{name}.drift") if group.drift else None


def _availability(groups: ClientGroups, name: str) -> Availability:
    key = f"clients.groups.{name}.availability"
    availability: Availability = read_kind(AVAILABILITIES, groups[name].availability or "always", key)
    if isinstance(availability, Trace):  # several groups may name one file
        said, of_group = f'{key}.path = "{availability.path}"', groups[name].client_ids(name)
        known = {client_id for other, group in groups.items() for client_id in group.client_ids(other)}
        if unknown := sorted(availability.named - known):
            raise ConfigError(f"{said}: names {unknown[0]}, which is no client of this experiment")
        if availability.named.isdisjoint(of_group):
            raise ConfigError(f"{said}: names none of {of_group[0]} to {of_group[-1]}")
    return availability
