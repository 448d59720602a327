"""What every policy must do, whatever its idea; what it may return, and how it is named."""

import copy
import dataclasses
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pausefl.errors import ConfigError
from pausefl_emulator.experiment import parse_experiment
from pausefl_server.clients import ClientTable
from pausefl_server.records import Event
from pausefl_server.selection import POLICIES, Oracle, Policy, Selection, checked, policy_class
from pausefl_server.selection.brute import PauseBrute
from pausefl_server.selection.fastest import Fastest
from pausefl_server.selection.genie import Genie
from pausefl_server.selection.oort import Oort
from pausefl_server.selection.pause import Pause
from pausefl_server.selection.pow_d import PowD
from pausefl_server.selection.sa_pause import SaPause
from pausefl_server.selection.ucb import Ucb
from rigs.policies import (
    CASES,
    IDS,
    M,
    Play,
    context_of,
    every_policy,
    joined,
    policy_of,
    unchanged,
    unseen_first,
)

DOCUMENT = Path(__file__).parents[1] / "docs" / "selection.md"


# --- the contract


def test_every_named_policy_is_under_contract() -> None:
    assert {name for name, _ in CASES.values()} == set(POLICIES)


@every_policy
def test_a_selection_is_m_eligible_rows(case: str) -> None:
    play = Play(policy_of(case))
    play.table.retired[2] = True
    play.table.connected[5] = False
    for _ in range(12):
        selection = policy_of(case).select(play.state, context_of(play.table, len(play.records) + 1))
        assert selection.rows.dtype == np.int64
        assert np.isin(selection.rows, play.table.eligible()).all()
        assert (np.diff(selection.rows) >= 0).all()
        assert len(selection.rows) == (len(play.table.eligible()) if case == "all" else M)
        if selection.weights is None:
            assert len(np.unique(selection.rows)) == len(selection.rows)
        else:
            assert selection.weights.sum() == pytest.approx(1.0)
            assert selection.weights.shape == selection.rows.shape
        assert all(np.isfinite(value) for value in selection.details.values())
        play.one_round()


@every_policy
@pytest.mark.parametrize("eligible", [1, M])
def test_with_too_few_eligible_all_of_them_are_taken(case: str, eligible: int) -> None:
    play = Play(policy_of(case), IDS[:eligible]).rounds(3)
    assert [set(record.chosen) for record in play.records] == [set(IDS[:eligible])] * 3


@pytest.mark.parametrize("case", [case for case in CASES if case != "fed-ts guarded"])  # which refuses m = 1
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
        play.policy.observe(held, record, play.table)
        assert unchanged(table, play.table)


@every_policy
def test_the_same_seed_and_round_give_the_same_answer(case: str) -> None:
    first, second = Play(policy_of(case)).rounds(10), Play(policy_of(case)).rounds(10)
    assert [r.chosen for r in first.records] == [r.chosen for r in second.records]


@every_policy
def test_a_resumed_policy_equals_an_uninterrupted_one(case: str) -> None:
    """Replaying the log gives the table and the state back; the rounds after it are the same."""
    play = Play(policy_of(case)).rounds(9)
    resumed = Play(policy_of(case))
    for record in play.records:
        resumed.table.apply_round(record)
        resumed.state = resumed.policy.observe(resumed.state, record, resumed.table)
        resumed.records.append(record)
    assert unchanged(play.table, resumed.table)
    assert unchanged(play.state, resumed.state)
    play.rounds(6)
    resumed.rounds(6)
    assert [r.chosen for r in play.records] == [r.chosen for r in resumed.records]


@every_policy
def test_how_rows_are_numbered_does_not_matter(case: str) -> None:
    """Rows numbered backwards: the same clients are chosen, ties included."""
    play, mirrored = Play(policy_of(case)), Play(policy_of(case), ids=())
    mirrored.events = play.events
    for event in reversed(joined(IDS)):
        mirrored.table.apply_events([event], round=1)
    assert mirrored.table.ids == list(reversed(play.table.ids))
    for _ in range(12):
        assert sorted(play.one_round().chosen) == sorted(mirrored.one_round().chosen)


@pytest.mark.parametrize("case", [name for name in CASES if name != "fastest"])
def test_every_client_is_tried(case: str) -> None:
    play = Play(policy_of(case)).rounds(60)
    assert (play.table.chosen > 0).all()


@every_policy
def test_a_round_in_which_nobody_answers_is_survived(case: str) -> None:
    play = Play(policy_of(case), silent=IDS).rounds(12)
    assert all(record.chosen for record in play.records)


@every_policy
def test_without_privacy(case: str) -> None:
    play = Play(policy_of(case)).rounds(5)
    selection = play.policy.select(play.state, context_of(play.table, 6, epsilon_budget=None))
    assert len(selection.rows) >= M


@every_policy
def test_tau_min_may_be_the_least_latency_seen(case: str) -> None:
    play = Play(policy_of(case))
    for _ in range(8):
        context = context_of(play.table, len(play.records) + 1, tau_min_s=None)
        assert len(play.policy.select(play.state, context).rows) >= M
        play.one_round()


@pytest.mark.parametrize("case", ["pause", "pause R2", "pause-brute", "sa-pause", "ucb", "fastest"])
def test_no_client_is_favoured_among_equals(case: str) -> None:
    """Which of 13 equal clients go first depends on the seed, all being possible."""
    firsts: Counter[str] = Counter()
    equal = Oracle(dict.fromkeys(IDS, 1.0), dict.fromkeys(IDS, 1.0))
    for seed in range(100):
        table = ClientTable(seed=seed)
        table.apply_events([Event("joined", i, n_examples=100) for i in IDS], round=1)
        selection = policy_of(case).select(None, context_of(table, 1, seed, oracle=equal))
        firsts.update(table.ids[row] for row in selection.rows)
    # Binomial with mean 31 and standard deviation under 5.
    assert set(firsts) == set(IDS)
    assert max(firsts.values()) < 60


@every_policy
def test_parameters_are_frozen_and_m_is_checked(case: str) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        policy_of(case).m = 7  # type: ignore[misc]
    with pytest.raises(ValueError, match="m = 0: must be at least 1"):
        policy_of(case, m=0)


@pytest.mark.parametrize(
    ("policy", "parameters", "message"),
    [
        (Pause, {"alpha": -1.0}, "alpha = -1.0: must be"),
        (Pause, {"gamma": float("nan")}, "gamma = nan: must be"),
        (Pause, {"beta": 1.0}, "beta = 1.0: must be a finite number above 1"),
        (Pause, {"zeta": float("inf")}, "zeta = inf: must be"),
        (Pause, {"reward": "R3"}, "reward = 'R3': must be"),
        (Pause, {"clusters": 0}, "clusters = 0: must be"),
        (Pause, {"clusters": {"a": 1, "b": -2}}, "clusters.b = -2: must be at least 0"),
        (Pause, {"rho": -0.1}, "rho = -0.1: must be"),
        (Pause, {"rho": [0.3, 0.1]}, "rho = \\[0.3, 0.1\\]: must be .* non-decreasing"),
        (Pause, {"rho": []}, "rho = \\[\\]: must be"),
        (Pause, {"delta_tau_s": -1.0}, "delta_tau_s = -1.0: must be"),
        (Pause, {"discount": 0.0}, "discount = 0.0: must be"),
        (Pause, {"window": -1}, "window = -1: must be"),
        (Pause, {"window": 5, "discount": 0.9}, "window = 5: must be 0 where discount is not 1"),
        (PauseBrute, {"rho": [0.1, 0.2]}, "rho = \\[0.1, 0.2\\]: must be a number"),
        (SaPause, {"neighbourhood": "v3"}, "neighbourhood = 'v3': must be one of v2, v1, swap"),
        (SaPause, {"start_set": "best"}, "start_set = 'best': must be one of exact, random"),
        (SaPause, {"temperature": "hot"}, "temperature = 'hot': must be one of spread, printed"),
        (SaPause, {"kappa": 0.0}, "kappa = 0.0: must be"),
        (SaPause, {"steps": -1}, "steps = -1: must be"),
        (SaPause, {"time_cap_s": 0.0}, "time_cap_s = 0.0: must be above 0"),
        (SaPause, {"phi_g": "median"}, "phi_g = 'median': must be"),
        (
            SaPause,
            {"phi_p": "no_such_module:phi"},
            "phi_p = 'no_such_module:phi': ModuleNotFoundError: No module named",
        ),
        (SaPause, {"phi_p": "math:pi"}, "phi_p = 'math:pi': must be callable as factory\\(context, rows\\)"),
        (SaPause, {"phi_g": "json:loads"}, "phi_g = 'json:loads': must be callable as factory\\(context, rows\\)"),
        (SaPause, {"phi_g": "math:pow", "reward": "R2"}, 'phi_g = \'math:pow\': must be "mean" under reward = "R2"'),
        (Ucb, {"zeta": -1.0}, "zeta = -1.0: must be"),
        (PowD, {"d": 0}, "d = 0: must be"),
        (Oort, {"exploration": 1.5}, "exploration = 1.5: must be from 0 to 1"),
        (Oort, {"penalty": -1.0}, "penalty = -1.0: must be"),
        (Oort, {"pacer_window": 0}, "pacer_window = 0: must be"),
        (Oort, {"pacer_percentile": 101.0}, "pacer_percentile = 101.0: must be"),
    ],
)
def test_bad_parameters_are_named(policy: type[Policy], parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        policy(m=5, **parameters)


# --- what is returned


def selection_of(rows: Any, weights: Any = None, **details: Any) -> Selection:
    return Selection(
        np.array(rows, np.int64) if isinstance(rows, list) else rows,
        np.array(weights) if isinstance(weights, list) else weights,
        details,
    )


@every_policy
def test_what_a_policy_chooses_can_be_played(case: str) -> None:
    play = Play(policy_of(case))
    play.table.retired[2] = True
    for t in range(1, 13):
        context = context_of(play.table, t)
        selection = play.policy.select(play.state, context)
        assert checked(selection, context) is selection
        play.one_round()


def test_rows_come_in_any_order_and_more_than_once_with_weights() -> None:
    context = context_of(Play(Pause(M)).table, 1)
    for selection in (selection_of([5, 0, 12]), selection_of([3, 0, 3], [0.25, 0.5, 0.25]), selection_of([7], size=2)):
        assert checked(selection, context) is selection


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        (None, "a NoneType: must be a pausefl_server.selection.Selection"),
        ([0, 1], "a list: must be a pausefl_server.selection.Selection"),
        (Selection([0, 1]), "rows of type list: must be an int64 array of one row or more"),  # type: ignore[arg-type]
        (selection_of([]), "rows of shape (0,) and type int64: must be"),
        (selection_of([[0, 1]]), "rows of shape (1, 2) and type int64: must be"),
        (selection_of(np.array([0.0, 1.0])), "rows of shape (2,) and type float64: must be"),
        (selection_of(np.ones(13, np.bool_)), "rows of shape (13,) and type bool: must be"),
        (selection_of([-1, 0]), "row -1: must be one of context.eligible"),
        (selection_of([0, 99]), "row 99: must be one of context.eligible"),
        (selection_of([1, 2, 3]), "row 2: must be one of context.eligible"),
        (selection_of([0, 1, 0]), "row 0 twice: must have weights for that"),
        (selection_of([0, 1], 0.5), "weights of type float: must be a float64 array of one for each of 2 rows"),
        (selection_of([0, 1], [1]), "weights of shape (1,) and type int64: must be"),
        (selection_of([0, 1], [0.5]), "weights of shape (1,) and type float64: must be"),
        (selection_of([0, 1], [0.5, 0.0]), "weights that are not all finite and above 0"),
        (selection_of([0, 1], [0.5, np.nan]), "weights that are not all finite and above 0"),
        (selection_of([0, 1], [0.5, np.inf]), "weights that are not all finite and above 0"),
        (selection_of([0, 1], size=np.int64(2)), "details with size of type int64: must be a float"),
    ],
)
def test_what_cannot_be_played_is_one_clear_line(selection: Any, message: str) -> None:
    play = Play(Pause(M))
    play.table.retired[2] = True
    with pytest.raises(ConfigError, match=re.escape(f"selection.policy: in round 3 it chose {message}")) as caught:
        checked(selection, context_of(play.table, 3))
    assert "\n" not in str(caught.value)


# --- names


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("puase", 'selection.policy = "puase": did you mean pause'),
        ("zzz", 'selection.policy = "zzz": must be one of all, chr, clustered, drift-ucb, fastest'),
        ("no_such_module:Policy", "No module named 'no_such_module'"),
        ("math:Policy", "has no attribute 'Policy'"),
        ("math:pi", "must be a subclass of pausefl_server.selection.Policy"),
        ("pausefl_server.selection.base:Policy", "does not say how it selects"),
        (":Policy", "Empty module name"),
    ],
)
def test_an_unknown_policy_is_one_clear_line(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        policy_class(name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("class Mine(", "SyntaxError: '\\(' was never closed"),
        ("raise RuntimeError('no\\nlicence')", "RuntimeError: no licence"),
        ("raise KeyError", "KeyError"),
    ],
)
def test_a_module_that_cannot_be_imported_is_one_clear_line(
    source: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it raises, and whether it was to hold a policy or a Φ."""
    (tmp_path / "mine_alone.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    for name, ask in (("selection.policy", policy_class), ("phi_g", lambda name: SaPause(M, phi_g=name))):
        with pytest.raises((ConfigError, ValueError), match=f"{name} = ['\"]mine_alone:Mine['\"]: {message}") as caught:
            ask("mine_alone:Mine")
        assert "\n" not in str(caught.value)


def test_a_policy_of_ones_own_is_found_by_module_and_class() -> None:
    assert policy_class("pausefl_server.selection.pause:Pause") is Pause


def test_policies_say_what_clients_must_disclose() -> None:
    assert Oort(5).disclosures == PowD(5).disclosures == {"loss"}
    assert SaPause(5, phi_g="label_diversity").disclosures == {"labels"}
    assert SaPause(5).disclosures == Pause(5).disclosures == frozenset()


@pytest.mark.parametrize("policy", [Fastest, Genie])
def test_an_oracle_is_asked_for(policy: type[Policy]) -> None:
    assert policy.needs_oracle
    play = Play(Pause(M))
    with pytest.raises(ValueError, match="needs the true mean latencies"):
        policy(M).select(None, context_of(play.table, 1, oracle=None))


# --- unseen clients (decision 5)


@unseen_first
def test_everyone_is_seen_once_in_the_first_rounds(case: str) -> None:
    """13 clients, 4 a round: the fourth round takes the last unseen one and fills up."""
    play = Play(policy_of(case)).rounds(3)
    assert sorted(play.table.chosen.tolist()) == [0] + [1] * 12
    last = IDS[int(play.table.chosen.argmin())]
    assert last in play.one_round().chosen


@unseen_first
def test_a_newcomer_is_tried_at_once(case: str) -> None:
    play = Play(policy_of(case), IDS[:10]).rounds(8)
    play.table.apply_events(joined([IDS[12]]), round=9)
    assert IDS[12] in play.one_round().chosen
    play.rounds(3)


@unseen_first
def test_a_client_that_missed_is_not_forced_again(case: str) -> None:
    """Its ucb stays infinite, but only clients never chosen have precedence over the others."""
    play = Play(policy_of(case), silent=[IDS[0]]).rounds(4)
    assert (play.table.chosen > 0).all()
    assert play.table.measured[play.table.row_of[IDS[0]]] == 0
    play.rounds(26)
    if case != "ucb" and "labels" not in case:  # ucb weighs latency alone, and there an unknown one is the best
        assert sum(IDS[0] in record.chosen for record in play.records) < 20


# --- the examples of docs/selection.md


def example(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Save the Python block that starts with this file name where it can be imported."""
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text("utf-8"), re.DOTALL)
    (block,) = [block for block in blocks if block.startswith(f'"""{name}.py:')]
    (folder / f"{name}.py").write_text(block, "utf-8")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, name, raising=False)


def test_the_documented_policy_of_ones_own_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example("my_policies", tmp_path, monkeypatch)
    experiment = parse_experiment(
        """
        [selection]
        policy = "my_policies:EqualTurns"
        m = 4
        [selection."my_policies:EqualTurns"]
        slack = 2
        [clients]
        count = 13
        """
    )
    play = Play(experiment.policy()).rounds(13)
    assert np.ptp(play.table.chosen) <= 2
    with pytest.raises(ConfigError, match="slack = 0: must be at least 1"):
        parse_experiment('selection."my_policies:EqualTurns".slack = 0').policy("my_policies:EqualTurns")


def test_the_documented_phi_of_ones_own_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example("my_phi", tmp_path, monkeypatch)

    def spreads(policy: Policy) -> list[float]:
        play = Play(policy).rounds(20)
        return [float(np.std(play.table.n_examples[play.table.rows(r.chosen)])) for r in play.records[4:]]

    phi = SaPause(M, phi_g="my_phi:size_spread", neighbourhood="swap", gamma=0.0, steps=500)
    assert min(spreads(phi)) > 1.2 * np.mean(spreads(Pause(M)))


def test_every_policy_is_documented() -> None:
    assert set(re.findall(r"^\| `([a-z-]+)` \|", DOCUMENT.read_text("utf-8"), re.MULTILINE)) == set(POLICIES)
