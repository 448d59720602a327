"""What every selection policy must keep to, from one list; then what is particular to each."""

import copy
import dataclasses
import itertools
import math
import re
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pausefl.budget import Budget
from pausefl.draws import generator
from pausefl.errors import ConfigError
from pausefl_emulator.experiment import parse_experiment
from pausefl_server.clients import ClientTable
from pausefl_server.records import Event, Observation, RoundRecord, Timing
from pausefl_server.selection import POLICIES, Context, Oracle, Policy, Selection, checked, policy_class
from pausefl_server.selection.brute import PauseBrute
from pausefl_server.selection.clustered import Clustered
from pausefl_server.selection.fastest import Fastest
from pausefl_server.selection.genie import Genie
from pausefl_server.selection.oort import Oort
from pausefl_server.selection.pause import Pause
from pausefl_server.selection.pow_d import PowD
from pausefl_server.selection.sa_pause import SaPause
from pausefl_server.selection.ucb import Ucb

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "pause": ("pause", {}),
    "pause R2": ("pause", {"reward": "R2", "clusters": 4, "delta_tau_s": 0.05}),
    "pause R2 convex": ("pause", {"reward": "R2", "clusters": 4, "rho": [0.0, 0.1, 0.3]}),
    "pause discounted": ("pause", {"discount": 0.9}),
    "pause window": ("pause", {"window": 8}),
    "pause-brute": ("pause-brute", {"reward": "R2", "clusters": 4}),
    "sa-pause": ("sa-pause", {"steps": 50}),
    "sa-pause v1": ("sa-pause", {"steps": 50, "neighbourhood": "v1", "start_set": "random", "temperature": "printed"}),
    "sa-pause R2": ("sa-pause", {"steps": 50, "reward": "R2", "neighbourhood": "swap"}),
    "sa-pause labels": ("sa-pause", {"steps": 50, "phi_g": "label_diversity", "window": 8}),
    "genie": ("genie", {}),
    "random": ("random", {}),
    "all": ("all", {}),
    "fastest": ("fastest", {}),
    "clustered": ("clustered", {}),
    "ucb": ("ucb", {}),
    "oort": ("oort", {"pacer_window": 3}),
    "pow-d": ("pow-d", {"d": 6}),
    "fed-ts": ("fed-ts", {"search_after": 3}),
    "fed-ts guarded": ("fed-ts", {"guard": "leave-one-out", "drift_weight": 1.0}),
    "drift-ucb": ("drift-ucb", {}),
    "chr": ("chr", {}),
}
DOCUMENT = Path(__file__).parents[1] / "docs" / "selection.md"
M = 4
BUDGET = Budget(100.0, 0.04)
IDS = tuple(f"client-{k:02}" for k in range(13))

every_policy = pytest.mark.parametrize("case", CASES)
unseen_first = pytest.mark.parametrize(
    "case", [name for name in CASES if name.startswith(("pause", "sa-pause", "ucb"))]
)


def policy_of(case: str, m: int = M) -> Policy:
    name, parameters = CASES[case]
    return policy_class(name)(m=m, **parameters)


def joined(ids: Iterable[str], examples: int = 100) -> list[Event]:
    return [Event("joined", client_id, n_examples=examples + 7 * (hash_of(client_id) % 5)) for client_id in ids]


def hash_of(client_id: str) -> int:
    return int(client_id.split("-")[1])


def true_mean_s(client_id: str) -> float:
    return 0.1 + 0.07 * hash_of(client_id)


ORACLE = Oracle({i: true_mean_s(i) for i in IDS}, {i: 1 / true_mean_s(i) for i in IDS})


def context_of(table: ClientTable, round: int, seed: int = 1, **changes: Any) -> Context:
    fields: dict[str, Any] = {
        "round": round,
        "table": table,
        "eligible": table.eligible(),
        "rng": generator(seed, "selection", round, 0),
        "epsilon_budget": BUDGET.epsilon_budget,
        "tau_min_s": 0.05,
        "oracle": ORACLE,
    }
    return Context(**(fields | changes))


class Play:
    """Rounds of one policy on a table, with latencies that are functions of (client, round)."""

    def __init__(self, policy: Policy, ids: Iterable[str] = IDS, seed: int = 1, silent: Iterable[str] = ()) -> None:
        self.policy, self.seed, self.silent = policy, seed, frozenset(silent)
        self.table = ClientTable(seed=seed)
        self.events = tuple(joined(ids))
        self.table.apply_events(self.events, round=1)
        self.state = policy.start()
        self.records: list[RoundRecord] = []

    def rounds(self, count: int) -> "Play":
        for _ in range(count):
            self.one_round()
        return self

    def one_round(self) -> RoundRecord:
        t = len(self.records) + 1
        selection = self.policy.select(self.state, context_of(self.table, t, self.seed))
        chosen = tuple(self.table.ids[row] for row in selection.rows)
        answers = tuple(self.observation(i, t) for i in dict.fromkeys(chosen) if i not in self.silent)
        record = RoundRecord(
            round=t,
            attempt=0,
            chosen=chosen,
            weights=None if selection.weights is None else tuple(selection.weights.tolist()),
            observations=answers,
            events=self.events if t == 1 else (),
            round_latency_s=max((o.latency_s for o in answers), default=0.0),
            wall_clock_s=0.0,
            selection_s=0.0,
            model_digest="",
            details=selection.details,
            cluster_penalty_s=selection.cluster_penalty_s,
        )
        self.table.apply_round(record)
        self.state = self.policy.observe(self.state, record, self.table)
        self.records.append(record)
        return record

    def observation(self, client_id: str, t: int) -> Observation:
        rng = generator(self.seed, "test", client_id, t)
        latency_s = true_mean_s(client_id) * rng.uniform(0.7, 1.4)
        i = int(self.table.released[self.table.row_of[client_id]]) + 1
        return Observation(
            client_id=client_id,
            timing=Timing(latency_s),
            latency_s=latency_s,
            n_examples=100,
            participation=i,
            epsilon=BUDGET.epsilon(i),
            epsilon_spent=BUDGET.spent(i),
            loss=2.0 / t + 0.1 * rng.random(),
            statistics={"label_0": hash_of(client_id), "label_1": 10.0, "label_2": 3.0},
        )


def unchanged(before: Any, after: Any) -> bool:
    """Deep equality of tables and states, arrays and NaN included."""
    if dataclasses.is_dataclass(before):
        return all(unchanged(getattr(before, f.name), getattr(after, f.name)) for f in dataclasses.fields(before))
    if isinstance(before, np.ndarray):
        return np.array_equal(before, after, equal_nan=before.dtype.kind == "f")
    if isinstance(before, dict):
        return before.keys() == after.keys() and all(unchanged(before[k], after[k]) for k in before)
    if isinstance(before, tuple):
        return len(before) == len(after) and all(map(unchanged, before, after))
    return bool(before == after)


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


# --- PAUSE


def test_pause_takes_the_optimum_of_equation_14() -> None:
    for reward in ({"reward": "R1"}, {"reward": "R2", "clusters": 4, "rho": 0.05}):
        exact, brute = Play(Pause(M, **reward)).rounds(5), PauseBrute(M, **reward)
        for _ in range(25):
            context = context_of(exact.table, len(exact.records) + 1)
            selection, oracle = exact.policy.select(None, context), brute.select(None, context)
            assert selection.details["energy"] == pytest.approx(oracle.details["energy"])
            exact.one_round()


def test_the_energy_is_equation_14_by_hand() -> None:
    """Two clients, one seen twice, the other once, in round 4 (ln 3 and T/3)."""
    table = ClientTable(seed=1)
    table.apply_events([Event("joined", i, n_examples=n) for i, n in (("a", 300), ("b", 100))], round=1)
    table.chosen[:] = table.measured[:] = [2, 1]
    table.inverse_latency_sum[:] = [1 / 0.1 + 1 / 0.2, 1 / 0.5]
    table.epsilon_spent[:] = [30.0, 10.0]
    table.connected[:] = True
    context = context_of(table, 4)
    energies = []
    for k, (share, count, inverse_s, spent) in enumerate(((0.75, 2, 15.0, 30.0), (0.25, 1, 2.0, 10.0))):
        x = share - count / 3
        g = np.sign(x) * abs(x) ** 1.5
        ucb = 1.5 * 0.05 * inverse_s / count + np.sqrt(2 * np.log(3) / count)
        energies.append(ucb + 7.0 * g + 2.0 * (1 - spent / 100))
        assert Pause(1, alpha=7.0, gamma=2.0, beta=1.5, zeta=1.5).choice(None, context).rows.size == 2, k
    selection = Pause(1, alpha=7.0, gamma=2.0, beta=1.5, zeta=1.5).select(None, context)
    assert selection.rows.tolist() == [int(np.argmax(energies))]
    assert selection.details["energy"] == pytest.approx(max(energies))


def test_r2_keeps_clusters_apart_and_logs_delta_tau_apart() -> None:
    together = {client_id: 0 if k < 9 else k for k, client_id in enumerate(IDS)}
    policy = Pause(M, reward="R2", clusters=together, rho=1000.0, delta_tau_s=0.05)
    play = Play(policy).rounds(10)
    for record in play.records[4:]:
        assert len({together[i] for i in record.chosen}) == M
        assert record.cluster_penalty_s == 0.0
    indifferent = dataclasses.replace(policy, rho=0.0)
    record = Play(indifferent).one_round()
    shared = M - len({together[i] for i in record.chosen})
    assert shared > 0
    assert record.cluster_penalty_s == pytest.approx(0.05 * shared)


def test_delta_tau_counts_where_everyone_is_taken_too() -> None:
    record = Play(Pause(M, reward="R2", clusters=1, delta_tau_s=0.05), IDS[:3]).one_round()
    assert record.cluster_penalty_s == pytest.approx(0.05 * 2)


def test_only_clients_there_are_have_a_cluster() -> None:
    Pause(M, reward="R2", clusters={IDS[0]: 1}).check_clients(IDS, len(IDS))
    with pytest.raises(ValueError, match=f"clusters.client-zzz: must be the id of a client, such as {IDS[0]}"):
        Pause(M, reward="R2", clusters={IDS[0]: 1, "client-zzz": 1}).check_clients(IDS, len(IDS))


@pytest.mark.parametrize(("rho", "penalty"), [(0.1, 3 * 0.5), ([0.1, 0.3], (0.1 + 0.3 + 0.3) * 5), ([0.1] * 9, 1.5)])
def test_the_greatest_penalty_is_that_of_a_set_in_one_cluster(rho: Any, penalty: float) -> None:
    policy = Pause(4, alpha=5.0, reward="R2", clusters=1, rho=rho)
    choice = policy.choice(None, context_of(Play(policy).rounds(4).table, 5))
    assert policy.greatest_penalty == pytest.approx(penalty)
    assert choice.penalty(np.arange(4)) == pytest.approx(penalty)
    assert dataclasses.replace(policy, reward="R1").greatest_penalty == 0


def test_clients_that_no_cluster_names_are_alone() -> None:
    policy = Pause(M, reward="R2", clusters={IDS[0]: 1}, rho=1000.0)
    assert all(record.details["cluster_crowding"] == 0 for record in Play(policy).rounds(6).records)


def test_growing_prices_spread_a_crowd_more_evenly_than_a_flat_one() -> None:
    """Everyone in one of two clusters: any four have at least two extra members."""
    halves = {client_id: k % 2 for k, client_id in enumerate(IDS)}
    growing = Play(Pause(M, reward="R2", clusters=halves, rho=[0.0, 10.0, 20.0])).rounds(12)
    for record in growing.records:
        assert sorted(Counter(halves[i] for i in record.chosen).values()) == [2, 2]


def test_the_brute_force_says_how_many_sets_it_refuses() -> None:
    ids = [f"client-{k:03}" for k in range(60)]
    play = Play(PauseBrute(8), ids)
    with pytest.raises(ConfigError, match="2,558,620,845 sets of 8 of 60"):
        play.one_round()
    with pytest.raises(ConfigError, match="2,558,620,845 sets of 8 of 60"):
        PauseBrute(8).check_clients(ids, 60)
    PauseBrute(8).check_clients(ids, 12)


def test_zeta_favours_the_fast() -> None:
    """With a great ζ and nothing else to weigh, only clients among the fastest are exploited."""
    play = Play(Pause(M, alpha=0.0, gamma=0.0, zeta=1000.0)).rounds(20)
    assert all(set(record.chosen) <= set(IDS[: M + 1]) for record in play.records[5:])


@pytest.mark.parametrize("forgetful", [{"discount": 0.8}, {"window": 10}])
def test_a_forgetful_mean_follows_a_link_that_drifts(forgetful: dict[str, Any]) -> None:
    """The fastest client turns slow after round 40; the plain mean believes in it far longer."""

    class Drifting(Play):
        def observation(self, client_id: str, t: int) -> Observation:
            seen = super().observation(client_id, t)
            return dataclasses.replace(seen, latency_s=50.0) if client_id == IDS[0] and t > 40 else seen

    def faith(**parameters: Any) -> int:
        play = Drifting(Ucb(2, zeta=30.0, **parameters), IDS[:5]).rounds(120)
        return sum(IDS[0] in record.chosen for record in play.records[40:])

    assert faith(**forgetful) < faith() / 2


# --- SA-PAUSE


def test_from_the_exact_start_annealing_equals_pause_under_r1() -> None:
    pause, annealed = Play(Pause(M)).rounds(20), Play(SaPause(M, steps=200)).rounds(20)
    assert [r.chosen for r in pause.records] == [r.chosen for r in annealed.records]


@pytest.mark.parametrize("reward", ["R1", "R2"])
def test_annealing_logs_its_gap_to_the_optimum(reward: Any) -> None:
    policy = SaPause(M, reward=reward, clusters=4, start_set="random", neighbourhood="swap", steps=20)
    play = Play(policy).rounds(20)
    gaps = np.array([record.details["gap"] for record in play.records])
    assert (gaps > -1e-9).all()
    assert (gaps > 1e-6).any()
    long = Play(dataclasses.replace(policy, steps=2000)).rounds(20)
    assert sum(record.details["gap"] for record in long.records) < gaps.sum() / 5


def test_the_time_cap_comes_from_the_clock_given() -> None:
    play, ticks = Play(Pause(M)).rounds(4), itertools.count()
    context = context_of(play.table, 5, clock=lambda: float(next(ticks)))
    capped = SaPause(M, steps=10**9, time_cap_s=3.0)
    assert capped.select(None, context).details["steps"] < 10_000
    with pytest.raises(ValueError, match=r"time_cap_s = 3\.0: needs a clock"):
        capped.select(None, context_of(play.table, 5))


@pytest.mark.parametrize("temperature", ["printed", "spread"])
@pytest.mark.parametrize("phi_p", ["mean", "math:spread"])
def test_where_all_sets_are_equal_annealing_still_has_a_temperature(
    temperature: Any, phi_p: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """α = γ = 0, and at most m clients seen, so that nothing tells sets apart."""
    monkeypatch.setattr("math.spread", spread_of_positions, raising=False)
    policy = SaPause(5, alpha=0.0, gamma=0.0, temperature=temperature, start_set="random", phi_p=phi_p)
    assert len(Play(policy, IDS[:7]).rounds(3).records[1].chosen) == 5


def spread_of_positions(context: Context, rows: Any) -> Any:
    """A Φ of one's own: the spread of the client numbers of the set, as a plain function."""
    numbers = np.array([hash_of(context.table.ids[row]) for row in rows])
    return lambda positions: float(np.ptp(numbers[positions]))


def test_any_function_of_the_set_can_be_phi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("math.spread", spread_of_positions, raising=False)
    play = Play(SaPause(M, phi_g="math:spread", gamma=0.0, neighbourhood="swap", steps=400)).rounds(10)
    for record in play.records[4:]:
        assert {IDS[0], IDS[-1]} <= set(record.chosen)


@pytest.mark.parametrize(
    ("phi", "message"),
    [
        (0.5, '"math:phi" returned a float: must return a function of the set'),
        (lambda _: math.nan, "phi_g and phi_p sum to nan: must return finite numbers"),
    ],
)
def test_what_is_no_function_of_the_set_cannot_be_phi(phi: Any, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("math.phi", lambda *_: phi, raising=False)
    with pytest.raises(ConfigError, match=f"^selection.sa-pause: {message}$"):
        Play(SaPause(M, phi_g="math:phi", steps=20)).rounds(5)


def test_label_diversity_prefers_complementary_clients() -> None:
    class OneLabelEach(Play):
        def observation(self, client_id: str, t: int) -> Observation:
            labels = {f"label_{c}": 100.0 * (c == hash_of(client_id) % 3) for c in range(3)}
            return dataclasses.replace(super().observation(client_id, t), statistics=labels)

    play = OneLabelEach(SaPause(3, phi_g="label_diversity", steps=600)).rounds(15)
    for record in play.records[5:]:
        assert {hash_of(i) % 3 for i in record.chosen} == {0, 1, 2}


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


# --- baselines


def test_fastest_takes_the_least_mean_latencies() -> None:
    assert Play(Fastest(M)).one_round().chosen == IDS[:M]


def test_clustered_sampling_is_unbiased_by_data_size() -> None:
    """Each client is drawn m|D_k|/|D| times on average; one with more than |D|/m in some round twice."""
    table = ClientTable(seed=1)
    sizes = np.array([500, 300, 100, 50, 30, 20])
    table.apply_events([Event("joined", i, n_examples=int(n)) for i, n in zip(IDS, sizes, strict=False)], round=1)
    drawn = np.zeros(6)
    rounds = 4000
    for t in range(1, rounds + 1):
        selection = Clustered(3).select(None, context_of(table, t))
        np.add.at(drawn, selection.rows, 1)
        assert selection.weights is not None
        assert selection.weights.tolist() == [1 / 3] * 3
    # The variance of a count is below its mean: five standard deviations.
    expected = 3 * sizes / sizes.sum() * rounds
    assert (np.abs(drawn - expected) < 5 * np.sqrt(expected)).all()


def test_power_of_choice_asks_for_the_greatest_loss() -> None:
    play = Play(PowD(M, d=13))
    play.table.last_loss[:] = np.arange(13.0)
    play.table.last_loss[3] = np.nan
    chosen = PowD(M, d=13).select(None, context_of(play.table, 1)).rows
    assert chosen.tolist() == [3, 10, 11, 12]


@pytest.mark.parametrize(("least", "explored"), [(0.0, [4, 2, 1, 0, 0, 0, 0]), (0.5, [4, 2, 2, 2, 2, 1, 0])])
def test_oort_explores_less_and_less(least: float, explored: list[int]) -> None:
    """Of M = 4 and 13 clients, with a share that halves down to the least one."""
    play = Play(Oort(M, exploration=1.0, exploration_decay=0.5, exploration_min=least)).rounds(7)
    seen: set[str] = set()
    for record, new in zip(play.records, explored, strict=True):
        assert len(set(record.chosen) - seen) == new
        assert len(record.chosen) == M
        seen |= set(record.chosen)


def test_oort_prefers_useful_and_fast_clients() -> None:
    play = Play(Oort(1, exploration=0.0, exploration_min=0.0, cutoff=1.0))
    play.table.chosen[:] = play.table.measured[:] = 1
    play.table.last_loss[:] = 1.0
    play.table.last_loss[6] = 1.05
    play.table.inverse_latency_sum[:] = 10.0
    play.table.n_examples[:] = 100
    state = dataclasses.replace(play.state, last_round=np.ones(13, np.int64))

    def chosen() -> set[int]:
        contexts = [context_of(play.table, t) for t in range(50, 100)]
        return {int(play.policy.select(state, context).rows[0]) for context in contexts}

    assert chosen() == {6}
    play.table.inverse_latency_sum[6:9] = 0.5
    assert chosen() == set(range(13)) - {6, 7, 8}
