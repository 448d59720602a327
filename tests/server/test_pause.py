"""PAUSE, the genie, UCB and SA-PAUSE: the optimum, the energy by hand, clusters, and annealing."""

import dataclasses
import itertools
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pausefl_proto.errors import ConfigError, PauseflError
from pausefl_server.clients import ClientTable
from pausefl_server.records import LogEvent, Observation
from pausefl_server.search.annealing import Cooling
from pausefl_server.selection import Context, Oracle
from pausefl_server.selection.latency import mean_and_count
from pausefl_server.selection.policies.baselines import Ucb
from pausefl_server.selection.policies.brute import PauseBrute
from pausefl_server.selection.policies.genie import Genie
from pausefl_server.selection.policies.pause import Choice, Pause
from pausefl_server.selection.policies.sa_pause import SaPause
from rigs.log import table_of
from rigs.policies import IDS, M, Play, context_of, hash_of, true_mean_s

SPREAD = f"{__name__}:spread_of_positions"


def test_pause_takes_the_optimum_of_equation_14() -> None:
    under_r2: dict[str, Any] = {"reward": "R2", "clusters": 4}
    for reward in ({"reward": "R1"}, under_r2 | {"rho": 0.05}, under_r2 | {"rho": [0.01, 0.05]}):
        exact, brute = Play(Pause(M, **reward)).rounds(5), PauseBrute(M, **reward)
        for _ in range(25):
            context = context_of(exact.table, len(exact.records) + 1)
            selection, oracle = exact.policy.select(None, context), brute.select(None, context)
            assert selection.details["energy"] == pytest.approx(oracle.details["energy"])
            exact.one_round()


def test_the_energy_is_equation_14_by_hand() -> None:
    """In round 4 (ln 3 and T/3), one client was seen twice and one once. A third has left, and its data with it."""
    table = ClientTable(1, tau_min_s=0.05)
    table.apply_events([LogEvent("joined", i, n_examples=n) for i, n in (("a", 300), ("b", 100), ("c", 200))], round=1)
    table.chosen[:] = table.measured[:] = [2, 1, 3]
    table.inverse_latency_sum[:] = [1 / 0.1 + 1 / 0.2, 1 / 0.5, 1.0]
    table.epsilon_spent[:] = [30.0, 10.0, 0.0]
    table.connected[:] = [True, True, False]
    context = context_of(table, 4)
    energies = []
    for share, count, inverse_s, spent in ((0.75, 2, 15.0, 30.0), (0.25, 1, 2.0, 10.0)):
        x = share - count / 3
        g = np.sign(x) * abs(x) ** 1.5
        ucb = 1.5 * 0.05 * inverse_s / count + np.sqrt(2 * np.log(3) / count)
        energies.append(ucb + 7.0 * g + 2.0 * (1 - spent / 100))
    selection = Pause(1, alpha=7.0, gamma=2.0, beta=1.5, zeta=1.5).select(None, context)
    assert selection.rows.tolist() == [int(np.argmax(energies))]
    assert selection.details["energy"] == pytest.approx(max(energies))


def test_r2_keeps_clusters_apart_and_logs_delta_tau_apart() -> None:
    together = {client_id: 0 if k < 9 else k for k, client_id in enumerate(IDS)}
    policy = Pause(M, reward="R2", clusters=together, rho=1000.0, delta_tau_s=0.05)
    for record in Play(policy).rounds(10).records[4:]:
        assert len({together[i] for i in record.chosen}) == M
        assert record.cluster_penalty_s == 0.0
    record = Play(dataclasses.replace(policy, rho=0.0)).one_round()
    shared = M - len({together[i] for i in record.chosen})
    assert shared > 0
    assert record.cluster_penalty_s == pytest.approx(0.05 * shared)
    everyone = Play(dataclasses.replace(policy, clusters=1), IDS[:3]).one_round()
    assert everyone.cluster_penalty_s == pytest.approx(0.05 * 2)


def test_only_clients_there_are_have_a_cluster() -> None:
    Pause(M, reward="R2", clusters={IDS[0]: 1}).check_clients(IDS, len(IDS))
    with pytest.raises(ValueError, match=f"clusters.client-zzz: must be the id of a client, such as {IDS[0]}"):
        Pause(M, reward="R2", clusters={IDS[0]: 1, "client-zzz": 1}).check_clients(IDS, len(IDS))


@pytest.mark.parametrize(("rho", "penalty"), [(0.1, 3 * 0.5), ([0.1, 0.3], (0.1 + 0.3 + 0.3) * 5), ([0.1] * 9, 1.5)])
def test_the_greatest_penalty_is_that_of_a_set_in_one_cluster(rho: Any, penalty: float) -> None:
    policy = Pause(4, alpha=5.0, reward="R2", clusters=1, rho=rho)
    choice = policy.choice(None, context_of(Play(policy).rounds(4).table, 5))
    assert (policy.greatest_penalty, choice.penalty(np.arange(4))) == pytest.approx((penalty, penalty))
    assert dataclasses.replace(policy, reward="R1").greatest_penalty == 0


def test_clients_that_no_cluster_names_are_alone() -> None:
    policy = Pause(M, reward="R2", clusters={IDS[0]: 1}, rho=1000.0)
    assert all(record.details["cluster_crowding"] == 0 for record in Play(policy).rounds(6).records)


def test_growing_prices_spread_a_crowd_more_evenly_than_a_flat_one() -> None:
    """Each client is in one of two clusters, so any four have at least two extra members."""
    halves = {client_id: k % 2 for k, client_id in enumerate(IDS)}
    for record in Play(Pause(M, reward="R2", clusters=halves, rho=[0.0, 10.0, 20.0])).rounds(12).records:
        assert sorted(Counter(halves[i] for i in record.chosen).values()) == [2, 2]


def test_the_brute_force_says_how_many_sets_it_refuses() -> None:
    ids = [f"client-{k:03}" for k in range(60)]
    for refused in (Play(PauseBrute(8), ids).one_round, lambda: PauseBrute(8).check_clients(ids, 60)):
        with pytest.raises(ConfigError, match="2,558,620,845 sets of 8 of 60"):
            refused()
    PauseBrute(8).check_clients(ids, 12)


@pytest.mark.parametrize("forgetful", [{"discount": 0.8}, {"window": 10}])
def test_a_forgetful_mean_follows_a_link_that_drifts(forgetful: dict[str, Any]) -> None:
    """The fastest client turns slow after round 40. With the plain mean, it is chosen far longer."""

    class Drifting(Play):
        def observation(self, client_id: str, t: int) -> Observation:
            seen = super().observation(client_id, t)
            return dataclasses.replace(seen, latency_s=50.0) if client_id == IDS[0] and t > 40 else seen

    def faith(**parameters: Any) -> int:
        play = Drifting(Ucb(2, zeta=30.0, **parameters), IDS[:5]).rounds(120)
        return sum(IDS[0] in record.chosen for record in play.records[40:])

    assert faith(**forgetful) < faith() / 2


@pytest.mark.parametrize(
    ("forgetful", "rounds"), [({"window": 4}, 4), ({"window": 9}, 6), ({"discount": 0.5}, 2 - 0.5**5), ({}, 6)]
)
def test_a_forgetful_index_explores_by_the_rounds_that_it_remembers(forgetful: dict[str, Any], rounds: float) -> None:
    """In rounds of M = 4 clients, and in steps of 4 updates with 6 clients at work."""
    play = Play(Pause(M, **forgetful)).rounds(6)
    for at_once, places in ((M, {}), (6, {"concurrency": 6, "jobs": 6 * M})):
        context = context_of(play.table, 7, **places)
        choice = Pause(M, **forgetful).choice(play.state, context)
        mean, count = mean_and_count(context, choice.rows, play.state)
        with np.errstate(divide="ignore"):
            squared = (at_once + 1) * math.log(max(rounds * M / at_once, 1)) / count
        assert choice.ucb == pytest.approx(mean + np.sqrt(squared))


def test_in_an_asynchronous_run_c_jobs_count_as_a_round_also_since_a_client_joined() -> None:
    """Six rounds are over when the client joins, nine when the policy chooses, for two places."""
    play = Play(Pause(M), IDS[:12]).rounds(6)
    play.table.apply_events([LogEvent("joined", IDS[12], n_examples=100)], round=7)
    play.table.chosen[12] = play.table.measured[12] = 1
    in_rounds = Pause(M).choice(None, context_of(play.table, 10))
    in_steps = Pause(2).choice(None, context_of(play.table, 55, concurrency=M, jobs=9 * M))
    np.testing.assert_array_equal([in_steps.g, in_steps.ucb], [in_rounds.g, in_rounds.ucb])
    for choice in (in_rounds, in_steps):
        np.testing.assert_allclose(choice.m * choice.value, 100.0 * choice.g + 5.0 * choice.p)


def test_a_client_of_whom_stops_alone_are_known_is_not_unseen_and_no_gain_outweighs_its_infinite_index() -> None:
    play = Play(Pause(M)).rounds(4)
    play.table.measured[2] = 0
    choice = Pause(M).choice(None, context_of(play.table, 5))
    assert (choice.forced.size, choice.rows[np.isinf(choice.ucb)].tolist()) == (0, [2])
    ucb, value, none = np.array([np.inf] * 3 + [0.0] * 3), np.array([0.0] * 3 + [1.0] * 3), np.zeros(6)
    groups, penalty = np.array([0, 0, 0, 1, 2, 3]), np.array([0.0, 2.0])
    crowded = Choice(3, np.arange(6), ucb, none, none, value, groups, penalty).finite()
    assert crowded.energy(np.arange(3)) > crowded.energy(np.arange(3, 6))


def test_before_any_answer_an_automatic_tau_min_is_the_fastest_clients_mean() -> None:
    play = Play(Genie(M, alpha=0.0, gamma=0.0), tau_min_s=None)
    assert play.one_round().chosen == IDS[:M]
    assert play.records[0].details["energy"] == pytest.approx(true_mean_s(IDS[0]) / true_mean_s(IDS[M - 1]))


def test_links_faster_than_tau_min_are_worth_no_more_than_tau_min() -> None:
    play = Play(Genie(2, alpha=0.0, gamma=0.0), tau_min_s=0.5 * (true_mean_s(IDS[2]) + true_mean_s(IDS[3])))
    assert set(play.one_round().chosen) <= set(IDS[:3])
    assert play.records[0].details["energy"] == 1.0


def test_clients_without_any_delay_are_the_fastest() -> None:
    table, instant = Play(Pause(M), tau_min_s=None).table, {i: math.inf if i in IDS[-2:] else 1.0 for i in IDS}
    context = context_of(table, 1, oracle=Oracle(dict.fromkeys(IDS, 1.0), instant))
    chosen = Genie(2, alpha=0.0, gamma=0.0).select(None, context).rows
    assert [table.ids[row] for row in chosen] == [*IDS[-2:]]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=3, max_size=9), st.integers(1, 5))
def test_ucb_leaves_out_no_greater_ucb_than_it_takes(history: list[tuple[int, int]], m: int) -> None:
    """`history`: (chosen, measured) of each client, also never measured ones. Equal speeds make many ties."""
    table = table_of(*IDS[: len(history)], n_examples=100, tau_min_s=0.05)
    table.chosen[:] = [chosen for chosen, _ in history]
    table.measured[:] = [min(counts) for counts in history]
    table.inverse_latency_sum[:] = 2.0 * table.measured
    context = context_of(table, 9)
    taken = np.isin(np.arange(len(table)), Ucb(m).select(None, context).rows)
    assert taken.sum() == min(m, len(table))
    width = np.sqrt((m + 1) * np.log(8))
    with np.errstate(divide="ignore"):
        ucb = np.where(table.measured > 0, 0.1 + width / np.sqrt(table.measured), np.inf)
    first = np.lexsort((table.tie_key, -ucb, table.chosen > 0))[:m]
    assert set(first) == set(np.flatnonzero(taken))


def test_from_the_exact_start_annealing_equals_pause_under_r1() -> None:
    pause, annealed = Play(Pause(M)).rounds(20), Play(SaPause(M, steps=200)).rounds(20)
    assert [r.chosen for r in pause.records] == [r.chosen for r in annealed.records]


@pytest.mark.parametrize("reward", ["R1", "R2"])
def test_annealing_logs_its_gap_to_the_optimum(reward: Any) -> None:
    policy = SaPause(M, reward=reward, clusters=4, start_set="random", neighbourhood="swap", steps=20)
    gaps = np.array([record.details["gap"] for record in Play(policy).rounds(20).records])
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
@pytest.mark.parametrize("phi_p", ["mean", SPREAD])
def test_equal_sets_still_have_a_temperature(temperature: Any, phi_p: str) -> None:
    """α = γ = 0, and at most m clients seen: all sets have the same energy."""
    policy = SaPause(5, alpha=0.0, gamma=0.0, temperature=temperature, start_set="random", phi_p=phi_p)
    assert len(Play(policy, IDS[:7]).rounds(3).records[1].chosen) == 5


def spread_of_positions(context: Context, rows: Any) -> Any:
    """A user's Φ as a plain function: the spread of the client numbers of the set."""
    numbers = np.array([hash_of(context.table.ids[row]) for row in rows])
    return lambda positions: float(np.ptp(numbers[positions]))


@pytest.mark.parametrize("temperature", ["printed", "spread"])
def test_the_temperature_exceeds_energy_differences(temperature: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Computed by hand: v2, eq. (20), and v1, eq. (19), divided by κ. A client without a measurement does not count."""
    scales: list[float] = []

    def noted(scale: float, *rest: Any) -> Cooling:
        scales.append(scale)
        return Cooling(scale, *rest)

    monkeypatch.setattr("pausefl_server.search.annealing.Cooling", noted)
    weights = {"alpha": 7.0, "gamma": 20.0, "kappa": 30.0, "reward": "R2", "clusters": 4}
    policy = SaPause(M, temperature=temperature, **weights)  # type: ignore[arg-type]  # of several types
    table = Play(Pause(M)).rounds(9).table
    choice = policy.choice(None, context := context_of(table, 10))
    table.measured[unmeasured := choice.rows[choice.g.argmax()]] = 0
    choice = policy.choice(None, context)
    policy.select(None, context)
    ucb, g, p = (np.sort(term[choice.rows != unmeasured]) for term in (choice.ucb, choice.g, choice.p))
    c = ucb[-M] - ucb[0] + 1e-6
    if temperature == "printed":
        c += 2 * 7.0 + policy.greatest_penalty + 20.0
    else:
        c += sum(w * (term[-M:].mean() - term[:M].mean()) for w, term in ((7.0, g), (20.0, p)))
    assert scales == [pytest.approx(c / 30.0)]


@pytest.mark.parametrize("own", ["phi_g", "phi_p"])
def test_the_energy_weighs_a_phi_of_ones_own_beside_a_mean(own: str) -> None:
    policy = SaPause(M, alpha=7.0, gamma=20.0, steps=50, **{own: SPREAD})  # type: ignore[arg-type]  # of several types
    context = context_of(Play(Pause(M)).rounds(9).table, 10)
    choice, selection = policy.choice(None, context), policy.select(None, context)
    taken, spread = np.isin(choice.rows, selection.rows), float(np.ptp(selection.rows))
    phi_g, phi_p = (spread, choice.p[taken].mean()) if own == "phi_g" else (choice.g[taken].mean(), spread)
    assert selection.details["energy"] == pytest.approx(choice.ucb[taken].min() + 7.0 * phi_g + 20.0 * phi_p)


def test_any_function_of_the_set_can_be_phi() -> None:
    play = Play(SaPause(M, phi_g=SPREAD, gamma=0.0, neighbourhood="swap", steps=400)).rounds(10)
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
    with pytest.raises(PauseflError, match=f"^selection.sa-pause: {message}$"):
        Play(SaPause(M, phi_g="math:phi", steps=20)).rounds(5)


def test_label_diversity_prefers_complementary_clients() -> None:
    class OneLabelEach(Play):
        def observation(self, client_id: str, t: int) -> Observation:
            labels = {f"label_{c}": 100.0 * (c == hash_of(client_id) % 3) for c in range(3)}
            return dataclasses.replace(super().observation(client_id, t), statistics=labels)

    for record in OneLabelEach(SaPause(3, phi_g="label_diversity", steps=600)).rounds(15).records[5:]:
        assert {hash_of(i) % 3 for i in record.chosen} == {0, 1, 2}
