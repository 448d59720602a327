"""The policies that PAUSE and Fed-TS are compared with."""

import dataclasses

import numpy as np
import pytest

from pausefl_server.clients import ClientTable
from pausefl_server.records import LogEvent
from pausefl_server.selection.clustered import Clustered
from pausefl_server.selection.fastest import Fastest
from pausefl_server.selection.oort import Oort
from pausefl_server.selection.pow_d import PowD
from rigs.policies import IDS, M, Play, context_of

# --- baselines


def test_fastest_takes_the_least_mean_latencies() -> None:
    assert Play(Fastest(M)).one_round().chosen == IDS[:M]


def test_clustered_sampling_is_unbiased_by_data_size() -> None:
    """Each client is drawn m|D_k|/|D| times on average; one with more than |D|/m in some round twice."""
    table = ClientTable(seed=1)
    sizes = np.array([500, 300, 100, 50, 30, 20])
    table.apply_events([LogEvent("joined", i, n_examples=int(n)) for i, n in zip(IDS, sizes, strict=False)], round=1)
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
