"""Misses as censored latencies: how they are counted, how means are estimated, and which clients rest."""

import math
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from benchmarks.own.censoring import IgnoresMisses, bias, families
from pausefl.experiment.delay_laws.laws import Constant
from pausefl.studies.simulation.engine import Setting, server_of, simulate, simulate_fast
from pausefl_process.events import Notice, ProgressEvent
from pausefl_proto.budget import Budget
from pausefl_server.clients import ClientTable
from pausefl_server.monitoring.progress import ProgressReporter
from pausefl_server.records import LogEvent, Miss, RoundRecord, Timing
from pausefl_server.rounds.attempt import attempt_end
from pausefl_server.rounds.choosing import context_of, selectable_rows
from pausefl_server.selection import Context
from pausefl_server.selection.latency import Recent, mean_and_count, remember
from pausefl_server.selection.observed import seen_by_policy
from pausefl_server.selection.policies.baselines import All, Ucb
from pausefl_server.selection.policies.fed_ts import FedTs
from pausefl_server.selection.policies.pause import Pause
from pausefl_server.state import RunState, replay
from rigs.log import observation, record
from rigs.log import table_of as a_table_of
from rigs.settings import server_settings

table_of = partial(a_table_of, tau_min_s=0.05)


def remembered(
    records: Iterable[RoundRecord], table: ClientTable, discount: float, window: int, recent: Recent | None = None
) -> Recent:
    """The table of a policy that forgets (discount or window), after these rounds."""
    recent = recent or Recent()
    for each in records:
        table.apply_round(each)
        recent = remember(recent, seen_by_policy(each), table, discount, window)
    return recent


def played(t: int, answers: dict[str, float], misses: dict[str, float] | None = None) -> RoundRecord:
    """A round's record: `answers` are measured latencies, `misses` are lower bounds of censored ones, in seconds."""
    missed = {i: Miss(i, "timeout", s, s) for i, s in (misses or {}).items()}
    waited_s = max((*answers.values(), *(misses or {}).values()))
    changes = {"chosen": (*answers, *missed), "misses": tuple(missed.values()), "round_latency_s": waited_s}
    return record(t, *(observation(i, timing=Timing(s), latency_s=s) for i, s in answers.items()), **changes)


def mean_of(table: ClientTable, recent: Recent | None = None) -> list[float]:
    mean, _ = mean_and_count(Context(9, table, table.eligible(), np.random.default_rng(1)), table.eligible(), recent)
    return [float(value) for value in mean]


def test_a_miss_is_measured_and_bounds_the_reward_from_both_sides() -> None:
    table = table_of("a")
    table.apply_round(played(1, {"a": 0.1}))
    table.apply_round(played(2, {}, {"a": 2.0}))
    assert (table.chosen[0], table.measured[0], table.missed[0]) == (2, 2, 1)
    assert mean_of(table) == pytest.approx([0.05 / 0.1 / 2])
    both = table.inverse_latency_sum[0] + table.censored_inverse_sum[0]
    assert 0.05 * both / table.measured[0] == pytest.approx((0.05 / 0.1 + 0.05 / 2.0) / 2)
    unanswered = table_of("a", tau_min_s=None)
    unanswered.apply_round(played(1, {}, {"a": 0.25}))
    assert unanswered.censored_inverse_sum.tolist() == [4.0], "by its bound also before the first answer"


@pytest.mark.parametrize(("discount", "window"), [(0.9, 0), (1.0, 5)])
def test_a_forgetful_mean_counts_misses_but_neither_stops_nor_less_than_tau_min(discount: float, window: int) -> None:
    table = table_of("a")
    recent = remembered((played(1, {"a": 0.1}), played(2, {}, {"a": 2.0})), table, discount, window)
    weight = 1.0 if window else 0.9
    assert mean_of(table, recent) == pytest.approx([0.5 * weight / (weight + 1)])
    table, stopped = table_of("a", "b"), played(1, {"a": 90.0}, {"b": 90.0})
    answers = tuple(replace(o, teaches=False) for o in stopped.observations)
    misses = tuple(replace(miss, teaches=False) for miss in stopped.misses)
    records = replace(stopped, observations=answers, misses=misses), played(2, {"a": 0.1, "b": 0.2})
    recent = remembered(records, table, discount, window)
    assert recent.weight.tolist() == [1.0, 1.0]
    assert mean_of(table, recent) == pytest.approx([0.5, 0.25])
    table = table_of("a")
    recent = remembered((played(1, {"a": 1e-6}), played(2, {"a": 0.2})), table, discount, window)
    assert mean_of(table, recent) == pytest.approx([(discount * 1.0 + 0.25) / (discount + 1)])


@pytest.mark.parametrize(("discount", "window"), [(0.5, 0), (1.0, 2)])
def test_a_forgetful_mean_forgets_by_rounds_and_not_by_attempts(discount: float, window: int) -> None:
    table, attempts = table_of("a", "b"), [played(2, {}, {"b": 2.0})] * 3
    recent = remembered((played(1, {"a": 0.1}), *attempts, played(2, {"b": 0.1})), table, discount, window)
    assert recent.weight.tolist() == [1.0 if window else 0.5, 4.0]
    assert mean_of(table, recent) == pytest.approx([0.5, 0.5 / 4])
    recent = remembered([played(3, {"b": 0.1})], table, discount, window, recent)
    assert recent.weight.tolist() == ([0.0, 5.0] if window else [0.25, 3.0])


def test_the_interval_encloses_the_uncensored_mean() -> None:
    """The interval holds for any rule of censoring. Here slow exchanges are censored, at deadlines that differ."""
    rng = np.random.default_rng(5)
    latency_s, deadline_s = 0.05 + rng.pareto(1.2, 500) * 0.1, rng.uniform(0.1, 1.0, 500)
    table = table_of("a")
    for t, (s, d) in enumerate(zip(latency_s, deadline_s, strict=True), start=1):
        table.apply_round(played(t, {"a": s}) if s < d else played(t, {}, {"a": d}))
    lower = 0.05 * table.inverse_latency_sum[0] / 500
    assert 50 < table.missed[0] < 450
    assert lower < (0.05 / latency_s).mean() < lower + 0.05 * table.censored_inverse_sum[0] / 500
    assert mean_of(table) == pytest.approx([lower])


def test_a_latency_below_tau_min_is_worth_no_more_than_tau_min() -> None:
    """c's latency is τ_min = 0.05 s, less a long-running clock's rounding error. It does not count as below τ_min."""
    table = table_of("a", "b", "c", "d")
    for t in (1, 2):
        table.apply_round(played(t, {"a": 1e-6, "b": 0.1, "c": 0.04999999999999893, "d": 0.0499}))
    assert mean_of(table) == pytest.approx([1.0, 0.5, 1.0, 1.0])
    assert table.clamped.tolist() == [2, 0, 0, 2]


def test_one_impossible_latency_does_not_collapse_the_others_under_auto_and_no_mean_exceeds_1() -> None:
    ids = [f"c{k}" for k in range(5)]
    table = table_of(*ids, tau_min_s=None)
    honest = {client_id: 0.1 * (k + 1) for k, client_id in enumerate(ids)}
    table.apply_round(played(1, honest))
    before = mean_of(table)
    table.apply_round(played(2, {**honest, "c4": 1e-6}))
    after = mean_of(table)
    assert table.effective_tau_min_s > 0.01
    assert all(now > 0.15 * then for now, then in zip(after, before, strict=True))
    assert max(after) <= 1
    table = table_of("a", "b", "c", tau_min_s=None)
    table.apply_round(played(1, {"a": 0.1}))
    table.apply_round(played(2, {"b": 50.0, "c": 50.0}))
    assert table.effective_tau_min_s == 5.0
    assert mean_of(table) == pytest.approx([1.0, 0.1, 0.1])


@pytest.mark.parametrize(
    ("latencies_s", "tau_min_s"),
    [
        ([], math.inf),
        ([0.3, 0.2, 0.9], 0.2),  # the least, if there are few clients
        ([1e-6, 1e-6, *(0.1 + 0.001 * k for k in range(2, 41))], 0.102),  # a twentieth of the clients does not set it
        ([0.2, 50.0], 0.2),  # a tenth of the upper median would be 5 s, the slow client's own
        ([1e-6, 0.1, *[0.2] * 38], 0.1),  # the second of 40 latencies, and the third of 41
    ],
)
def test_an_estimated_tau_min_takes_the_lower_of_two_quantiles(latencies_s: list[float], tau_min_s: float) -> None:
    answers = {f"c{k:02}": latency_s for k, latency_s in enumerate(latencies_s)}
    table = table_of("silent", *answers, tau_min_s=None)
    if answers:
        table.apply_round(played(1, answers))
    assert table.effective_tau_min_s == pytest.approx(tau_min_s)


@pytest.mark.parametrize(("latency_s", "notices"), [(0.01, 1), (0.2, 0)])
def test_a_constant_that_does_not_fit_the_links_is_said_once(latency_s: float, notices: int) -> None:
    said: list[ProgressEvent] = []
    first = played(1, {"a": latency_s})
    records = [replace(first, round=t, events=(LogEvent("joined", "a"),) if t == 1 else ()) for t in range(1, 31)]
    replay(
        RunState.start(All(1), 1, tau_min_s=0.05),
        records,
        ProgressReporter(server_settings(8), said.append).round_committed,
    )
    messages = [event.message for event in said if isinstance(event, Notice)]
    assert len([message for message in messages if message.startswith("latency.tau_min_s = 0.05: ")]) == notices


def test_rests_double_up_to_the_cap_and_end_with_an_answer() -> None:
    table = table_of("a", "b")
    asked = []
    for t in range(1, 40):
        if 0 in selectable_rows(table, t, 1, 8):
            asked.append(t)
            table.apply_round(played(t, {"b": 0.1}, {"a": 2.0}))
    assert asked == [1, 3, 6, 11, 20, 29, 38]  # with rests of 1, 2, 4, 8, 8, ... rounds
    table.apply_round(played(40, {"a": 0.1}))
    assert selectable_rows(table, 41, 1, 8).tolist() == [0, 1]


def test_resting_clients_are_asked_after_all_where_too_few_are_left() -> None:
    table = table_of("a", "b", "c", "d")
    table.apply_round(played(1, {}, {"a": 2.0, "b": 2.0, "c": 2.0}))
    table.apply_round(played(3, {}, {"b": 2.0, "c": 2.0}))
    table.apply_round(played(6, {}, {"c": 2.0}))
    assert selectable_rows(table, 7, 1, 64).tolist() == [0, 1, 3]
    assert selectable_rows(table, 4, 2, 64).tolist() == [0, 3]
    assert selectable_rows(table, 4, 3, 64).size == 3
    assert selectable_rows(table, 7, 4, 64).tolist() == [0, 1, 2, 3]
    assert selectable_rows(table, 4, 9, 64).size == 4
    table.joined_round[[0, 3]] = 2  # a and d, who do not rest, are newcomers: m of Fed-TS counts b and c alone
    assert context_of(server_settings(8), RunState(FedTs(1), table, None), None, 4, 1).eligible.tolist() == [0, 1, 3]


def test_of_resting_clients_those_are_asked_first_whose_rest_ends_first_and_of_equals_by_the_seed() -> None:
    """If equals were asked in the order of their ids, the same client would always be first."""
    recalled = set()
    for seed in range(20):
        table = table_of("a", "b", seed=seed)
        table.apply_round(played(1, {"b": 0.1}, {"a": 2.0}))
        table.apply_round(played(3, {}, {"a": 2.0, "b": 2.0}))  # a's rest is twice as long
        assert selectable_rows(table, 4, 1, 64).tolist() == [1]
        table = table_of(*"abc", seed=seed)
        table.apply_round(played(1, {}, dict.fromkeys("abc", 2.0)))
        recalled |= {*selectable_rows(table, 2, 1, 8).tolist()}
        assert selectable_rows(table, 2, 1, 8).tolist() == [table.tie_key.argmin()]
    assert recalled == {0, 1, 2}


def test_a_client_that_missed_an_attempt_at_a_round_is_asked_again_only_where_there_is_no_other() -> None:
    """A client that missed hundreds of jobs still rests 8 rounds at most, and 0 rounds where rests are off."""
    table = table_of("a", "b")
    table.apply_round(played(4, {}, {"a": 2.0}))
    assert selectable_rows(table, 4, 2, 64).tolist() == [1]
    table.apply_round(played(4, {}, {"b": 2.0}))
    assert selectable_rows(table, 4, 2, 64).tolist() == [0, 1]
    table = table_of("a", "b")
    table.misses_in_a_row[0], table.last_missed_round[0] = 300, 1000
    assert [selectable_rows(table, t, 1, 8).tolist() for t in (1008, 1009)] == [[1], [0, 1]]
    assert selectable_rows(table, 1001, 1, 0).tolist() == [0, 1]


def test_without_rests_a_dead_client_is_still_not_first_choice() -> None:
    """400 rounds of `ucb`: only its estimate and its exploration decide."""
    table, t = table_of("dead", "a", "b", "c"), 0
    for t in range(1, 401):
        context = Context(t, table, table.eligible(), np.random.default_rng(t))
        chosen = [table.ids[row] for row in Ucb(2).select(None, context).rows]
        answers = {i: 0.06 for i in chosen if i != "dead"}
        table.apply_round(played(t, answers, {"dead": 2.0} if "dead" in chosen else {}))
    assert table.chosen[table.row_of["dead"]] < 0.25 * t


@pytest.mark.parametrize("family", ["pareto", "lognormal"])
@pytest.mark.parametrize("deadline_s", [0.25, 2.0])
def test_the_bias_of_censoring_stays_within_its_bound(family: str, deadline_s: float) -> None:
    laws = families()[family]
    found = bias({client_id: laws[client_id] for client_id in (min(laws), max(laws))}, deadline_s)
    assert found["encloses_truth"]
    assert -found["bound"] <= found["bias"] <= 0
    assert found["bias_of_answers_alone"] > 0


def test_a_dead_client_costs_neither_regret_nor_waits_as_it_does_where_misses_are_ignored() -> None:
    """Against a genie that knows the uncensored latencies, over 600 rounds with a deadline of 2 s."""
    laws = families()["pareto, one dead"]
    setting = Setting(laws, dict.fromkeys(laws, 100), server_of(0.05, round_timeout_s=2.0))
    ours = simulate(Ucb(4), setting, 600)
    ignorant = simulate(IgnoresMisses(4), replace(setting, server=replace(setting.server, rest_rounds_max=0)), 600)
    assert ours.missed.any()
    assert ours.chosen[-1] < 0.05 * 600
    assert ignorant.chosen[-1] > 0.9 * 600
    assert ours.genie_regret[-1] < 0.8 * ignorant.genie_regret[-1]
    assert ours.total_latency_s[-1] < 0.8 * ignorant.total_latency_s[-1]


def test_a_simulated_miss_costs_its_release_and_the_deadline_which_else_changes_nothing() -> None:
    ids = [f"c{k}" for k in range(3)]
    laws = dict(zip(ids, map(Constant, (9.0, 2.0, 0.1)), strict=True))  # c1 answers at the very deadline
    setting = Setting(laws, dict.fromkeys(ids, 100), server_of(0.05, Budget(10.0, 0.1), round_timeout_s=2.0))
    result = simulate(All(3), setting, 4)
    assert result.total_latency_s.tolist() == [2.0, 4.0, 6.0, 8.0]
    assert result.missed.tolist() == [4, 4, 0]
    _, in_time, kind = attempt_end(np.array([0.1, 2.0]), needed=2, deadline_s=2.0)
    assert (in_time.tolist(), kind) == ([True, False], "timeout")
    assert result.max_epsilon_spent[-1] == pytest.approx(Budget(10.0, 0.1).spent(4))
    of_six = {f"c{k}": Constant(0.1 * (k + 1)) for k in range(6)}
    # 0.55 s lies below the slowest client's latency, 0.6 s: such a setting is simulated round by round, not compiled.
    servers = [server_of(0.05, round_timeout_s=deadline_s) for deadline_s in (math.inf, 0.7, 0.55)]
    settings = [Setting(of_six, dict.fromkeys(of_six, 100), server) for server in servers]
    free, bound, slow = (simulate_fast(Pause(2), setting, 50) for setting in settings)
    np.testing.assert_array_equal(free.regret, bound.regret)
    assert slow.missed is not None
    assert slow.missed[-1] == slow.chosen[-1] > 0
