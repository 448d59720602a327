"""The forecast of when the clients' budgets end."""

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pausefl_process.events import Notice, ProgressEvent
from pausefl_proto.budget import Budget
from pausefl_server.clients import ClientTable
from pausefl_server.model.staleness import Asynchronous
from pausefl_server.monitoring.progress import ProgressReporter
from pausefl_server.records import LogEvent, Observation, RoundRecord, Timing
from pausefl_server.rounds.budget_exhaustion import budgets_end, rounds_left, too_few_left
from pausefl_server.rounds.choosing import places_to_fill
from pausefl_server.rounds.messages import Lost, Pinged
from pausefl_server.selection.policies.everyone import All
from pausefl_server.settings import PrivacySettings
from pausefl_server.state import RunState
from rigs.coordinator import BUDGET, CoordinatorRig
from rigs.settings import server_settings


def test_equal_shares_last_as_long_as_there_is_budget() -> None:
    assert rounds_left(np.full(30, 70), np.full(30, 10), m=5) == 420
    assert rounds_left(np.full(4, 70), np.full(4, 10), m=5) == 0


def test_whoever_is_chosen_more_is_used_up_sooner() -> None:
    """Two fast clients take every round: they last 20 rounds, then two others play the 10 that are left to them."""
    assert rounds_left(np.array([20, 20, 10]), np.array([99, 99, 0]), m=2) == 20
    assert rounds_left(np.array([20, 20, 20]), np.array([10, 10, 10]), m=1) == 60
    # Chosen 4 times and never, so 5 to 1: after 2 rounds of each of these one is used up, after 10 the other.
    assert rounds_left(np.array([10, 10]), np.array([4, 0]), m=2) == 6
    assert rounds_left(np.array([10, 10]), np.array([4, 0]), m=1) == 20


def test_the_end_of_budgets_is_forecast_from_the_round_that_is_over() -> None:
    """Ten releases each, of which two are had: equal clients, one of them retired, play eight rounds more."""
    table = ClientTable()
    table.apply_events([LogEvent("joined", client_id, n_examples=1) for client_id in "abc"], round=1)
    table.released[:], table.chosen[:], table.retired[:] = [2, 2, 10], [5, 5, 9], [False, False, True]
    budget = Budget(BUDGET.epsilon_budget, BUDGET.eta, BUDGET.epsilon(10))
    assert budgets_end(table, budget, 7, m=2) == 7 + 8
    table.chosen[:2] = [4, 0]  # so 5 to 1: one is used up after 9.6 rounds of one client each, the other after 16
    assert budgets_end(table, budget, 7, m=1) == 7 + 16
    assert budgets_end(table, budget, 7, m=2) == 7 + int((8 + 8 / 5) / 2)
    assert budgets_end(table, BUDGET, 7, m=2) is None


def test_a_run_ends_with_too_few_clients_only_where_budgets_are_the_cause() -> None:
    table = ClientTable()
    table.apply_events([LogEvent("joined", client_id, n_examples=1) for client_id in "ab"], round=1)
    assert too_few_left(table, m=3) == ""
    table.retired[0] = True
    assert too_few_left(table, m=1) == ""
    assert too_few_left(table, m=2) == "privacy budgets: 1 of 2 clients may still release, a round takes m = 2"


def test_a_step_whose_updates_end_the_budgets_hands_out_as_the_last_one_does() -> None:
    """Three releases each: of four clients, two have one left; a step takes three updates."""
    budget = Budget(BUDGET.epsilon_budget, BUDGET.eta, BUDGET.epsilon(3))
    privacy, steps = PrivacySettings(budget, "coordinate", "agreed"), Asynchronous(concurrency=4, buffer=3)
    settings = server_settings(8, rounds=9, privacy=privacy, is_asynchronous=True, asynchronous=steps)
    table = ClientTable()
    table.apply_events([LogEvent("joined", client_id, n_examples=1) for client_id in "abcd"], round=1)
    table.released[:] = [2, 2, 1, 0]
    assert places_to_fill(settings, table, 7, at_work=1, lacks=2, answered=[0]) == 3
    assert places_to_fill(settings, table, 7, at_work=1, lacks=1, answered=[0, 1]) == 0
    assert places_to_fill(settings, table, 9, at_work=1, lacks=2, answered=[0]) == 1


@given(st.lists(st.integers(0, 40), min_size=1, max_size=12), st.integers(1, 4), st.randoms(use_true_random=False))
def test_the_forecast_never_promises_more_than_any_policy_could_play(left: list[int], m: int, random: object) -> None:
    chosen = np.array([random.randint(0, 30) for _ in left])  # type: ignore[attr-defined]
    forecast = rounds_left(np.array(left), chosen, m)
    # The best any policy can do is to take those who have most left.
    remaining, played = sorted(left, reverse=True), 0
    while len(remaining) >= m and remaining[m - 1] > 0:
        remaining = sorted([r - 1 for r in remaining[:m]] + remaining[m:], reverse=True)
        played += 1
    assert 0 <= forecast <= played


def test_the_forecast_is_told_as_one_and_once_more_shortly_before() -> None:
    """A run may well play all its rounds."""
    said: list[ProgressEvent] = []
    reporter = ProgressReporter(server_settings(8, rounds=40), said.append)
    for t in range(1, 41):
        record = RoundRecord(t, 1, (), None, (), (), 1.0, 0.0, 0.0, "")
        reporter.round_committed(record, RunState.start(All(5), 1), budgets_end=39)
    expected = (
        "privacy budgets are expected to be used up about round 39 of 40: fewer than m = 5 clients would then be left"
    )
    assert [event.message for event in said if isinstance(event, Notice)] == [expected] * 2


def test_noise_that_swamps_the_model_is_announced_in_its_round_and_once() -> None:
    said: list[ProgressEvent] = []
    reporter = ProgressReporter(server_settings(8, rounds=40), said.append)
    for t, epsilon in enumerate((1.0, 0.41, 0.39, 0.3), start=1):
        seen = Observation("a", Timing(1.0), 1.0, 10, t, epsilon, epsilon)
        record = RoundRecord(t, 1, ("a",), None, (seen,), (), 1.0, 0.0, 0.0, "")
        reporter.round_committed(record, RunState.start(All(5), 1))
    (notice,) = [event.message for event in said if isinstance(event, Notice)]
    assert notice.startswith("round 3: noise is 5.1 times the clip, and grows; ")


async def test_newcomers_without_budget_have_the_rows_that_a_replay_gives_them(tmp_path: Path) -> None:
    """d has gone and b comes with its budget spent: no round begins until a comes, and both are its newcomers."""
    floor = PrivacySettings(Budget(BUDGET.epsilon_budget, BUDGET.eta, BUDGET.epsilon(5)), "coordinate", "agreed")
    async with CoordinatorRig(tmp_path, All(1), rounds=2, minimum_clients=1, privacy=floor).running() as r:
        d = await r.join_and_work("d")
        await r.join("b", manual=True, released=5)
        await d.answer(1)
        d.stop()
        lost = Lost(d, "it said goodbye", may_return=False)
        for message in (lost, Pinged("b", 0.1), Pinged("b", 0.1)):
            await r.coordinator.ask(message)
        a = await r.join("a", manual=True)
        await a.play(2)
        await r.played()  # which compares with a replay
        assert r.coordinator.state.table.ids == ["d", "a", "b"]
