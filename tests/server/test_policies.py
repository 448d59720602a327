"""What every policy must do, and that no policy is shown drawn delays."""

import copy
import re
import types
from collections import Counter
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, dataclass, fields
from typing import Any, ClassVar

import numpy as np
import pytest

from pausefl_server.clients import ClientTable
from pausefl_server.records import LogEvent, Miss, Observation, RoundRecord, Timing
from pausefl_server.selection import Context, Oracle, Policy, PolicyObservation, PolicyRound, Selection, checked
from pausefl_server.selection.observed import seen_by_policy
from pausefl_server.selection.policies.pause import Pause
from pausefl_server.selection.policies.sa_pause import SaPause
from pausefl_server.state import RunState, replay
from rigs.log import table_of
from rigs.policies import CASES, IDS, M, Play, context_of, every_policy, joined, policy_of, unchanged, unseen_first


@every_policy
def test_a_selection_is_m_eligible_rows(case: str) -> None:
    play = Play(policy_of(case))
    play.table.retired[2] = True
    play.table.connected[5] = False
    for _ in range(12):
        context = context_of(play.table, len(play.records) + 1)
        selection = policy_of(case).select(play.state, context)
        assert checked(selection, context) is selection
        assert selection.rows.dtype == np.int64
        assert np.isin(selection.rows, play.table.eligible()).all()
        assert (np.diff(selection.rows) >= 0).all()
        assert len(selection.rows) == (len(play.table.eligible()) if case == "all" else M)
        if selection.weights is None:
            assert len(np.unique(selection.rows)) == len(selection.rows)
        else:
            assert (selection.weights.sum(), selection.weights.shape) == (pytest.approx(1.0), selection.rows.shape)
        assert all(np.isfinite(value) for value in selection.details.values())
        play.one_round()


@every_policy
@pytest.mark.parametrize("eligible", [1, M])
def test_with_too_few_eligible_all_of_them_are_taken(case: str, eligible: int) -> None:
    play = Play(policy_of(case), IDS[:eligible]).rounds(3)
    assert [set(record.chosen) for record in play.records] == [set(IDS[:eligible])] * 3


@pytest.mark.parametrize("case", [case for case in CASES if case != "fed-ts guarded"])  # this one refuses m = 1
def test_one_client_a_round(case: str) -> None:
    play = Play(policy_of(case, m=1)).rounds(30)
    assert all(len(record.chosen) == (len(IDS) if case == "all" else 1) for record in play.records)


@every_policy
def test_select_and_observe_change_nothing_they_are_given(case: str) -> None:
    play = Play(policy_of(case)).rounds(6)
    for _ in range(3):
        table, state = copy.deepcopy(play.table), copy.deepcopy(play.state)
        play.policy.select(play.state, context_of(play.table, len(play.records) + 1))
        assert unchanged(table, play.table)
        assert unchanged(state, play.state)
        held = play.state
        record = play.one_round()
        assert unchanged(state, held)
        table = copy.deepcopy(play.table)
        play.policy.observe(held, seen_by_policy(record), play.table)
        assert unchanged(table, play.table)


@every_policy
def test_a_resumed_policy_equals_an_uninterrupted_one_as_one_of_the_same_seed_does(case: str) -> None:
    """Replaying the log gives the table and the state back; the rounds after it are the same."""
    play, same, resumed = Play(policy_of(case)).rounds(9), Play(policy_of(case)).rounds(9), Play(policy_of(case))
    assert [r.chosen for r in play.records] == [r.chosen for r in same.records]
    for record in play.records:
        resumed.table.apply_round(record)
        resumed.state = resumed.policy.observe(resumed.state, seen_by_policy(record), resumed.table)
        resumed.records.append(record)
    assert unchanged(play.table, resumed.table)
    assert unchanged(play.state, resumed.state)
    play.rounds(6)
    resumed.rounds(6)
    assert [r.chosen for r in play.records] == [r.chosen for r in resumed.records]


@every_policy
def test_how_rows_are_numbered_does_not_matter(case: str) -> None:
    """With rows numbered backwards, the same clients are chosen, also among ties."""
    play, mirrored = Play(policy_of(case)), Play(policy_of(case), ids=())
    mirrored.events = play.events
    for event in reversed(joined(IDS)):
        mirrored.table.apply_events([event], round=1)
    assert mirrored.table.ids == list(reversed(play.table.ids))
    for _ in range(12):
        assert sorted(play.one_round().chosen) == sorted(mirrored.one_round().chosen)


@pytest.mark.parametrize("case", [name for name in CASES if name != "fastest"])
def test_every_client_is_tried(case: str) -> None:
    assert (Play(policy_of(case)).rounds(60).table.chosen > 0).all()


@every_policy
def test_a_round_in_which_nobody_answers_is_survived(case: str) -> None:
    assert all(record.chosen for record in Play(policy_of(case), silent=IDS).rounds(12).records)


@every_policy
def test_a_policy_chooses_without_a_privacy_budget_and_with_an_estimated_tau_min(case: str) -> None:
    play = Play(policy_of(case), tau_min_s=None).rounds(8)
    assert all(len(record.chosen) >= M for record in play.records)
    assert len(play.policy.select(play.state, context_of(play.table, 9, epsilon_budget=None)).rows) >= M


@pytest.mark.parametrize("case", ["pause", "pause R2", "pause-brute", "sa-pause", "ucb", "fastest"])
def test_no_client_is_favoured_among_equals(case: str) -> None:
    """The seed decides which of 13 equal clients go first. Each of them can."""
    firsts: Counter[str] = Counter()
    equal = Oracle(dict.fromkeys(IDS, 1.0), dict.fromkeys(IDS, 1.0))
    for seed in range(100):
        table = table_of(*IDS, seed=seed)
        selection = policy_of(case).select(None, context_of(table, 1, seed, oracle=equal))
        firsts.update(table.ids[row] for row in selection.rows)
    # Binomial with mean 31 and standard deviation under 5.
    assert set(firsts) == set(IDS)
    assert max(firsts.values()) < 60


@every_policy
def test_parameters_are_frozen_and_m_is_checked(case: str) -> None:
    with pytest.raises(FrozenInstanceError):
        policy_of(case).m = 7  # type: ignore[misc]  # wrong on purpose
    with pytest.raises(ValueError, match="m = 0: must be at least 1"):
        policy_of(case, m=0)


@pytest.mark.parametrize(
    ("policy", "parameters", "message"),
    [
        (Pause, {"clusters": {"a": 1, "b": -2}}, "clusters.b = -2: must be at least 0"),
        (Pause, {"rho": -0.1}, "rho = -0.1: must be"),
        (Pause, {"rho": [0.3, 0.1]}, "rho = \\[0.3, 0.1\\]: must be .* non-decreasing"),
        (Pause, {"rho": []}, "rho = \\[\\]: must be"),
        (Pause, {"window": 5, "discount": 0.9}, "window = 5: must be 0 where discount is not 1"),
        (SaPause, {"time_cap_s": 0.0}, "time_cap_s = 0.0: must be above 0"),
        (SaPause, {"phi_g": "median"}, "phi_g = 'median': must be"),
        (SaPause, {"phi_p": "no_such:phi"}, "phi_p = 'no_such:phi': ModuleNotFoundError: No module named"),
        (SaPause, {"phi_p": "math:pi"}, "phi_p = 'math:pi': must be callable as factory\\(context, rows\\)"),
        (SaPause, {"phi_g": "json:loads"}, "phi_g = 'json:loads': must be callable as factory\\(context, rows\\)"),
        (SaPause, {"phi_g": "math:pow", "reward": "R2"}, 'phi_g = \'math:pow\': must be "mean" under reward = "R2"'),
    ],
)
def test_bad_parameters_are_named(policy: type[Policy], parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        policy(m=5, **parameters)


# --- unseen clients (docs/papers.md, decision 5)


@unseen_first
def test_everyone_is_seen_once_in_the_first_rounds(case: str) -> None:
    """13 clients, 4 a round: the fourth round takes the last unseen one and fills up."""
    play = Play(policy_of(case)).rounds(3)
    assert sorted(play.table.chosen.tolist()) == [0] + [1] * 12
    assert IDS[int(play.table.chosen.argmin())] in play.one_round().chosen


@unseen_first
def test_a_newcomer_is_tried_at_once(case: str) -> None:
    play = Play(policy_of(case), IDS[:10]).rounds(8)
    play.table.apply_events(joined([IDS[12]]), round=9)
    assert IDS[12] in play.one_round().chosen
    play.rounds(3)


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
    """Chooses all clients, and keeps every number it can reach."""

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
    return RoundRecord(1, 1, ("a", "b"), None, (observation,), joined, 2.0, misses=(missed,))


def test_a_policy_that_searches_its_arguments_finds_no_drawn_delay() -> None:
    Spy.found.clear()
    state = replay(RunState.start(Spy(2), 1), [record_with_secrets()])
    state.policy.select(state.policy_state, Context(2, state.table, state.table.eligible(), np.random.default_rng(1)))
    assert {1.5, 2.0, 0.5} <= Spy.found  # latency, the miss and ε: it does search
    assert not Spy.found & set(SECRETS)
    # The search itself would have found them in the log's record.
    assert set(SECRETS) <= set(numbers_reachable_from(record_with_secrets(), set()))


def test_no_type_a_policy_is_handed_has_a_field_for_them() -> None:
    handed = (PolicyRound, PolicyObservation, Miss, Context, ClientTable)
    names = {f.name for record in handed for f in fields(record)}
    assert not [name for name in names if re.search("drawn|injected|ping|^timing$|^host$", name)]
    annotations = " ".join(str(f.type) for record in handed for f in fields(record))
    assert not any(kind in annotations for kind in ("RoundRecord", " Observation", "Timing", "HostReport"))
