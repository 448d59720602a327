"""Rounds of a policy that rates newcomers by their updates, without a network."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from pausefl_proto.draws import generator
from pausefl_proto.wire import Vector
from pausefl_server.records import LogEvent, Observation, RoundRecord
from pausefl_server.selection import Context, Policy, Selection
from pausefl_server.selection.observed import seen_by_policy
from rigs.log import observation, record
from rigs.policies import Play

SIZE = 40
ORIGINALS = [f"original-{k}" for k in range(8)]
RELEVANT = [f"relevant-{k}" for k in range(4)]
POISONED = [f"poisoned-{k}" for k in range(4)]


def update_of(client_id: str, t: int, seed: int = 1) -> Vector:
    """An update. Honest clients send one direction plus noise; poisoned ones send noise of the same norm."""
    noise = generator(seed, "test", client_id, t).standard_normal(SIZE).astype(np.float32)
    honest = 1 + 0.5 * noise
    if not client_id.startswith("poisoned"):
        return honest
    return noise * np.float32(np.linalg.norm(honest) / np.linalg.norm(noise))


class NewcomerPlay(Play):
    """Rounds of one policy with updates. `joins` maps a round to the clients that join before it."""

    def __init__(
        self,
        policy: Policy,
        joins: Mapping[int, Iterable[str]],
        seed: int = 1,
        silent: Iterable[str] = (),
        update: Callable[[str, int], Vector] = update_of,
    ) -> None:
        super().__init__(policy, (), seed, silent)
        self.joins, self.update = joins, update
        self.admitted: list[set[str]] = []

    def select(self) -> Selection:
        t = len(self.records) + 1
        joined = [LogEvent("joined", i, n_examples=100 + 50 * k) for k, i in enumerate(self.joins.get(t, ()))]
        self.table.apply_events(joined, t)
        rng = generator(self.seed, "selection", t, 0)
        return self.policy.select(self.state, Context(t, self.table, self.table.eligible(), rng))

    def answers(self, selection: Selection, t: int) -> tuple[Observation, ...]:
        rows = np.array([row for row in selection.rows if self.table.ids[row] not in self.silent], np.int64)
        answered = [self.table.ids[row] for row in rows]
        inspection = self.policy.inspect(self.table, rows, [self.update(i, t) for i in answered])
        statistics = inspection.statistics if inspection else [{}] * len(rows)
        admitted = inspection.admitted if inspection else np.ones(len(rows), np.bool_)
        self.admitted.append({i for i, is_in in zip(answered, admitted, strict=True) if is_in})
        read_back = map(json.loads, map(json.dumps, statistics))
        return tuple(observation(i, statistics=found) for i, found in zip(answered, read_back, strict=True))

    def after_drifts(self, **drifts: float) -> Any:
        """The policy's state after one more round in which these clients had these drifts."""
        self.state = self.policy.observe(self.state, seen_by_policy(round_with(9, (), **drifts)), self.table)
        return self.state

    def times_chosen(self) -> Counter[str]:
        """How often each kind of client was chosen."""
        return Counter(i.split("-")[0] for record in self.records for i in record.chosen)

    def posterior(self, client_id: str) -> tuple[int, int]:
        s, f = self.state.counts(np.array([self.table.row_of[client_id]]), len(self.table))
        return int(s[0]), int(f[0])


def with_newcomers(policy: Policy, newcomers: Iterable[str] = (*RELEVANT, *POISONED), **options: Any) -> NewcomerPlay:
    """A play with eight original clients from the start and these newcomers before round 4."""
    return NewcomerPlay(policy, {1: ORIGINALS, 4: newcomers}, **options)


def round_with(t: int, joined: Sequence[str] = (), **drifts: float) -> RoundRecord:
    """A round in which `joined` joined, and the clients of `drifts` were chosen and had these drifts."""
    answers = (observation(name.replace("_", "-"), statistics={"drift": drift}) for name, drift in drifts.items())
    return record(t, *answers, events=tuple(LogEvent("joined", client_id) for client_id in joined))
