"""The policies that PAUSE and Fed-TS are compared with."""

import dataclasses
import math

import numpy as np
import pytest

from pausefl_server.clients import ClientTable
from pausefl_server.records import LogEvent, Miss, Observation
from pausefl_server.selection import Policy
from pausefl_server.selection.observed import PolicyObservation, PolicyRound
from pausefl_server.selection.policies.clustered import Clustered
from pausefl_server.selection.policies.fastest import Fastest
from pausefl_server.selection.policies.oort import Oort, scaled_utility
from pausefl_server.selection.policies.pow_d import PowD
from pausefl_server.selection.terms import losses
from rigs.policies import IDS, M, Play, context_of, true_mean_s

# --- baselines


def test_fastest_takes_the_least_mean_latencies() -> None:
    assert Play(Fastest(M)).one_round().chosen == IDS[:M]


@pytest.mark.parametrize("sizes", [[500, 300, 100, 50, 30, 20], [1] * 6])
def test_clustered_sampling_is_unbiased_by_data_size(sizes: list[int]) -> None:
    """Each client is drawn m|D_k|/|D| times on average; one with more than |D|/m in some round twice."""
    table = ClientTable(seed=1, examples_max=1000)
    table.apply_events([LogEvent("joined", i, n_examples=n) for i, n in zip(IDS, sizes, strict=False)], round=1)
    drawn = np.zeros(6)
    rounds = 4000
    for t in range(1, rounds + 1):
        selection = Clustered(3).select(None, context_of(table, t))
        np.add.at(drawn, selection.rows, 1)
        assert selection.weights is not None
        assert selection.weights.tolist() == [1 / 3] * 3
    # The variance of a count is below its mean: five standard deviations.
    expected = 3 * np.array(sizes) / sum(sizes) * rounds
    assert (np.abs(drawn - expected) < 5 * np.sqrt(expected)).all()


def test_power_of_choice_is_the_papers_algorithm() -> None:
    """Candidates by data size, the greatest losses of them, averaged uniformly: against plain numpy."""
    play = Play(PowD(M, d=6))
    table = play.table
    table.n_examples[:] = 100 * np.arange(1, 14)
    table.last_loss[:] = np.random.default_rng(1).random(13)
    for t in range(1, 30):
        context = context_of(table, t)
        rows = np.argsort(table.tie_key)
        p = table.n_examples[rows] / table.n_examples.sum()
        candidates = rows[context_of(table, t).rng.choice(13, 6, replace=False, p=p)]
        greatest = candidates[np.argsort(table.last_loss[candidates])[-M:]]
        selection = play.policy.select(None, context)
        assert selection.rows.tolist() == sorted(greatest.tolist())
        assert selection.weights is not None
        assert selection.weights.tolist() == [1 / M] * M


def test_power_of_choice_draws_candidates_by_data_size() -> None:
    """With d = m all candidates are taken, so the draw is seen as it is: with m = 1 its shares are p_k."""
    table = Play(PowD(1, d=1)).table
    table.n_examples[:] = [1000, *[100] * 12]
    taken = np.bincount([int(PowD(1, d=1).select(None, context_of(table, t)).rows[0]) for t in range(1000)])
    assert abs(taken[0] / 1000 - 1000 / 2200) < 5 * np.sqrt(0.25 / 1000)


def test_power_of_choice_takes_m_clients_where_d_is_less() -> None:
    assert len(PowD(M, d=1).select(None, context_of(Play(PowD(M)).table, 1)).rows) == M


def test_power_of_choice_asks_for_the_greatest_loss() -> None:
    play = Play(PowD(M, d=13))
    play.table.last_loss[:] = np.arange(13.0)
    play.table.last_loss[3] = np.nan
    chosen = PowD(M, d=13).select(None, context_of(play.table, 1)).rows
    assert chosen.tolist() == [3, 10, 11, 12]


def test_a_loss_that_was_not_reported_counts_as_the_median_of_those_that_can_be_chosen() -> None:
    table = Play(PowD(M)).table
    table.chosen[:] = 1
    table.last_loss[:5] = [np.nan, 1.0, 2.0, 3.0, 50.0]
    context = context_of(table, 2, eligible=np.arange(4))
    assert losses(context, np.array([0, 3])).tolist() == [2.0, 3.0]


def test_no_client_is_chosen_for_ever_because_it_reports_no_loss() -> None:
    """One client answers, but reports no loss: it gains nothing by it."""

    class LossOf3Kept(Play):
        def observation(self, client_id: str, t: int) -> Observation:
            observation = super().observation(client_id, t)
            return dataclasses.replace(observation, loss=None) if client_id == IDS[3] else observation

    policies: list[Policy] = [PowD(M, d=13), Oort(M, cutoff=0.0, known_speeds=False)]
    for policy in policies:
        chosen = LossOf3Kept(policy).rounds(120).table.chosen
        assert chosen[3] < 2 * np.median(chosen), (policy, chosen)


@pytest.mark.parametrize(("least", "explored"), [(0.0, [4, 2, 1, 0, 0, 0, 0]), (0.5, [4, 2, 2, 2, 2, 1, 0])])
def test_oort_explores_less_and_less(least: float, explored: list[int]) -> None:
    """Of M = 4 and 13 clients, with a share that halves down to the least one."""
    play = Play(Oort(M, exploration=1.0, exploration_decay=0.5, exploration_min=least)).rounds(7)
    seen: set[str] = set()
    for record, new in zip(play.records, explored, strict=True):
        assert len(set(record.chosen) - seen) == new
        assert len(record.chosen) == M
        seen |= set(record.chosen)


def test_oort_explores_more_than_its_share_where_too_few_clients_are_known() -> None:
    assert len(Play(Oort(M, exploration=0.0, exploration_min=0.0)).one_round().chosen) == M


def test_oort_draws_in_proportion_to_utility_among_those_within_the_cutoff() -> None:
    """A loss below 0 counts as 0: else it would make the utilities of all others equal."""
    policy = Oort(1, exploration=0.0, exploration_min=0.0, cutoff=0.5, known_speeds=False)
    table = Play(policy).table
    table.n_examples[:] = 100
    table.last_loss[:] = [1.0, 0.6, 0.4, -1e9, *[0.0] * 9]
    state = dataclasses.replace(policy.start(), last_round=np.ones(13, np.int64))
    taken = [int(policy.select(state, context_of(table, 1, seed)).rows[0]) for seed in range(500)]
    assert set(taken) == {0, 1}
    assert taken.count(0) / 500 == pytest.approx(1 / 1.6, abs=5 * math.sqrt(0.25 / 500))


@pytest.mark.parametrize("known_speeds", [True, False])
def test_oort_explores_by_size_and_speed(known_speeds: bool) -> None:
    """Unseen clients' shares against plain numpy: size times (T/duration)², T the median of the mean latencies."""
    policy = Oort(1, exploration=1.0, known_speeds=known_speeds)
    table = Play(policy).table
    table.n_examples[:] = 100
    table.n_examples[:3] = [400, 200, 300]
    duration_s = np.array([true_mean_s(i) for i in table.ids])
    middle_s = np.sort(duration_s)[6]
    speed = np.where(duration_s > middle_s, (middle_s / duration_s) ** 2, 1.0) if known_speeds else np.ones(13)
    rounds = 3000
    taken = np.bincount(
        [int(policy.select(policy.start(), context_of(table, t)).rows[0]) for t in range(1, rounds + 1)], minlength=13
    )
    # Among five times as many as are drawn; ties for the fifth place go by the tie key.
    promise = table.n_examples * speed
    tied = np.lexsort((table.tie_key, -promise))[:5]
    expected = np.zeros(13)
    expected[tied] = promise[tied] / promise[tied].sum() * rounds
    assert (np.abs(taken - expected) <= 5 * np.sqrt(expected)).all()


def test_oort_scales_utilities_as_its_authors_code() -> None:
    """Min-max over the clients seen, clipped at the value 95 % up the sorted list, plus the temporal term."""
    utility = np.random.default_rng(2).gamma(2.0, 50.0, 40)
    last_round = np.arange(1, 41)
    low, high, clip = 0.999 * min(utility), max(utility), sorted(utility)[38]
    expected = [
        (min(u, clip) - low) / (high - low) + (0.1 * math.log(50) / last) ** 0.5
        for u, last in zip(utility, last_round, strict=True)
    ]
    assert scaled_utility(utility, last_round, 50) == pytest.approx(np.array(expected))
    # The unit of the loss does not matter, nor does an equal utility of all.
    assert scaled_utility(1e3 * utility, last_round, 50) == pytest.approx(np.array(expected))
    assert scaled_utility(np.full(3, 7.0), np.ones(3, np.int64), 1) == pytest.approx(np.ones(3))


def test_oort_is_told_speeds_unless_they_are_unknown() -> None:
    table = Play(Oort(M)).table
    with pytest.raises(ValueError, match="oort needs the true mean latencies, or known_speeds = false"):
        Oort(M).select(Oort(M).start(), context_of(table, 1, oracle=None))
    blind = Oort(M, known_speeds=False)
    assert Oort(M).needs_oracle
    assert not blind.needs_oracle
    assert len(blind.select(blind.start(), context_of(table, 1, oracle=None)).rows) == M


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


def test_oorts_pacer_takes_a_round_and_its_failed_attempts_for_one() -> None:
    policy, table = Oort(1, pacer_window=2, known_speeds=False), ClientTable(1, 0.05)
    table.apply_events([LogEvent("joined", "a", n_examples=1)], 1)

    def percentile(*gained: float | None) -> float:
        """After rounds that gained so much; None: an attempt at the next one that failed."""
        state, t = policy.start(), 1
        for loss in gained:
            answers = () if loss is None else (PolicyObservation("a", 1.0, 1, 0.0, 0.0, loss),)
            misses = (Miss("a", "timeout", 1.0, 1.0),) if loss is None else ()
            state = policy.observe(state, PolicyRound(t, ("a",), answers, misses), table)
            t += loss is not None
        return state.percentile

    assert percentile(5.0, 5.0, 5.0, 5.0) == 50.0
    assert percentile(5.0, 5.0, 1.0, 1.0, 0.5) == 60.0, "it thinks again after a whole window"
    assert percentile(5.0, 5.0, 5.0, None, None, None, 5.0) == 50.0
    assert percentile(5.0, 5.0, 1.0, 1.0) == percentile(5.0, 5.0, 1.0, None, None, 1.0) == 60.0
