"""How often the clients of each group were chosen, round by round: a fold over the log."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pausefl.config.tables import group_of
from pausefl_server.clients import ClientTable, IntArray
from pausefl_server.records import RoundRecord

RELEVANT = "relevant"
"""Newcomers whose group's name begins so are the relevant ones of a published experiment, all others irrelevant."""


@dataclass(frozen=True)
class GroupChoices:
    """One group of clients; its arrays have an entry per round."""

    clients: int
    """Those of the group that ever joined."""
    join_round: int | None
    """The round before which the first of them joined; None: nobody did."""
    eligible: IntArray
    """How many of them could be chosen: connected and not retired."""
    chosen: IntArray
    """How often one of them was; a client drawn twice counts twice."""

    @property
    def per_client_round(self) -> float | None:
        """How often a client was chosen, per round in which it could be; None where nobody ever could."""
        return per_client_round([self])


def choices_by_group(records: Sequence[RoundRecord], groups: Sequence[str]) -> Mapping[str, GroupChoices]:
    """Each group's choices, in the order of these names; clients of no such group are left out."""
    table = ClientTable()
    eligible, chosen = (np.zeros((len(records), len(groups)), np.int64) for _ in range(2))
    of_row = np.empty(0, np.int64)
    for t, record in enumerate(records):
        table.apply_events(record.events, record.round)
        if len(table) > len(of_row):
            of_row = _group_of_row(table, groups)
        eligible[t] = _count(of_row[table.eligible()], groups)
        chosen[t] = _count(of_row[table.rows(record.chosen)], groups)
    joined = [table.joined_round[of_row == group] for group in range(len(groups))]
    return {
        name: GroupChoices(len(rounds), int(rounds.min()) if len(rounds) else None, eligible[:, i], chosen[:, i])
        for i, (name, rounds) in enumerate(zip(groups, joined, strict=True))
    }


def per_client_round(groups: Iterable[GroupChoices]) -> float | None:
    """How often a client of these groups was chosen, per round in which it could be; None where nobody ever could."""
    groups = tuple(groups)
    eligible = sum(int(group.eligible.sum()) for group in groups)
    return sum(int(group.chosen.sum()) for group in groups) / eligible if eligible else None


def relevant_to_irrelevant(choices: Mapping[str, GroupChoices]) -> float | None:
    """How many times as often relevant newcomers were chosen, per client and round, as irrelevant ones.

    None unless newcomers of both kinds came, and where no irrelevant one was ever chosen.
    """
    newcomers = {name: group for name, group in choices.items() if (group.join_round or 1) > 1}
    relevant = per_client_round(group for name, group in newcomers.items() if name.startswith(RELEVANT))
    irrelevant = per_client_round(group for name, group in newcomers.items() if not name.startswith(RELEVANT))
    return relevant / irrelevant if relevant is not None and irrelevant else None


def _group_of_row(table: ClientTable, groups: Sequence[str]) -> IntArray:
    """The index of each row's group; len(groups) for a client of none."""
    places = {name: i for i, name in enumerate(groups)}
    return np.array([places.get(group_of(client_id), len(groups)) for client_id in table.ids], np.int64)


def _count(group_of_each: IntArray, groups: Sequence[str]) -> IntArray:
    return np.bincount(group_of_each, minlength=len(groups) + 1)[: len(groups)]
