"""How the server checks a client's releases: its hello, answers and updates; and the forecast of spent budgets."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pausefl_client.privacy.mechanism import Mechanism, NumpyLaplace, entropy_rng
from pausefl_process.events import Notice, ProgressEvent
from pausefl_proto.budget import Budget, Release
from pausefl_proto.encoding import FLOAT32, Float16
from pausefl_proto.errors import WireError
from pausefl_proto.privacy_unit import PrivacyUnit
from pausefl_proto.wire import Vector
from pausefl_server.model.norm_bound import TAIL_PROBABILITY, NormBound
from pausefl_server.model.staleness import Asynchronous
from pausefl_server.monitoring.progress import ProgressReporter
from pausefl_server.records import Observation, Ping, RoundRecord, Timing
from pausefl_server.release_checks import check_ledger, check_release, is_plausible
from pausefl_server.rounds.budget_exhaustion import budgets_end, rounds_left, too_few_left
from pausefl_server.rounds.choosing import free_places
from pausefl_server.rounds.messages import Lost, Register
from pausefl_server.selection.policies.baselines import All
from pausefl_server.selection.policies.fed_ts import FedTs
from pausefl_server.settings import PrivacySettings
from pausefl_server.state import RunState
from rigs.coordinator import BUDGET, CoordinatorRig, MakeRig
from rigs.log import table_of
from rigs.settings import server_settings


async def test_what_a_stranger_claimed_keeps_the_ids_holder_neither_out_nor_poor(rig: MakeRig) -> None:
    async with rig(rounds=1).playing() as r:
        await r.lose(await r.join("b", manual=True, released=2500))
        await r.join_all("ab")
    assert [o.client_id for o in r.store.rounds()[0].observations] == ["a", "b"]
    assert r.spent("b") == (1, BUDGET.spent(1))


async def test_what_a_stranger_claimed_in_a_round_before_does_not_keep_the_ids_holder_out(rig: MakeRig) -> None:
    async with rig(rounds=2, minimum_clients=1).playing() as r:
        a = await r.join_and_work("a")
        await r.lose(await r.join("b", manual=True, released=2500))
        await a.answer(1)
        await a.next_job()
        assert r.spent("b")[0] == 2500
        await r.join("b", manual=True)
        await a.answer(2)
    assert r.spent("b") == (0, 0.0)


async def test_a_client_that_comes_back_counts_no_more_than_a_release_a_job(rig: MakeRig) -> None:
    async with rig(rounds=1).playing("a") as r:
        await r.lose(await r.join_and_work("b"))
        with pytest.raises(WireError, match="counts 3 releases, at most 2 are possible since it first joined"):
            await r.join("b", released=3)
        await (await r.join("b", manual=True, released=1)).play(1)
    assert r.spent("b") == (2, BUDGET.spent(2))


async def test_a_client_that_comes_back_again_and_again_counts_no_more_either(rig: MakeRig) -> None:
    async with rig(rounds=1).running() as r:
        for released in (0, 1):
            await r.lose(await r.join("b", released=released))
        with pytest.raises(WireError, match="counts 2 releases, at most 1 are possible since it first joined"):
            await r.join("b", released=2)


@pytest.mark.slow
async def test_an_owner_is_believed_and_held_to_what_it_said(rig: MakeRig) -> None:
    async with rig(rounds=2, minimum_clients=1).playing() as r:
        a, b = await r.join("a", manual=True), r.peer("b", manual=True, released=0)
        await r.coordinator.ask(Register(b.hello(), b, is_owner=True))
        await a.next_job()
        await r.lose(b)
        owner = r.peer("b", manual=True, released=50)
        await r.coordinator.ask(Register(owner.hello(), owner, is_owner=True))
        await a.answer(1)
        await a.next_job()  # the round before is in the log
        await r.lose(owner)
        with pytest.raises(WireError, match="counts 49 releases, the server knows of 50"):
            await r.join("b", released=49)
        await a.answer(2)
    assert r.spent("b") == (50, BUDGET.spent(50))


async def test_a_client_that_has_played_a_round_counts_once(rig: MakeRig) -> None:
    async with rig(rounds=2, clients=3).playing() as r:
        a, _ = await r.join("a", manual=True), await r.join("b")
        await a.play(1)
        await a.next_job()
        await r.join("c")
        await a.answer(2)


async def test_no_more_clients_join_than_the_run_has(rig: MakeRig) -> None:
    async with rig(rounds=1, clients=2, minimum_clients=2).playing() as r:
        await r.lose(await r.join("z", manual=True))
        await r.join("a")
        with pytest.raises(WireError, match=r"this run has all its clients\.count = 2 clients"):
            await r.join("b")
        await r.join("z")


async def test_all_clients_of_a_run_may_come_back_to_its_next_server(rig: MakeRig) -> None:
    for rounds in (1, 2):
        async with rig(rounds=rounds, clients=2, privacy=None).played_by("ab") as r:
            assert len(r.store.rounds()) == rounds


PLAN = Budget(10.0, 0.04)


def reported(i: int) -> Release:
    return Release(i, PLAN.epsilon(i), PLAN.spent(i))


def test_a_release_that_fits_is_taken() -> None:
    check_release(reported(3), PLAN, proven=2, used=2)
    check_release(reported(3), PLAN, proven=3, used=2)  # known from a hello, its bytes come only now
    check_release(reported(9), PLAN, proven=2, used=2)  # some were spent where the server could not see
    check_release(Release(), None, proven=0, used=0)


@pytest.mark.parametrize(
    ("release", "budget", "message"),
    [
        (reported(1), None, "in a run without privacy"),
        (Release(), PLAN, "without a private release"),
        (reported(4), PLAN, "counts 4 releases, the server knows of 5"),
        (reported(5), PLAN, "sends release 5 once more"),
        (reported(20_000), PLAN, "made release 20000, for which its budget leaves nothing"),  # its epsilon is 0
        (reported(6), replace(PLAN, epsilon_floor=PLAN.epsilon(5)), "made release 6, for which"),
        (Release(6, PLAN.epsilon(7), PLAN.spent(6)), PLAN, "spent epsilon .* on release 6, the schedule says"),
        (Release(6, PLAN.epsilon(6), PLAN.spent(5)), PLAN, "has spent .* after 6 releases, the schedule says"),
    ],
)
def test_a_release_that_does_not_fit_is_rejected(release: Release, budget: Budget | None, message: str) -> None:
    with pytest.raises(WireError, match=message):
        check_release(release, budget, proven=5, used=5)


def test_a_ledger_older_than_the_log_or_beyond_its_schedule_is_refused() -> None:
    check_ledger(3, PLAN.spent(3), PLAN, proven=3)
    check_ledger(0, 0.0, None, proven=0)
    with pytest.raises(WireError, match="counts 2 releases, the server knows of 3: restore the ledger"):
        check_ledger(2, PLAN.spent(2), PLAN, proven=3)
    with pytest.raises(WireError, match="the schedule says"):
        check_ledger(3, PLAN.spent(2), PLAN, proven=0)
    floor = replace(PLAN, epsilon_floor=PLAN.epsilon(5))
    check_ledger(7, PLAN.spent(7), floor, proven=0)  # made under another floor: the client will be retired
    with pytest.raises(WireError, match="counts 4294967295 releases, more than its schedule has"):
        check_ledger(2**32 - 1, PLAN.spent(2**32 - 1), PLAN, proven=0)


def test_what_an_unused_update_cost_is_believed_where_the_schedule_says_so() -> None:
    assert is_plausible(reported(3), PLAN)
    assert not is_plausible(replace(reported(3), epsilon_spent=PLAN.spent(4)), PLAN)
    assert not is_plausible(Release(), PLAN), "it released nothing"
    assert not is_plausible(reported(3), None)


UNITS: tuple[PrivacyUnit, ...] = ("coordinate", "vector")


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("d", [1, 30, 20_000])
@pytest.mark.parametrize("epsilon", [0.01, 1.5, 1e6])
def test_what_the_mechanism_makes_is_taken(unit: PrivacyUnit, d: int, epsilon: float) -> None:
    mechanism, bound = Mechanism(unit, 0.3), NormBound(unit, 0.3)
    greatest: Vector = np.full(d, 1e6, np.float32)  # clipped to the bound itself
    for _ in range(20):
        bound.check(mechanism.privatise(greatest, epsilon, NumpyLaplace(entropy_rng())), epsilon)


@pytest.mark.parametrize("unit", UNITS)
def test_one_value_that_no_noise_makes_is_rejected(unit: PrivacyUnit) -> None:
    update = np.zeros(1000, np.float32)
    update[7] = 9e29
    with pytest.raises(WireError, match="has a value of 9e"):
        NormBound(unit, 0.3).check(update, 0.01)


@pytest.mark.parametrize("unit", UNITS)
def test_many_values_that_are_possible_alone_are_rejected_together(unit: PrivacyUnit) -> None:
    bound, d = NormBound(unit, 0.3), 10_000
    greatest, total = bound.limits(d, 1.0)
    assert greatest * d > total
    with pytest.raises(WireError, match="has an L1 norm of"):
        bound.check(np.full(d, 0.9 * greatest, np.float32), 1.0)


@pytest.mark.parametrize(
    ("unit", "value", "norm", "scale"), [("coordinate", 0.15, 0.15 * 50, 0.3 / 2), ("vector", 0.3, 0.3, 0.6 / 2)]
)
def test_bounds_are_those_of_clip_and_noise(unit: PrivacyUnit, value: float, norm: float, scale: float) -> None:
    """What a clip of 0.3 leaves of one value and of all 50, and what Laplace noise of this scale adds at ε = 2."""
    s = math.log(2 / TAIL_PROBABILITY)
    expected = value + scale * math.log(2 * 50 / TAIL_PROBABILITY), norm + scale * (50 + math.sqrt(100 * s) + s)
    assert NormBound(unit, 0.3).limits(50, 2.0) == pytest.approx(expected, rel=2e-5)


def test_rounding_on_the_way_widens_the_bound_of_a_sum_by_each_value() -> None:
    bound, encoding, d = NormBound("coordinate", 0.3), Float16(), 50
    greatest, total = bound.limits(d, 2.0)
    limit = np.float32(total / d + encoding.step * greatest)
    bound.check(np.full(d, 0.9999 * limit, np.float32), 2.0, encoding)
    for value, travels in ((0.9999 * limit, FLOAT32), (1.0001 * limit, encoding)):
        with pytest.raises(WireError, match="has an L1 norm of"):
            bound.check(np.full(d, value, np.float32), 2.0, travels)


def test_the_bounds_are_no_wider_than_their_probability_asks_for() -> None:
    """The noise alone exceeds each bound with at most half the probability, and would often exceed half the bound."""
    scale, d = 2.0, 1000
    greatest, total = NormBound("coordinate", 2.0).limits(d, 1.0)
    least = scale * math.log(d / TAIL_PROBABILITY)
    assert least <= greatest <= 1.2 * least
    assert total <= 1.4 * (d + d * scale)


def test_equal_shares_last_as_long_as_there_is_budget_and_whoever_is_chosen_more_is_used_up_sooner() -> None:
    """Two fast clients play every round and last 20 rounds. Then a single client has budget left, too few for m = 2."""
    assert [rounds_left(np.full(n, 70), np.full(n, 10), m=5) for n in (30, 4)] == [420, 0]
    assert rounds_left(np.array([20, 20, 10]), np.array([99, 99, 0]), m=2) == 20
    assert rounds_left(np.array([20, 20, 20]), np.array([10, 10, 10]), m=1) == 60
    # Chosen 4 and 0 times, so 5 to 1 from now on. After 2 such turns one has no release left, after 10 the other.
    assert rounds_left(np.array([10, 10]), np.array([4, 0]), m=2) == 6
    assert rounds_left(np.array([10, 10]), np.array([4, 0]), m=1) == 20


def test_the_end_of_budgets_is_forecast_from_the_round_that_is_over() -> None:
    """Of ten releases each, two are made. Equal clients play eight rounds more; a third one is retired."""
    table = table_of(*"abc")
    table.released[:], table.chosen[:], table.retired[:] = [2, 2, 10], [5, 5, 9], [False, False, True]
    budgets = BUDGET, Budget(BUDGET.epsilon_budget, BUDGET.eta, BUDGET.epsilon(10))
    endless, settings = (server_settings(8, privacy=PrivacySettings(b, "coordinate", "agreed")) for b in budgets)
    one, two = (RunState(All(m), table, None, round=7) for m in (1, 2))
    assert (budgets_end(two, settings), budgets_end(two, endless)) == (7 + 8, None)
    table.chosen[:2] = [4, 0]  # so 5 to 1: one is used up after 9.6 rounds of one client each, the other after 16
    assert (budgets_end(one, settings), budgets_end(two, settings)) == (7 + 16, 7 + int((8 + 8 / 5) / 2))
    table.chosen[:2] = [7, 7]  # both were asked in every round, whatever m is
    assert budgets_end(one, settings) == 7 + 8


def test_a_run_ends_with_too_few_clients_only_where_budgets_are_the_cause() -> None:
    state = RunState(All(1), table_of(*"ab"), None)
    assert too_few_left(state, m=3) == ""
    state.table.retired[0] = True
    assert too_few_left(state, m=1) == ""
    assert too_few_left(state, m=2) == "privacy budgets: 1 of 2 clients may still release, and 2 are needed"
    state.table.joined_round[1] = 2  # b, a newcomer, has a budget left; m of Fed-TS counts a alone
    assert too_few_left(replace(state, policy=FedTs(1)), m=1).startswith("privacy budgets: 0 of 1 originals may still")


def test_a_step_whose_updates_end_the_budgets_hands_out_as_the_last_one_does() -> None:
    """Budgets allow three releases. Of four clients, two have one release left. A step needs three updates."""
    budget = Budget(BUDGET.epsilon_budget, BUDGET.eta, BUDGET.epsilon(3))
    privacy, steps = PrivacySettings(budget, "coordinate", "agreed"), Asynchronous(concurrency=4, buffer=3)
    settings = server_settings(8, rounds=9, privacy=privacy, is_asynchronous=True, asynchronous=steps)
    table = table_of(*"abcd")
    table.released[:] = [2, 2, 1, 0]
    state = RunState(All(4), table, None)
    found = (
        free_places(settings, state, step, [2], np.array([3]), lacks, answered, jobs=4)
        for step, lacks, answered in ((7, 2, [0]), (7, 1, [0, 1]), (9, 2, [0]))
    )
    assert [free and free.count for free in found] == [3, None, 1]


@given(st.lists(st.integers(0, 40), min_size=1, max_size=12), st.integers(1, 4), st.randoms(use_true_random=False))
def test_the_forecast_never_promises_more_than_any_policy_could_play(left: list[int], m: int, random: object) -> None:
    chosen = np.array([random.randint(0, 30) for _ in left])  # type: ignore[attr-defined]  # it is a Random
    forecast = rounds_left(np.array(left), chosen, m)
    # The best possible policy chooses the clients with most releases left.
    remaining, played = sorted(left, reverse=True), 0
    while len(remaining) >= m and remaining[m - 1] > 0:
        remaining = sorted([r - 1 for r in remaining[:m]] + remaining[m:], reverse=True)
        played += 1
    assert 0 <= forecast <= played


def test_the_forecast_is_told_once_as_one() -> None:
    """It is only a forecast: a run may play all its rounds."""
    said: list[ProgressEvent] = []
    reporter = ProgressReporter(server_settings(8, rounds=40), said.append)
    for t in range(1, 41):
        record = RoundRecord(t, 1, (), None, (), (), 1.0)
        reporter.round_committed(record, RunState.start(All(5), 1), budgets_end=39)
    expected = (
        "privacy budgets are expected to be used up about round 39 of 40: fewer than 5 clients would then be left"
    )
    assert [event.message for event in said if isinstance(event, Notice)] == [expected]


def test_noise_that_swamps_the_model_is_announced_in_its_round_and_once() -> None:
    said: list[ProgressEvent] = []
    reporter = ProgressReporter(server_settings(8, rounds=40), said.append)
    for t, epsilon in enumerate((1.0, 0.41, 0.39, 0.3), start=1):
        seen = Observation("a", Timing(1.0), 1.0, 10, t, epsilon, epsilon)
        record = RoundRecord(t, 1, ("a",), None, (seen,), (), 1.0)
        reporter.round_committed(record, RunState.start(All(5), 1))
    (notice,) = [event.message for event in said if isinstance(event, Notice)]
    assert notice.startswith("round 3: noise is 5.1 times the clip, and grows; ")


async def test_newcomers_without_budget_have_the_rows_that_a_replay_gives_them(tmp_path: Path) -> None:
    """d has left and b joins with its budget spent. No round begins until a joins; then a and b are its newcomers."""
    floor = PrivacySettings(Budget(BUDGET.epsilon_budget, BUDGET.eta, BUDGET.epsilon(5)), "coordinate", "agreed")
    async with CoordinatorRig(tmp_path, All(1), rounds=2, minimum_clients=1, privacy=floor).running() as r:
        d = await r.join_and_work("d")
        await r.join("b", manual=True, released=5)
        await d.answer(1)
        d.stop()
        for message in (Lost(d, "it said goodbye", may_return=False), Ping("b", 0.1), Ping("b", 0.1)):
            await r.coordinator.ask(message)
        await (await r.join("a", manual=True)).play(2)
        await r.played()  # compares the state with a replay
        assert r.coordinator.state.table.ids == ["d", "a", "b"]


async def test_newcomers_of_whom_none_can_be_asked_get_their_rows_together_with_later_ones(rig: MakeRig) -> None:
    """The log knows them as newcomers of the same round, whose rows are sorted by client."""
    floored = PrivacySettings(replace(BUDGET, epsilon_floor=BUDGET.epsilon(3)), "coordinate", "agreed")
    async with rig(All(1), rounds=2, minimum_clients=1, privacy=floored).playing() as r:
        b = await r.join_and_work("b")
        await r.join("z", manual=True, released=3)
        r.coordinator.offer(b.update(1, b.release()))
        r.coordinator.offer(Lost(b, "its connection broke"))
        r.peers.remove(b)  # it receives no goodbye
        for _ in range(2):  # the second one when the run waits for a client that can be asked
            await r.coordinator.ask(Ping("z", 0.001))
        await r.join("a")
    assert r.coordinator.state.table.ids == ["b", "a", "z"]
    assert [record.chosen for record in r.store.rounds()] == [("b",), ("a",)]
