"""How often the clients of each group were chosen, round by round: a fold over the log."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pausefl.config.tables import ClientGroup
from pausefl_proto.arrays import IntArray
from pausefl_server.clients import ClientTable
from pausefl_server.records import RoundRecord


@dataclass(frozen=True)
class GroupChoices:
    """One group of clients; its arrays have an entry per round."""

    client_ids: tuple[str, ...]
    """All of the group, in order."""
    role: Literal["relevant", "irrelevant"] | None
    """What its newcomers are, as configured."""
    clients: int
    """Those of the group that ever joined."""
    join_round: int | None
    """The round before which the first of them joined; None: no client did."""
    eligible: IntArray
    """How many of them could be chosen: connected and not retired."""
    chosen: IntArray
    """How often one of them was; a client drawn twice counts twice."""

    @property
    def per_client_round(self) -> float | None:
        """How often a client was chosen, per round in which it could be; None if no client ever could."""
        return per_client_round([self])


def choices_by_group(records: Sequence[RoundRecord], groups: Mapping[str, ClientGroup]) -> Mapping[str, GroupChoices]:
    """Each group's choices, by name; clients of no such group are left out."""
    ids = {name: tuple(group.client_ids(name)) for name, group in groups.items()}
    index_of = {client_id: index for index, of_group in enumerate(ids.values()) for client_id in of_group}
    table = ClientTable()
    eligible, chosen = (np.zeros((len(records), len(groups)), np.int64) for _ in range(2))
    of_row = np.empty(0, np.int64)
    for t, record in enumerate(records):
        for attempt in record.attempts:
            table.apply_events(attempt.events, attempt.round)
        if len(table) > len(of_row):
            of_row = np.array([index_of.get(client_id, len(groups)) for client_id in table.ids], np.int64)
        eligible[t] = _count(of_row[table.eligible()], len(groups))
        chosen[t] = _count(of_row[table.rows(record.chosen)], len(groups))
    joined = [table.joined_round[of_row == group] for group in range(len(groups))]
    return {
        name: GroupChoices(
            client_ids=ids[name],
            role=groups[name].role,
            clients=len(rounds),
            join_round=int(rounds.min()) if len(rounds) else None,
            eligible=eligible[:, i],
            chosen=chosen[:, i],
        )
        for i, (name, rounds) in enumerate(zip(groups, joined, strict=True))
    }


def per_client_round(groups: Iterable[GroupChoices]) -> float | None:
    """How often a client of these groups was chosen, per round in which it could be; None if no client ever could."""
    groups = tuple(groups)
    eligible = sum(int(group.eligible.sum()) for group in groups)
    return sum(int(group.chosen.sum()) for group in groups) / eligible if eligible else None


def relevant_to_irrelevant(choices: Mapping[str, GroupChoices]) -> float | None:
    """How many times as often relevant newcomers were chosen, per client and round, as irrelevant ones.

    None unless newcomers of both kinds came, and where no irrelevant one was ever chosen.
    """
    newcomers = [group for group in choices.values() if (group.join_round or 1) > 1]
    relevant = per_client_round(group for group in newcomers if group.role == "relevant")
    irrelevant = per_client_round(group for group in newcomers if group.role == "irrelevant")
    return relevant / irrelevant if relevant is not None and irrelevant else None


def _count(group_of_each: IntArray, groups: int) -> IntArray:
    return np.bincount(group_of_each, minlength=groups + 1)[:groups]
