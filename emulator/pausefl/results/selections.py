"""Counts how often the clients of each group were chosen, round by round, from the log."""

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pausefl.experiment.tables import ClientGroup
from pausefl_proto.arrays import IntArray
from pausefl_server.clients import ClientTable
from pausefl_server.records import RoundRecord


@dataclass(frozen=True)
class GroupChoices:
    """How often the clients of one group were chosen. Its arrays have an entry per round."""

    client_ids: tuple[str, ...]
    """The ids of all the group's clients, in order."""
    role: Literal["relevant", "irrelevant"] | None
    """The configured role of the group's newcomers."""
    clients: int
    """How many clients of the group ever joined."""
    join_round: int | None
    """The round before which the first client of the group joined; None: no client did."""
    eligible: IntArray
    """How many clients of the group could be chosen in each round: connected and not retired."""
    chosen: IntArray
    """How often clients of the group were chosen in each round; a client drawn twice counts twice."""


class ChoiceCounter:
    """Counts, round by round, how often the clients of each group were chosen, and how many could be."""

    def __init__(self, groups: Mapping[str, ClientGroup]) -> None:
        self._groups = groups
        self._ids = {name: tuple(group.client_ids(name)) for name, group in groups.items()}
        self._index_of = {client_id: index for index, ids in enumerate(self._ids.values()) for client_id in ids}
        self._table = ClientTable()
        self._of_row = np.empty(0, np.int64)
        self._eligible = array("q")  # by round, an entry for each group
        self._chosen = array("q")

    def add(self, record: RoundRecord) -> None:
        """Count the next round. Rounds must be added in the order of the log."""
        if not self._groups:
            return
        table, groups = self._table, len(self._groups)
        for attempt in record.attempts:
            table.apply_events(attempt.events, attempt.round)
        if len(table) > len(self._of_row):
            self._of_row = np.array([self._index_of.get(client_id, groups) for client_id in table.ids], np.int64)
        self._eligible.extend(_count(self._of_row[table.eligible()], groups))
        self._chosen.extend(_count(self._of_row[table.rows(record.chosen)], groups))

    def choices(self) -> Mapping[str, GroupChoices]:
        """The choices of each group, by group name. Clients outside these groups are left out."""
        shape = -1, max(1, len(self._groups))
        eligible, chosen = (np.array(counts, np.int64).reshape(shape) for counts in (self._eligible, self._chosen))
        joined = [self._table.joined_round[self._of_row == group] for group in range(len(self._groups))]
        return {
            name: GroupChoices(
                client_ids=self._ids[name],
                role=self._groups[name].role,
                clients=len(rounds),
                join_round=int(rounds.min()) if len(rounds) else None,
                eligible=eligible[:, i],
                chosen=chosen[:, i],
            )
            for i, (name, rounds) in enumerate(zip(self._groups, joined, strict=True))
        }


def choices_by_group(records: Iterable[RoundRecord], groups: Mapping[str, ClientGroup]) -> Mapping[str, GroupChoices]:
    """The choices of each group in these rounds, by group name. Empty without groups."""
    if not groups:
        return {}
    counter = ChoiceCounter(groups)
    for record in records:
        counter.add(record)
    return counter.choices()


def per_client_round(groups: Iterable[GroupChoices]) -> float | None:
    """How often a client of these groups was chosen per round in which it could be; None if no client ever could."""
    groups = tuple(groups)
    eligible = sum(int(group.eligible.sum()) for group in groups)
    return sum(int(group.chosen.sum()) for group in groups) / eligible if eligible else None


def relevant_to_irrelevant(choices: Mapping[str, GroupChoices]) -> float | None:
    """Selections per client and round of relevant newcomers, divided by those of irrelevant ones; None if undefined."""
    newcomers = [group for group in choices.values() if (group.join_round or 1) > 1]
    relevant = per_client_round(group for group in newcomers if group.role == "relevant")
    irrelevant = per_client_round(group for group in newcomers if group.role == "irrelevant")
    return relevant / irrelevant if relevant is not None and irrelevant else None


def _count(group_of_each: IntArray, groups: int) -> IntArray:
    return np.bincount(group_of_each, minlength=groups + 1)[:groups]
