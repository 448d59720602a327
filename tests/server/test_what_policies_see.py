"""A policy is handed records that cannot hold drawn delays: shown by their types, and by a policy that searches."""

import dataclasses
import re
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from pausefl_server.clients import ClientTable
from pausefl_server.records import LogEvent, Miss, Observation, RoundRecord, Timing
from pausefl_server.selection import Context, Policy, PolicyObservation, PolicyRound, Selection
from pausefl_server.state import RunState, replay

DRAWN = (0.123456789, 0.234567891)
INJECTED = (0.345678912, 0.456789123)
SECRETS = (*DRAWN, *INJECTED)


def numbers_reachable_from(thing: Any, seen: set[int]) -> Iterator[float]:
    """Every number that attributes, items and array elements lead to."""
    if isinstance(thing, float | int):
        yield float(thing)
    elif isinstance(thing, np.ndarray) and thing.dtype != object:
        yield from thing.astype(float).ravel().tolist()
    elif id(thing) not in seen and not isinstance(thing, str | bytes | type | types.ModuleType):
        seen.add(id(thing))
        inside = list(thing.values()) if isinstance(thing, dict) else []
        inside += list(thing) if isinstance(thing, tuple | list | set | frozenset) else []
        names = [*getattr(type(thing), "__slots__", ()), *getattr(thing, "__dict__", ())]
        for value in (*inside, *(getattr(thing, name) for name in names if hasattr(thing, name))):
            yield from numbers_reachable_from(value, seen)


@dataclass(frozen=True)
class Spy(Policy):
    """Takes everyone, and keeps every number it can reach."""

    found: ClassVar[set[float]] = set()

    def observe(self, state: Any, record: PolicyRound, table: ClientTable) -> Any:
        self.found.update(numbers_reachable_from((state, record, table), set()))
        return state

    def select(self, state: Any, context: Context) -> Selection:
        self.found.update(numbers_reachable_from((state, context), set()))
        return Selection(context.eligible)


def record_with_secrets() -> RoundRecord:
    timing = Timing(1.5, injected_down_s=INJECTED[0], injected_up_s=INJECTED[1])
    observation = Observation("a", timing, 1.5, 100, 1, 0.5, 0.5, drawn_down_s=DRAWN[0], drawn_up_s=DRAWN[1])
    joined = tuple(LogEvent("joined", i, n_examples=100) for i in "ab")
    missed = Miss("b", "timeout", waited_s=2.0, latency_s=2.0)
    return RoundRecord(1, 1, ("a", "b"), None, (observation,), joined, 2.0, 2.1, 0.0, "", misses=(missed,))


def test_a_policy_that_searches_its_arguments_finds_no_drawn_delay() -> None:
    Spy.found.clear()
    state = replay(Spy(2), 1, [record_with_secrets()])
    context = Context(2, state.table, state.table.eligible(), np.random.default_rng(1))
    state.policy.select(state.policy_state, context)
    assert {1.5, 2.0, 0.5} <= Spy.found  # latency, the miss and ε: it does search
    assert not Spy.found & set(SECRETS)
    # The search itself would have found them in the log's record.
    assert set(SECRETS) <= set(numbers_reachable_from(record_with_secrets(), set()))


def test_no_type_a_policy_is_handed_has_a_field_for_them() -> None:
    handed = (PolicyRound, PolicyObservation, Miss, Context, ClientTable)
    names = {f.name for record in handed for f in dataclasses.fields(record)}
    assert not [name for name in names if re.search("drawn|injected|ping|^timing$|^host$", name)]
    annotations = " ".join(str(f.type) for record in handed for f in dataclasses.fields(record))
    assert not any(kind in annotations for kind in ("RoundRecord", " Observation", "Timing", "HostReport"))


def test_what_a_policy_is_handed_is_made_in_one_place() -> None:
    """The fold a run, a resumed run and a replay share."""
    handed: list[PolicyRound] = []

    class Keeper(Spy):
        def observe(self, state: Any, record: PolicyRound, table: ClientTable) -> Any:  # noqa: ARG002
            handed.append(record)

    state = RunState.start(Keeper(2), 1)
    record = record_with_secrets()
    state.before_round(1, record.events)
    state.after_round(record)
    assert [type(o) for o in handed[0].observations] == [PolicyObservation]
    assert (handed[0].observations[0].latency_s, handed[0].misses) == (1.5, record.misses)
