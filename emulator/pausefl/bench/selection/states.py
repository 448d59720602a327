"""Client tables as they look in the middle of a run, for `bench selection`."""

from collections.abc import Iterator

import numpy as np

from pausefl_proto.arrays import FloatArray, IntArray
from pausefl_proto.budget import Budget
from pausefl_proto.draws import generator
from pausefl_server.clients import ClientTable
from pausefl_server.selection import Context
from pausefl_server.selection.policies.pause import Pause

TAU_MIN_S = 0.05
BUDGET = Budget(100.0, 0.04)


def table_of(clients: int) -> ClientTable:
    """A table of connected clients with equal data, built column by column: hashing 10⁶ ids takes seconds."""
    rng = generator(1, "bench", "ids", clients)
    ids = [f"client-{k:07}" for k in range(clients)]
    return ClientTable(
        tau_min_s=TAU_MIN_S,
        ids=ids,
        row_of={client_id: row for row, client_id in enumerate(ids)},
        n_examples=np.full(clients, 100),
        connected=np.ones(clients, np.bool_),
        tie_key=rng.integers(2**62, size=clients),
    )


def after_rounds(clients: int, m: int) -> Iterator[Context]:
    """Three rounds on PAUSE's own trajectory: 16 rounds after everyone had been chosen once, about 3 and 10 times."""
    for typical in (1, 3, 10):
        rng = generator(1, "bench", "history", clients, typical)
        mean_s = published_means_s(clients)
        table = table_of(clients)
        counts = 1 + rng.poisson(typical - 1, clients)
        first_round = 1 + -(-int(counts.sum()) // m)
        # The mean of n draws of 1/τ, near enough: its spread shrinks with √n.
        noisy_s = np.maximum(mean_s + rng.normal(0, 0.05, clients) / np.sqrt(counts), TAU_MIN_S)
        _count(table, np.arange(clients), counts, counts / noisy_s)
        for t in range(first_round, first_round + 17):
            context = Context(
                round=t,
                table=table,
                eligible=table.eligible(),
                rng=generator(1, "bench", t),
                epsilon_budget=BUDGET.epsilon_budget,
            )
            if t == first_round + 16:
                yield context  # last, since the table goes on changing behind a context
            else:
                rows = Pause(m).select(None, context).rows
                latency_s = np.maximum(mean_s[rows] + rng.normal(0, 0.05, m), TAU_MIN_S)
                _count(table, rows, np.ones(m, np.int64), 1 / latency_s)


def published_means_s(clients: int) -> FloatArray:
    """Mean latencies of the published fast and slow halves."""
    half = clients // 2
    k = np.arange(clients)
    fast = TAU_MIN_S + (0.2 - TAU_MIN_S) * (k + 1) / half
    return np.where(k < half, fast, 0.7 + 0.2 * (k + 1 - half) / (clients - half))


def _count(table: ClientTable, rows: IntArray, times: IntArray, inverse_latency_sum: FloatArray) -> None:
    """Let these rows have taken part so many times more."""
    for column in (table.chosen, table.measured, table.released):
        column[rows] += times
    table.inverse_latency_sum[rows] += inverse_latency_sum
    table.epsilon_spent[rows] = -BUDGET.epsilon_budget * np.expm1(-BUDGET.eta * table.released[rows])
