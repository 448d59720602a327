"""Policies on latency laws alone: the figures of rounds and of asynchronous steps, their correctness, and the files."""

import csv
import dataclasses
import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure

import pausefl
from pausefl.bench import selection
from pausefl.experiment.delay_laws.combined import published_delay
from pausefl.experiment.delay_laws.laws import Constant, Exponential, NoDelay
from pausefl.experiment.experiment import load_experiment, parse_experiment
from pausefl.experiment.population.availability import Presence
from pausefl.experiment.server_records import check_policies, selected_policy
from pausefl.studies import simulations
from pausefl.studies.simulation import kernel
from pausefl.studies.simulation.curves import growth_fits
from pausefl.studies.simulation.engine import (
    Setting,
    genie_of,
    is_compiled,
    least_gap,
    regret_bound,
    server_of,
    simulate,
    simulate_fast,
)
from pausefl.studies.simulation.outputs import in_words, run_simulation, setting_of, weights_in_words
from pausefl_offline import replay_outputs
from pausefl_proto.arrays import IntArray
from pausefl_proto.budget import Budget
from pausefl_proto.errors import ConfigError, PauseflError
from pausefl_server.clients import ClientTable
from pausefl_server.model.staleness import Asynchronous
from pausefl_server.search import sweep
from pausefl_server.selection import POLICIES, Context, Policy, PolicyRound, Selection, policy_class
from pausefl_server.selection.policies.baselines import Random, Ucb
from pausefl_server.selection.policies.fedat import FedAt
from pausefl_server.selection.policies.genie import Genie
from pausefl_server.selection.policies.oort import Oort
from pausefl_server.selection.policies.pause import Pause
from pausefl_server.selection.policies.pisces import Pisces
from pausefl_server.selection.policies.sa_pause import SaPause
from pausefl_tune.plan import TuningPlan
from rigs.experiments import small

CONFIG = """
clients.count = 8
[experiment]
seed = 3
[selection]
policy = "{policy}"
m = 3
[workload]
examples = 800
partition = "{partition}"
"""
BUDGET = Budget(100.0, 0.04)
KINDS = "iid", "dominant-label"


def published(clients: int, seed: int = 1, budget: Budget | None = BUDGET) -> Setting:
    ids = [f"client-{k:02}" for k in range(clients)]
    laws = {client_id: published_delay(k, clients) for k, client_id in enumerate(ids)}
    return Setting(laws, {i: 100 + k % 3 for k, i in enumerate(ids)}, server_of(0.05, budget, seed))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("policy", "budget"),
    [
        (Pause(4), Budget(100.0, 0.04)),
        (Pause(3, alpha=5.0, gamma=0.5, beta=1.5, zeta=3.0), Budget(10.0, 0.2)),
        (Pause(1, alpha=0.0, gamma=0.0), None),
        (Ucb(4, zeta=2.0), BUDGET),
        *((policy_class(name)(3), BUDGET) for name in ("random", "fastest", "clustered", "all")),
    ],
)
def test_compiled_rounds_are_the_policy_called_round_by_round(policy: Policy, budget: Budget | None, seed: int) -> None:
    """If it fails for random and clustered: numpy seeds in a new way, and `pausefl_proto.draws` must do so, too."""
    trained = dict.fromkeys(published(10).laws, Exponential(0.1)) if seed else {}
    setting = dataclasses.replace(published(10, seed, budget), training=trained)
    assert is_compiled(policy, setting)
    plain, compiled = simulate(policy, setting, 450), simulate_fast(policy, setting, 450)
    assert plain.client_ids == compiled.client_ids
    for name in ("round", "total_latency_s", "max_epsilon_spent", "chosen"):
        np.testing.assert_array_equal(getattr(plain, name), getattr(compiled, name), err_msg=name)
    for name in ("regret", "genie_regret", "reward"):
        np.testing.assert_allclose(getattr(plain, name), getattr(compiled, name), rtol=1e-9, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("play", [simulate, simulate_fast])
def test_latencies_of_0_count_as_equally_fast_as_tau_min(play: Any) -> None:
    """As in a run, where a reward is τ_min/max(τ, τ_min)."""
    at_once, at_tau_min = (
        play(Pause(2), Setting(dict.fromkeys("abcd", law), dict.fromkeys("abcd", 100), server_of(0.05)), 50)
        for law in (NoDelay(), Constant(0.05))
    )
    assert at_once.total_latency_s[-1] == 0.0
    for name in ("reward", "regret", "genie_regret", "chosen"):
        np.testing.assert_array_equal(getattr(at_once, name), getattr(at_tau_min, name), err_msg=name)


def test_other_policies_are_not_compiled_and_compiled_rounds_change_with_the_sweep() -> None:
    """If it fails: numba would use old rounds from its cache. Put the new digest into `kernel.SWEEP_SHA256`."""
    for policy in (Pause(4, reward="R2"), Ucb(4, window=5), Genie(4), Random(11), Noting(4)):
        assert not is_compiled(policy, published(10))
    assert not is_compiled(Pause(4), published(10, budget=Budget(100.0, 0.5, epsilon_floor=1.0)))
    source = Path(sweep.__file__).read_bytes()
    assert hashlib.sha256(source).hexdigest() == kernel.SWEEP_SHA256


def test_clients_retire_at_the_floor_of_their_budget_and_a_genie_has_no_regret_against_itself() -> None:
    of_genie = simulate(Genie(4), published(10), 100)
    assert np.abs(of_genie.regret).max() == np.abs(of_genie.genie_regret).max() == 0
    budget = Budget(100.0, 0.5, epsilon_floor=5.0)
    result = simulate(Pause(4), setting := published(10, budget=budget), 100)
    half_is_away = Presence(tuple(sorted(setting.laws)), np.array([[True] * 10, [True] * 5 + [False] * 5]))
    for is_asynchronous in (False, True):
        server = dataclasses.replace(setting.server, is_asynchronous=is_asynchronous)
        of_half = simulate(Pause(4), dataclasses.replace(setting, presence=half_is_away, server=server), 100)
        assert of_half.round[-1] < 50
    assert result.chosen.max() == budget.participations == 5
    assert (result.chosen < 5).sum() < 4, "fewer than m are left"
    assert result.round[-1] < 20


@pytest.mark.parametrize("name", ["pause", "sa-pause", "random", "ucb", "fastest"])
def test_regret_in_the_genies_own_objective_never_falls(name: str) -> None:
    result = simulate(policy_class(name)(m=4), published(10), 120)
    assert (np.diff(result.genie_regret) > -1e-9).all()
    assert result.chosen.sum() == 4 * 120


def test_all_has_no_regret_but_a_latency_and_a_leakage() -> None:
    """Sets of other sizes than m cannot be compared with the genie's."""
    result = simulate(policy_class("all")(m=4), published(10), 30)
    assert np.isnan(result.regret).all()
    assert result.chosen.tolist() == [30] * 10
    assert result.max_epsilon_spent[-1] == pytest.approx(Budget(100.0, 0.04).spent(30))
    assert result.total_latency_s[-1] > 30 * 0.7


def test_a_longer_run_starts_as_a_shorter_one() -> None:
    short, long = simulate_fast(Pause(4), published(10), 300), simulate_fast(Pause(4), published(10), 5000)
    common, of_short, of_long = np.intersect1d(short.round, long.round, return_indices=True)
    assert common[-1] > 50
    assert long.round[-1] == 5000
    np.testing.assert_array_equal(long.regret[of_long], short.regret[of_short])


def test_r2_counts_its_latency_term_apart() -> None:
    policies = (Pause(4, reward="R2", clusters=2, rho=0.0, delta_tau_s=delta_s) for delta_s in (0.1, 0.0))
    with_term, without = (simulate(policy, published(10), 40) for policy in policies)
    assert with_term.total_latency_s[-1] == without.total_latency_s[-1]
    assert with_term.cluster_penalty_s >= 0.1 * 2 * 40 - 1e-9
    assert without.cluster_penalty_s == 0


def test_the_genie_weighs_as_the_policy_does_and_ucb_is_pause_with_nothing_but_latency_to_weigh() -> None:
    ucb, pause = simulate(Ucb(4), published(10), 60), simulate(Pause(4, alpha=0.0, gamma=0.0), published(10), 60)
    for field in dataclasses.fields(ucb):
        np.testing.assert_array_equal(getattr(ucb, field.name), getattr(pause, field.name), err_msg=field.name)
    genie = genie_of(Pause(4, alpha=3.0, gamma=2.0, beta=1.5, reward="R2", clusters=7, rho=0.4))
    assert genie == Genie(4, alpha=3.0, gamma=2.0, beta=1.5, reward="R2", clusters=7, rho=0.4)
    assert all(genie_of(policy_class(name)(m=4)) == Genie(4) for name in ("random", "pns"))  # its α and β are others
    assert genie_of(Ucb(4, zeta=2.0)) == Genie(4, alpha=0.0, gamma=0.0, zeta=2.0)
    assert genie_of(SaPause(4, alpha=3.0)) == Genie(4, alpha=3.0)
    assert genie_of(SaPause(4, phi_p="math:pow")) is None


def test_with_a_phi_of_ones_own_there_is_no_regret(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Such a policy does not maximise what the genie knows the means of."""

    def spread(_: Context, rows: Any) -> Any:
        return lambda positions: float(np.ptp(rows[positions]))

    monkeypatch.setattr("math.spread", spread, raising=False)
    phi = {"selection.sa-pause.phi_p": "math:spread", "selection.sa-pause.steps": 20}
    experiment = parse_experiment(CONFIG.format(policy="sa-pause", partition="iid"), phi)
    summary = run_simulation(experiment, 20, tmp_path, is_drawn=False)
    assert [summary[name] for name in ("reward", "regret", "genie_regret", "genie", "bound_17")] == [None] * 4 + [{}]
    assert summary["total_latency_s"] > 0
    assert list(in_words(summary))[-1].startswith("no regret: it takes rounds of m clients")


@pytest.mark.parametrize("policy", ["random", "pause"])
@pytest.mark.parametrize(
    ("time_scale", "timeout_s", "deadline_s"), [(0.1, 0.5, 5.0), (4.0, 2.0, 0.5), (0.1, "auto", 600.0)]
)
def test_deadlines_are_in_real_time(policy: str, time_scale: float, timeout_s: float | str, deadline_s: float) -> None:
    """All latencies lie just below or just above the deadline; "auto" waits 60 real seconds for unknown clients."""
    for delay_s, missed in ((0.9 * deadline_s, 0), (1.1 * deadline_s, 3 * 30)):
        text = CONFIG.format(policy=policy, partition="iid").replace("[experiment]", "[experiment]\nrounds = 30")
        text += f"[server]\nrest_rounds_max = 0\nround_timeout_s = {json.dumps(timeout_s)}\n"
        text += f"[latency]\ntime_scale = {time_scale}\n[latency.delay]\nkind = 'constant'\nvalue_s = {delay_s}\n"
        experiment = parse_experiment(text)
        result = simulate(selected_policy(experiment.selection), setting_of(experiment), 30)
        assert result.missed.sum() == missed


@pytest.mark.parametrize(("mode", "least_s"), [("additive", 1.5), ("total", 1.0)])
def test_an_automatic_tau_min_is_the_least_latency_that_is_possible(mode: str, least_s: float) -> None:
    """In the mode "total", training is a part of the delay."""
    delay = {"latency.delay": {"kind": "constant", "value_s": 1.0}, "latency.mode": mode, "latency.tau_min_s": "auto"}
    setting = setting_of(parse_experiment("", {**delay, "workload.model": "synthetic", "workload.train_s": 0.5}))
    assert setting.tau_min_s == simulate(Random(1), setting, 1).total_latency_s[-1] == least_s


def test_clients_count_for_their_own_share_of_the_data_and_for_no_more_than_in_a_run() -> None:
    """PAUSE's g weighs clients by their share of the data, at most `aggregation.weight_share_max`."""
    of = {kind: setting_of(parse_experiment(CONFIG.format(policy="pause", partition=kind))).examples for kind in KINDS}
    assert sum(of["dominant-label"].values()) == 800
    assert len(set(of["dominant-label"].values())) > 4
    assert set(of["iid"].values()) == {100}
    shares = []
    for share_max in (1.0, 0.2):
        text = CONFIG.format(policy="pause", partition="iid") + f"[aggregation]\nweight_share_max = {share_max}\n"
        setting = setting_of(parse_experiment(text, {"clients.examples_max": 10_000}))
        setting = dataclasses.replace(setting, examples=dict.fromkeys(setting.laws, 100) | {min(setting.laws): 2000})
        shares.append(simulate(Pause(3, gamma=0.0), setting, 60).chosen[0] / 180)
    assert shares[1] < 0.9 * shares[0]


@dataclass(frozen=True)
class Fixed(Policy):
    """A policy that always chooses `rows`, valid or not."""

    rows: tuple[int, ...] = (0,)

    def select(self, *_: Any) -> Selection:
        return Selection(np.array(self.rows, np.int64))


def test_what_cannot_be_played_is_not_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FedAt, "observe", lambda *_: None)
    with pytest.raises(PauseflError, match=r"selection\.policy: in round 1 its observe returned None"):
        simulate(FedAt(4), published(10), 5)
    for rows in ([-1, 0], [0, 0, 1], [99], []):
        with pytest.raises(PauseflError, match=r"selection\.policy: in round 1 it chose row"):
            simulate(Fixed(4, rows=tuple(rows)), published(10), 5)
    for policy, needed in ((Oort(4), "Oort needs .* loss"), (SaPause(4, phi_g="label_diversity"), "needs .* labels")):
        with pytest.raises(ConfigError, match=f"selection.policy: .*{needed}, which"):
            simulate(policy, published(10), 5)


def test_pause_learns_who_is_slow() -> None:
    """With latency alone in the objective, the fast half is chosen far more often, and regret grows like ln n."""
    result = simulate_fast(Pause(2, alpha=0.0, gamma=0.0), published(8), 40_000)
    assert result.chosen[:4].sum() > 4 * result.chosen[4:].sum()
    fits = growth_fits(result.round, result.genie_regret)
    assert fits["ln n"]["r_squared"] > max(fits["sqrt n"]["r_squared"], fits["n"]["r_squared"])


def test_the_bound_is_equation_17_and_allows_for_the_cluster_term_under_r2() -> None:
    laws = {"a": Constant(0.1), "b": Constant(0.5)}
    setting = Setting(laws, {"a": 1, "b": 1}, server_of(0.05))
    greatest = (0.05 / 0.1 - 0.05 / 0.5) + 2 * 3.0 + 2.0
    expected = 2 * (greatest + 0.4) * (4 * 2 * math.log(1000) / 0.4**2 + 1 + 2 * math.pi**2 / 3)
    bound = regret_bound(setting, Pause(1, alpha=3.0, gamma=2.0), np.array([1000]), least_gap(np.array([0.5, 0.1])))
    assert bound[0] == pytest.approx(expected)
    r1, r2 = Pause(3, alpha=3.0), Pause(3, alpha=3.0, reward="R2", clusters=2, rho=0.5)
    setting, n = published(10), np.array([1, 1000])
    greatest_gap = 0.05 * np.ptp(list(setting.oracle.mean_inverse_latency.values()))
    of_r1, of_r2 = (regret_bound(setting, policy, n, 0.4) for policy in (r1, r2))
    assert of_r2 - of_r1 == pytest.approx(3.0 * 0.5 * 2 * of_r1 / (0.4 + greatest_gap + 2 * 3.0 + 5.0))


@pytest.mark.parametrize(("name", "shape"), [("ln n", np.log), ("sqrt n", np.sqrt), ("n", np.asarray)])
def test_a_growth_is_recognised(name: str, shape: Any) -> None:
    n = np.arange(1, 2000)
    fits = growth_fits(n, 3.0 + 2.0 * shape(n.astype(np.float64)))
    assert fits[name]["b"] == pytest.approx(2.0)
    assert fits[name]["r_squared"] == pytest.approx(1.0)
    assert all(fit["r_squared"] < 1 - 1e-6 for other, fit in fits.items() if other != name)


def test_a_simulation_says_what_its_genie_weighs_and_a_regret_without_fits_has_no_brackets(tmp_path: Path) -> None:
    fits = {"regret": {}, "genie_regret": {"n": {"r_squared": 0.5}}}
    found = {"mode": "synchronous", "total_latency_s": 1.0, "privacy_unit": None, "genie": {}, "growth_fits": fits}
    *_, realised, genies, note = in_words(found | {"regret": 0.4, "genie_regret": 0.4})
    assert "0.4 with the latencies as drawn" in realised
    assert "R²" not in realised
    assert genies.endswith("of mean latencies (never below 0); n: R² 0.5000")
    assert note.startswith("R²: how well a + b ln n")
    plain = {"alpha": 100.0, "gamma": 5.0, "beta": 2.0, "zeta": 1.0, "reward": "R1"}
    own = {"alpha": 7.0, "reward": "R2", "rho": 0.5}
    for policy, changes, genie in (
        ("random", {}, plain),
        ("ucb", {"selection.ucb.zeta": 3.0}, plain | {"alpha": 0.0, "gamma": 0.0, "zeta": 3.0}),
        ("pause", {"selection.pause": own}, plain | own | {"clusters": 6}),
    ):
        experiment = parse_experiment(CONFIG.format(policy=policy, partition="iid"), changes)
        summary = run_simulation(experiment, 10, tmp_path / policy, is_drawn=False)
        assert summary["genie"] == genie
        assert f"alpha = {genie['alpha']}, gamma = {genie['gamma']}, beta" in " ".join(in_words(summary))
    assert weights_in_words({"alpha": 7.0, "clusters": {"a": 0}}) == "alpha = 7.0, clusters = by client"


@pytest.mark.parametrize(("policy", "partition"), [("pause", "iid"), ("all", "dominant-label")])
def test_run_simulation_leaves_tables_and_a_figure(policy: str, partition: str, tmp_path: Path) -> None:
    experiment = parse_experiment(CONFIG.format(policy=policy, partition=partition))
    summary = run_simulation(experiment, 60, tmp_path / "out")
    names = ["selections.csv", "simulation.csv", "simulation.json", "simulation.pdf", "simulation.png"]
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == names
    assert json.loads((tmp_path / "out" / "simulation.json").read_text()) == summary
    assert (summary["policy"], summary["rounds"], summary["clients"], summary["seed"]) == (policy, 60, 8, 3)
    assert (summary["regret"] is None) == (policy == "all")
    *_, last = csv.DictReader((tmp_path / "out/simulation.csv").read_text().splitlines())
    assert (int(last["round"]), float(last["total_latency_s"])) == (60, summary["total_latency_s"])
    chosen = csv.DictReader((tmp_path / "out/selections.csv").read_text().splitlines())
    counts = {row["client_id"]: int(row["chosen"]) for row in chosen}
    assert sum(counts.values()) == 60 * (8 if policy == "all" else 3)


def test_the_benchmark_times_usual_and_hard_states() -> None:
    case = next(selection.cases())
    assert (case["name"], case["case"]) == ("selection", "R1 exact, 300 / 15")
    assert 0 < case["median_s"] <= case["p99_s"]
    assert case["worst_s"] > 0


def drawn(figure: Figure, title: str) -> dict[str, np.ndarray]:
    """The curves, by label, of the axes with this title."""
    (axes,) = [axes for axes in figure.axes if axes.get_title(loc="left") == title]
    return {str(line.get_label()): np.asarray(line.get_ydata(), np.float64) for line in axes.lines}


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Collects the figures that are saved, as PNG and as PDF."""
    saved: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: saved.append(figure))
    return saved


@pytest.mark.parametrize("changes", [{}, {"alpha": 0.0, "gamma": 0.0}, {"reward": "R2"}])
def test_the_bound_is_drawn_however_far_it_lies(changes: dict[str, Any], tmp_path: Path, figures: list[Figure]) -> None:
    overrides = [f"selection.pause.{name}={value}" for name, value in changes.items()]
    text = CONFIG.format(policy="pause", partition="iid") + '[latency.delay]\nkind = "halves"\n'
    summary = run_simulation(parse_experiment(text, overrides), 60, tmp_path / "out")
    figure, _ = figures
    curves = drawn(figure, "Regret beside bound (17)")
    assert len(summary["bound_17"]) == 2
    for reading, at_the_end in summary["bound_17"].items():
        bound = curves[f"bound (17), {reading.replace('delta', 'δ').replace('tau', 'τ').replace('mu', 'μ')}"]
        assert (len(bound), bound[-1]) == (60, at_the_end)
    assert np.nanmax(curves["in the genie's objective, where above 0"]) == summary["genie_regret"]


def test_where_two_means_are_equal_there_is_no_bound(tmp_path: Path, figures: list[Figure]) -> None:
    """No warning of a division by zero either; the figure says why that panel is missing."""
    text = CONFIG.format(policy="pause", partition="iid") + '[latency.delay]\nkind = "constant"\nvalue_s = 0.2\n'
    summary = run_simulation(parse_experiment(text), 20, tmp_path / "out")
    assert summary["bound_17"] == {}
    titles = ["Regret against the genie", "Total latency", "Greatest leakage of a client", "Selections per client"]
    assert [axes.get_title(loc="left") for axes in figures[0].axes] == titles
    assert "two clients have the same mean latency" in figures[0].get_supxlabel()
    names = [label.get_text() for label in figures[0].axes[-1].get_xticklabels()]
    assert names == [f"client-{i:03}" for i in range(8)]
    assert summary["genie_regret"] == pytest.approx(0.0)


IDS = tuple(f"client-{k:02}" for k in range(12))


def steps_setting(concurrency: int, buffer: int, seed: int = 1, budget: Budget | None = None, **steps: Any) -> Setting:
    """A setting of 12 clients with the published latencies."""
    asynchronous = Asynchronous(concurrency, buffer, **steps)
    server = server_of(0.05, budget, seed, is_asynchronous=True, asynchronous=asynchronous)
    laws = {client_id: published_delay(k, 12) for k, client_id in enumerate(IDS)}
    return Setting(laws, dict.fromkeys(IDS, 100), server)


@dataclasses.dataclass(frozen=True)
class Noting(Random):
    """Random, which records what it is given; for one run at a time."""

    told: list[PolicyRound] = dataclasses.field(default_factory=list)
    asked: list[tuple[int, int]] = dataclasses.field(default_factory=list)

    def observe(self, state: Any, record: PolicyRound, table: Any) -> Any:
        self.told.append(record)
        return state

    def select(self, state: Any, context: Context) -> Selection:
        self.asked.append((context.jobs, self.m))
        return super().select(state, context)


@given(st.integers(1, 6), st.data(), st.integers(1, 40), st.floats(0.05, 5.0), st.integers(0, 10**6))
@settings(max_examples=30)
def test_with_equal_delays_elapsed_time_is_that_of_a_queue_with_c_servers(
    concurrency: int, data: st.DataObject, steps: int, delay_s: float, seed: int
) -> None:
    """Job n of a D/D/C queue that is always busy ends at d⌈n/C⌉, so step s ends at d⌈sK/C⌉."""
    buffer = data.draw(st.integers(1, concurrency))
    setting = steps_setting(concurrency, buffer, seed)
    setting = dataclasses.replace(setting, laws=dict.fromkeys(IDS, Constant(delay_s)))
    result = simulate(Random(concurrency), setting, steps)
    expected = delay_s * np.ceil(result.round * buffer / concurrency)
    np.testing.assert_allclose(result.total_latency_s, expected, rtol=1e-9)


def test_with_a_buffer_of_all_clients_steps_are_rounds() -> None:
    setting = steps_setting(12, 12)
    in_rounds = dataclasses.replace(setting, server=dataclasses.replace(setting.server, is_asynchronous=False))
    steps, rounds = simulate(Random(12), setting, 60), simulate(policy_class("all")(m=12), in_rounds, 60)
    np.testing.assert_allclose(steps.total_latency_s, rounds.total_latency_s)
    assert steps.chosen.tolist() == rounds.chosen.tolist()


@pytest.mark.parametrize(("concurrency", "buffer"), [(5, 1), (5, 2), (8, 8)])
def test_places_are_filled_and_staleness_counts_steps_from_the_model_given(concurrency: int, buffer: int) -> None:
    policy = Noting(concurrency)
    simulate(policy, steps_setting(concurrency, buffer), 80)
    given_at, jobs = dict[str, int](), 0
    for record in policy.told:
        assert len(record.observations) == buffer
        for client_id in record.chosen:
            assert client_id not in given_at, "it was at work"
            given_at[client_id] = record.round
        for observation in record.observations:
            assert observation.staleness == record.round - given_at.pop(observation.client_id)
        jobs += len(record.chosen)
        assert len(given_at) <= concurrency
    assert policy.asked[0] == (0, concurrency)
    assert jobs >= 80 * buffer
    at_work = sum(len(record.chosen) for record in policy.told[:-1]) - 79 * buffer
    assert len(policy.told[-1].chosen) == max(0, buffer - at_work), "the last step hands out what it lacks"


@pytest.mark.parametrize(("bound", "within"), [(2, 0.98), (3, 1.0), (5, 1.0)])
def test_paced_steps_bound_staleness(bound: int, within: float) -> None:
    @dataclasses.dataclass(frozen=True)
    class Paced(Noting):
        def updates_needed(self, table: ClientTable, at_work: IntArray, buffer: int) -> int:
            return Pisces(self.m, staleness_bound=bound).updates_needed(table, at_work, buffer)

    laws = {i: Constant(0.1 * (1 + k)) for k, i in enumerate(IDS)}
    policy = Paced(5)
    simulate(policy, dataclasses.replace(steps_setting(5, 1), laws=laws), 200)
    staleness = [o.staleness for record in policy.told[20:] for o in record.observations]
    assert np.mean(np.array(staleness) <= bound) >= within


def test_a_tier_ends_a_step_with_its_slowest_client_and_plays_on_at_its_own_pace() -> None:
    """Six clients take about 0.1 s and six 0.35 s. Once this is known, a tier's rounds take as long as its clients."""
    laws = {i: Constant((0.1 if k % 2 else 0.35) - 0.001 * (k < 2)) for k, i in enumerate(IDS)}
    told: list[PolicyRound] = []

    @dataclasses.dataclass(frozen=True)
    class NotingTiers(FedAt):
        def observe(self, state: tuple[int, ...], record: PolicyRound, table: ClientTable) -> tuple[int, ...]:
            told.append(record)
            return super().observe(state, record, table)

    setting = dataclasses.replace(steps_setting(4, 2, rule="fedat"), laws=laws)
    result = simulate(NotingTiers(4, tiers=2), setting, 300)
    rounds = [[(int(o.client_id[-2:]) % 2, o.staleness) for o in record.observations] for record in told[20:]]
    assert all(len(of_tier) == 2 and of_tier[0] == of_tier[1] for of_tier in rounds)
    slow, fast = ([staleness for is_fast, staleness in map(min, rounds) if is_fast == tier] for tier in (0, 1))
    assert len(fast) / len(slow) == pytest.approx(3.5, rel=0.05)
    assert ({*slow}, {*fast}) == ({3, 4}, {0, 1})
    assert result.total_latency_s[-1] == pytest.approx(0.35 * 300 / 4.5, rel=0.05)


def test_a_client_whose_model_is_too_old_is_given_up() -> None:
    setting = steps_setting(5, 1, staleness_max=2)
    slow = dataclasses.replace(setting, laws={**setting.laws, IDS[0]: Constant(1000.0)})
    result = simulate(policy := Noting(5), slow, 200)
    assert {o.staleness for record in policy.told for o in record.observations} <= {0, 1, 2}
    assert result.missed[0] > 0


def test_fast_clients_spend_their_budget_first() -> None:
    budget = Budget(100.0, 0.5, epsilon_floor=5.0)
    result = simulate(Random(5), steps_setting(5, 1, budget=budget), 500)
    assert result.chosen.max() <= 5
    assert result.round[-1] < 500
    fast, slow = simulate(Random(5), steps_setting(5, 1), 100).chosen.reshape(2, 6).sum(axis=1)
    assert fast > 1.5 * slow


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_plays_steps_or_refuses_in_one_line(name: str, tmp_path: Path) -> None:
    overrides = ["server.mode=asynchronous", "asynchronous.concurrency=4", "asynchronous.buffer=2"]
    overrides += ["asynchronous.rule=fedat", "selection.fedat.tiers=2"] if name == "fedat" else []
    text = CONFIG.format(policy=name, partition="iid")
    experiment, policy = parse_experiment(text, [*overrides, "privacy.enabled=false"]), policy_class(name)
    if policy.needs_rounds or policy(m=3).disclosures or policy.inspect is not Policy.inspect:
        with pytest.raises(ConfigError, match=r"^[^\n]*$"):
            check_policies(experiment)
            run_simulation(experiment, 30, tmp_path, is_drawn=False)
        return
    check_policies(experiment)
    summary = run_simulation(experiment, 30, tmp_path, is_drawn=False)
    assert summary["rounds"] == 30
    assert next(iter(in_words(summary))).startswith("elapsed time ")


# -- no ε is shown without what it protects, and none where nothing is protected


@pytest.fixture
def side_by_side(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    shown: list[Figure] = []
    monkeypatch.setattr(simulations, "write_picture", lambda _, draw: shown.append(draw()))
    return shown


def leakage_labels(figure: Figure) -> list[str]:
    return [axes.get_ylabel() for axes in figure.axes if axes.get_title() == "Greatest leakage"]


@pytest.mark.usefixtures("quickly_written")
@pytest.mark.parametrize(
    ("unit", "label"), [("coordinate", "ε per coordinate"), ("vector", "ε of the whole upload vector")]
)
def test_simulations_replays_and_searches_say_it(
    unit: str, label: str, tmp_path: Path, side_by_side: list[Figure]
) -> None:
    experiment = small({"privacy.unit": unit})
    one = run_simulation(experiment, 5, tmp_path / "one")
    assert json.loads((tmp_path / "one/simulation.json").read_text("utf-8"))["privacy_unit"] == unit
    assert f", greatest {label} of a client " in next(in_words(one))
    several = simulations.run_simulations(experiment, ["pause", "random"], 1, 5, tmp_path / "several")
    assert several["privacy_unit"] == unit
    assert f", greatest {label} " in next(simulations.in_words(several))
    assert leakage_labels(side_by_side[0]) == [label]
    pausefl.run(experiment, tmp_path / "run", progress=False)
    summary = replay_outputs.replayed(tmp_path / "run", "random", {}, draws=2).summary
    assert summary["privacy_unit"] == unit
    assert any(line.startswith(f"greatest {label} ") for line in replay_outputs.in_words(summary))
    assert TuningPlan(experiment.to_toml()).objectives[1].label == f"greatest {label}"


@pytest.mark.usefixtures("quickly_written")
def test_simulations_without_privacy_have_no_epsilon(tmp_path: Path, side_by_side: list[Figure]) -> None:
    experiment = small({"privacy.enabled": False})
    one = run_simulation(experiment, 5, tmp_path / "one")
    assert one["privacy_unit"] is one["max_epsilon_spent"] is None
    several = simulations.run_simulations(experiment, ["pause", "random"], 1, 5, tmp_path / "several")
    assert "ε" not in " ".join([*in_words(one), *simulations.in_words(several)])
    assert leakage_labels(side_by_side[0]) == []
    newcomers = load_experiment("fedts_flip_fashion", {"privacy.enabled": False})
    simulations.run_simulations(newcomers, ["fed-ts", "drift-ucb"], 1, 5, tmp_path / "newcomers")
    told = [[text.get_text() for text in figure.legends[0].get_texts()] for figure in side_by_side]
    assert told == [["pause", "random"], ["fed-ts", "drift-ucb"]], "whichever panels there are"
    ours = {"server.mode": "asynchronous", "asynchronous.concurrency": 2, "asynchronous.buffer": 1}
    steps = small({"privacy.enabled": False, **ours})
    several = simulations.run_simulations(steps, ["pause", "random"], 1, 5, tmp_path / "steps")
    assert next(simulations.in_words(several)).startswith("pause: elapsed time (s) ")
    assert [(axes.get_xlabel(), axes.get_ylabel()) for axes in side_by_side[-1].axes] == [("step", "elapsed time (s)")]
