"""Fed-TS and similar policies: drifts, thresholds, posteriors and sizes, on updates whose harm is known."""

import dataclasses
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pausefl_proto.wire import Vector
from pausefl_server.records import LogEvent
from pausefl_server.selection import Policy
from pausefl_server.selection.drift import leave_one_out_drifts, path_drifts, two_means
from pausefl_server.selection.newcomers import NewcomerPolicy
from pausefl_server.selection.observed import seen_by_policy
from pausefl_server.selection.policies.chr import Chr
from pausefl_server.selection.policies.fed_ts import DriftUcb, FedTs, Posteriors
from rigs.newcomers import ORIGINALS, POISONED, RELEVANT, SIZE, NewcomerPlay, update_of, with_newcomers

WEIGHTS = st.none() | st.floats(0.1, 50)


def vectors(n: int, seed: int) -> list[Vector]:
    return list(np.random.default_rng(seed).standard_normal((n, SIZE), np.float32))


@given(st.integers(1, 6), st.integers(0, 5), WEIGHTS, st.integers(0, 1000))
def test_the_drift_is_equation_8_taken_literally(n: int, others: int, weight: float | None, seed: int) -> None:
    originals, newcomers = vectors(n, seed), vectors(others, seed + 1)
    epsilon = n if weight is None else weight
    w_o = np.mean(np.array(originals, np.float64), axis=0)
    expected = []
    for newcomer in newcomers:
        w_oi = (np.sum(np.array(originals, np.float64), axis=0) + epsilon * np.float64(newcomer)) / (n + epsilon)
        expected.append(float(((w_oi - w_o) ** 2).sum()))
    assert path_drifts(originals, newcomers, weight) == pytest.approx(expected, rel=1e-5)


@given(st.integers(2, 7), WEIGHTS, st.integers(0, 1000))
def test_leaving_one_out_is_the_drift_of_a_newcomer_among_the_others(n: int, weight: float | None, seed: int) -> None:
    originals = vectors(n, seed)
    expected = [path_drifts(originals[:j] + originals[j + 1 :], [originals[j]], weight)[0] for j in range(n)]
    assert leave_one_out_drifts(originals, weight) == pytest.approx(expected, rel=1e-4)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=30), st.tuples(st.floats(0, 100), st.floats(0, 100)))
def test_two_means_ends_at_means_of_what_is_nearest(values: list[float], start: tuple[float, float]) -> None:
    low, high = two_means(values, start)
    assert low <= high
    points = np.array(values)
    near_high = np.abs(points - high) < np.abs(points - low)
    for centroid, cluster in ((low, points[~near_high]), (high, points[near_high])):
        if cluster.size:
            assert centroid == pytest.approx(cluster.mean())


def test_two_means_starts_where_it_is_told() -> None:
    """With three groups of values, the result depends on the start."""
    values = [0.0, 0.0, 10.0, 10.0, 20.0, 20.0]
    assert two_means(values, (0.0, 20.0)) == (5.0, 20.0)  # 10 lies between: a tie goes to the low one
    assert two_means(values, (0.0, 11.0)) == (0.0, 15.0)


def test_without_newcomers_the_originals_are_sampled() -> None:
    play = NewcomerPlay(FedTs(3), {1: ORIGINALS}).rounds(40)
    assert all(len(set(r.chosen)) == 3 for r in play.records)
    assert set(play.times_chosen()) == {"original"}
    assert (play.table.chosen > 5).all()


def test_without_originals_the_newcomers_are_chosen() -> None:
    play = with_newcomers(FedTs(3, newcomer_share=0.5)).rounds(5)
    play.table.connected[: len(ORIGINALS)] = False
    record = play.one_round()
    assert len(record.chosen) == 4
    assert not any(o.statistics for o in record.observations)
    play.rounds(2)


def test_everyone_weighs_the_same_whatever_their_data() -> None:
    play = with_newcomers(FedTs(4, newcomer_share=0.5)).rounds(6)
    assert (play.records[-1].weights, play.records[-1].details) == ((1 / 8,) * 8, {"originals": 4.0, "newcomers": 4.0})


def test_every_insertion_has_a_size_of_its_own() -> None:
    joins = {1: ORIGINALS, 3: [f"early-{k}" for k in range(6)], 5: [f"late-{k}" for k in range(4)], 6: ["single-0"]}
    play = NewcomerPlay(FedTs(3, newcomer_share=0.4), joins).rounds(8)
    counts = [Counter(i.split("-")[0] for i in record.chosen) for record in play.records]
    assert (counts[1], counts[3]) == ({"original": 3}, {"original": 3, "early": 2})
    assert counts[7] == {"original": 3, "early": 2, "late": 2, "single": 1}


def test_a_newcomer_that_comes_back_is_still_of_its_insertion() -> None:
    play = with_newcomers(FedTs(2, newcomer_share=1.0)).rounds(5)
    play.table.apply_events([LogEvent("left", RELEVANT[0])], 6)
    assert RELEVANT[0] not in play.one_round().chosen
    play.table.apply_events([LogEvent("joined", RELEVANT[0], n_examples=5)], 7)
    assert RELEVANT[0] in play.one_round().chosen
    assert set(play.table.joined_round.tolist()) == {1, 4}


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("policy", [FedTs(4), FedTs(4, drift_weight=1.0), DriftUcb(4), Chr(4)])
def test_relevant_newcomers_are_chosen_far_more_often_than_poisoned_ones(policy: Policy, seed: int) -> None:
    chosen = with_newcomers(policy, seed=seed).rounds(100).times_chosen()
    assert chosen["relevant"] >= 4 * chosen["poisoned"]


def test_the_weight_of_a_newcomer_changes_no_choice() -> None:
    """It multiplies all drifts of a round, and the threshold with them (eqs. (8) and (9))."""
    light, heavy = (with_newcomers(FedTs(4, drift_weight=weight)).rounds(60) for weight in (1.0, 4.0))
    assert light.times_chosen() == heavy.times_chosen()
    assert [light.posterior(c) for c in RELEVANT] == [heavy.posterior(c) for c in RELEVANT]


def test_rounds_without_an_answer_teach_nothing() -> None:
    play = with_newcomers(FedTs(4), silent=ORIGINALS).rounds(10)
    assert {play.posterior(i) for i in (*RELEVANT, *POISONED)} == {(1, 1)}
    play = with_newcomers(FedTs(4), silent=POISONED).rounds(10)
    assert {play.posterior(i) for i in POISONED} == {(1, 1)}


@pytest.mark.parametrize("policy", [FedTs(4, search_after=3), FedTs(4, guard="leave-one-out"), DriftUcb(4), Chr(4)])
def test_what_is_learnt_is_a_fold_over_the_log(policy: Policy) -> None:
    """Folding the records of a run gives the state and the selections of the run."""
    play, again = with_newcomers(policy).rounds(30), with_newcomers(policy)
    for record in play.records:
        assert tuple(again.table.ids[row] for row in again.select().rows) == record.chosen
        again.table.apply_round(record)
        again.state = policy.observe(again.state, seen_by_policy(record), again.table)
        again.records.append(record)
    assert again.select().rows.tolist() == play.select().rows.tolist()


# --- the threshold (eqs. (7) to (10)) and its decisions


def rating(**parameters: Any) -> NewcomerPlay:
    """A play whose newcomers have joined and are not rated yet."""
    play = with_newcomers(FedTs(2, **parameters)).rounds(3)
    play.select()
    return play


def test_drifts_are_small_up_to_the_mean_of_the_centroids() -> None:
    play = rating()
    assert play.after_drifts(relevant_0=1.0, relevant_1=3.0, poisoned_0=9.0, poisoned_1=11.0).centroids == (2.0, 10.0)
    assert [play.posterior(i) for i in (*RELEVANT[:2], *POISONED[:2])] == [(2, 1), (2, 1), (1, 2), (1, 2)]
    # Started from (2, 10): 7 is nearer to 10.
    play.after_drifts(relevant_0=1.0, poisoned_0=7.0, poisoned_1=13.0)
    assert play.state.centroids == (1.0, 10.0)
    assert [play.posterior(i) for i in (*RELEVANT[:2], *POISONED[:2])] == [(3, 1), (2, 1), (1, 3), (1, 3)]


def test_a_drift_of_exactly_the_threshold_is_small_and_a_single_one_moves_no_centroid() -> None:
    play = rating()
    play.after_drifts(relevant_0=2.0, poisoned_0=6.0)
    assert play.after_drifts(relevant_0=0.0, relevant_1=4.0, poisoned_0=6.0).centroids == (2.0, 6.0)
    assert play.posterior(RELEVANT[1]) == (2, 1)
    assert play.after_drifts(relevant_0=5.0).centroids == (2.0, 6.0)


@pytest.mark.parametrize("drifts", [{"relevant_0": 5.0}, {"relevant_0": 5.0, "poisoned_0": 5.0}])
def test_a_single_drift_and_equal_ones_are_successes(drifts: dict[str, float]) -> None:
    play = rating()
    play.after_drifts(**drifts)
    assert {play.posterior(i.replace("_", "-")) for i in drifts} == {(2, 1)}
    play.after_drifts(relevant_0=5.0, poisoned_0=9.0)
    assert play.posterior(POISONED[0])[1] == 2


def test_centroids_are_kept_when_all_drifts_fall_on_one_side() -> None:
    """Fed-TS, Section V-C: "the new centroids will be used for the next initialization"."""
    play = rating()
    assert play.after_drifts(relevant_0=1.0, poisoned_0=100.0).centroids == (1.0, 100.0)
    assert play.after_drifts(relevant_0=2.0, relevant_1=4.0).centroids == (3.0, 100.0)
    assert [play.posterior(i) for i in RELEVANT[:2]] == [(3, 1), (2, 1)]
    assert play.after_drifts(poisoned_0=80.0, poisoned_1=90.0).centroids == (3.0, 85.0)
    assert [play.posterior(i) for i in POISONED[:2]] == [(2, 2), (2, 1)]


def test_centroids_restart_after_an_empty_cluster_if_asked_to() -> None:
    play = rating(centroids="restart")
    assert play.after_drifts(relevant_0=1.0, poisoned_0=100.0).centroids == (1.0, 100.0)
    assert play.after_drifts(relevant_0=0.1, poisoned_0=10.0).centroids is None
    assert play.posterior(POISONED[0]) == (2, 2)
    assert play.after_drifts(relevant_0=0.1, poisoned_0=10.0).centroids == (0.1, 10.0)
    assert play.posterior(POISONED[0]) == (2, 3)


def test_rescaled_centroids_follow_the_originals_own_drifts() -> None:
    """Training has shrunk all drifts to a tenth. The poisoned client is still recognised, also among poisoned ones."""
    play = rating(centroids="rescaled")
    play.after_drifts(original_0=2.0, original_1=4.0, relevant_0=1.0, poisoned_0=100.0)
    state = play.after_drifts(original_0=0.3, original_2=0.3, relevant_0=0.1, relevant_1=0.3)
    assert state.centroids == pytest.approx((0.2, 10.0))
    state = play.after_drifts(original_1=0.3, relevant_0=0.1, poisoned_0=10.0)
    assert state.centroids == pytest.approx((0.1, 10.0))
    assert [play.posterior(i) for i in (RELEVANT[0], POISONED[0])] == [(4, 1), (1, 3)]
    assert play.after_drifts(poisoned_0=10.0, poisoned_1=14.0).centroids == pytest.approx((0.1, 12.0))  # no original
    assert play.posterior(POISONED[1]) == (1, 2)


# --- the size search (Alg. 3)


def test_the_size_is_searched_once_everyone_was_chosen_more_than_l_times() -> None:
    play = rating(newcomer_share=1.0, search_after=2)
    newcomers = play.table.rows((*RELEVANT, *POISONED))
    successes, failures = np.zeros((2, len(play.table)), np.int64)
    failures[newcomers[:3]] = 1  # s = 1 < f = 2: irrelevant by the printed sign; s = f counts as relevant
    play.state = dataclasses.replace(play.state, successes=successes, failures=failures)
    play.table.chosen[newcomers] = 3
    play.table.chosen[newcomers[5]] = 2
    assert len(play.select().rows) == 2 + 8
    play.table.chosen[newcomers[5]] = 3
    assert len(play.select().rows) == 2 + 5
    failures[newcomers] = 9
    assert len(play.select().rows) == 2 + 1  # p never falls below 1


def test_the_search_finds_the_number_of_relevant_newcomers() -> None:
    play = with_newcomers(FedTs(4, newcomer_share=1.0, search_after=5)).rounds(60)
    assert [r.details["newcomers"] for r in play.records[4:8]] == [8.0] * 4
    assert [r.details["newcomers"] for r in play.records[-20:]] == [4.0] * 20


def test_two_means_lets_about_half_of_only_harmful_newcomers_in() -> None:
    """A known weakness of the printed rule: one half of the newcomers always looks better."""
    play = with_newcomers(FedTs(4, newcomer_share=1.0), POISONED).rounds(60)
    rated = np.array([play.posterior(i) for i in POISONED]) - 1
    assert 0.25 < rated[:, 0].sum() / rated.sum() < 0.75
    assert all("poisoned" in " ".join(admitted) for admitted in play.admitted[4:])


def test_the_guard_keeps_harmful_newcomers_out_and_lets_relevant_ones_in() -> None:
    guarded = FedTs(4, newcomer_share=1.0, guard="leave-one-out")
    play = with_newcomers(guarded, POISONED).rounds(60)
    assert (np.array([play.posterior(i) for i in POISONED]) - 1)[:, 0].sum() == 0
    assert all(not i.startswith("poisoned") for admitted in play.admitted for i in admitted)
    assert all(len(admitted) == 4 for admitted in play.admitted)
    play = with_newcomers(guarded, RELEVANT).rounds(60)
    let_in = sum(i.startswith("relevant") for admitted in play.admitted[4:] for i in admitted)
    # A newcomer that resembles the four originals has a greater drift than all of them once in five rounds.
    assert 0.65 < let_in / (4 * 56) < 0.95


@pytest.mark.parametrize("originals", [0, 1])
def test_without_two_originals_the_guard_lets_no_newcomer_in_and_learns_nothing(originals: int) -> None:
    """Chosen originals may drop out. In a round without them, no newcomer may be admitted."""
    policy = FedTs(2, guard="leave-one-out")
    play = with_newcomers(policy, POISONED).rounds(8)
    answered = [*ORIGINALS[:originals], *POISONED]
    rows = play.table.rows(answered)
    inspection = policy.inspect(play.table, rows, [update_of(client_id, 9) for client_id in answered])
    assert inspection is not None
    assert inspection.admitted.tolist() == [True] * originals + [False] * len(POISONED)
    record = play.records[-1]
    seen = {o.client_id: o for o in record.observations}
    observations = tuple(
        dataclasses.replace(seen.get(client_id, record.observations[0]), client_id=client_id, statistics=found)
        for client_id, found in zip(answered, inspection.statistics, strict=True)
    )
    record = dataclasses.replace(record, observations=observations)
    assert policy.observe(play.state, seen_by_policy(record), play.table) == play.state
    with pytest.raises(ValueError, match=r"needs m of at least 2"):
        FedTs(1, guard="leave-one-out")


# --- UCB and CHR


@pytest.mark.parametrize("policy", [DriftUcb(2), Chr(2)])
def test_unseen_newcomers_go_first(policy: Policy) -> None:
    play = with_newcomers(policy).rounds(5)
    assert play.table.chosen[play.table.rows((*RELEVANT, *POISONED))].tolist() == [1] * 8


@pytest.mark.parametrize("policy", [DriftUcb(2), Chr(2)])
@pytest.mark.parametrize("seed", range(5))
def test_newcomers_are_ranked_by_ucb1_and_by_mean_cosine(policy: NewcomerPolicy, seed: int) -> None:
    play, rng = with_newcomers(policy).rounds(3), np.random.default_rng(seed)
    play.select()
    rows, chosen = play.table.rows((*RELEVANT, *POISONED)), rng.integers(1, 30, 8)
    play.table.chosen[rows] = chosen
    gained = np.zeros(len(play.table), np.int64)
    gained[rows] = rng.integers(0, chosen + 1)
    if isinstance(policy, DriftUcb):
        play.state = Posteriors(gained, 2 * gained)
        index = gained[rows] / chosen + np.sqrt(2 * np.log(4) / chosen)
    else:
        play.state, index = gained.astype(np.float64), gained[rows] / chosen
    for p in range(1, 9):
        play.policy = dataclasses.replace(policy, newcomer_share=p / 8)
        assert np.sort(index[np.isin(rows, play.select().rows)]) == pytest.approx(np.sort(index)[-p:])


def test_chr_measures_the_cosine() -> None:
    def update(client_id: str, t: int) -> Vector:
        if client_id.startswith("original"):
            return np.ones(SIZE, np.float32)
        return np.float32({RELEVANT[0]: 7.0, POISONED[0]: -0.1}.get(client_id, 0.0)) * np.ones(SIZE, np.float32)

    play = with_newcomers(Chr(2, newcomer_share=1.0)).rounds(3)
    play.update = update
    found = {o.client_id: o.statistics.get("cosine") for o in play.one_round().observations}
    assert [found[i] for i in (RELEVANT[0], POISONED[0], RELEVANT[1])] == pytest.approx([1.0, -1.0, 0.0])
    assert all(found[i] is None for i in found if i.startswith("original"))
