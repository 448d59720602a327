"""PNS against a few lines of plain numpy: which updates are left out, and what their clients lose."""

import numpy as np

from pausefl_proto.wire import Vector
from pausefl_server.selection.observed import PolicyObservation, PolicyRound
from pausefl_server.selection.policies.pns import Pns, optimal_subset
from rigs.policies import IDS, Play, context_of

ONE = np.ones(3, np.float32)


def test_pns_leaves_out_updates_that_oppose_the_others() -> None:
    rng = np.random.default_rng(7)
    for _ in range(50):
        updates = list(rng.standard_normal((6, 8)).astype(np.float32) + rng.uniform(0, 2))
        inside = list(range(6))

        def aligned(rows: list[int], updates: list[Vector] = updates) -> float:
            mean = np.mean([updates[i] for i in rows], axis=0)
            return float(sum(updates[i] @ mean for i in rows))

        while len(inside) > 4:
            worst = max(inside, key=lambda i: aligned([j for j in inside if j != i]))
            if aligned([j for j in inside if j != worst]) <= aligned(inside):
                break
            inside.remove(worst)
        assert np.flatnonzero(optimal_subset(updates, 4)).tolist() == inside


def test_pns_keeps_updates_that_oppose_no_other() -> None:
    assert optimal_subset([0 * ONE] * 5, 4).all()


def test_what_several_clients_lose_in_a_round_goes_to_the_others() -> None:
    policy, table = Pns(4), Play(Pns(4)).table
    table.chosen[:] = 10
    left_out = tuple(PolicyObservation(i, 0.1, 100, 0.0, 0.0, statistics={"excluded": 1.0}) for i in IDS[:2])
    weight = policy.observe(policy.start(), PolicyRound(1, IDS[:2], left_out, ()), table).weight
    np.testing.assert_allclose(weight, [0.36] * 2 + [1 + 2 * 0.64 / 11] * 11)


def test_pns_lowers_the_probability_of_clients_left_out() -> None:
    policy, play = Pns(4), Play(Pns(4))
    play.table.chosen[:] = 10
    weight, excluded = np.ones(len(IDS)), np.zeros(len(IDS))
    state = policy.start()
    for t in range(1, 6):
        observed = tuple(
            PolicyObservation(IDS[k], 0.1, 100, 0.0, 0.0, statistics={"excluded": float(k == 2)}) for k in (1, 2, 3)
        )
        state = policy.observe(state, PolicyRound(t, IDS[1:4], observed, ()), play.table)
        excluded[2] += 1
        lost = weight[2] * min((excluded[2] / 10 + 0.7) ** 2, 1)
        weight[2] -= lost
        weight[np.arange(len(IDS)) != 2] += lost / (len(IDS) - 1)
        np.testing.assert_allclose(state.weight, weight, atol=1e-12)
    assert weight[2] == 0
    rounds = [policy.select(state, context_of(play.table, t)).rows for t in range(1, 200)]
    assert not any(2 in rows for rows in rounds)
    assert policy.inspect(play.table, np.arange(3), [ONE, ONE, -ONE]).admitted.sum() == 3  # ⌈0.8 · 3⌉
