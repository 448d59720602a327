"""Running sums of a simulation, kept at some of its rounds."""

from dataclasses import dataclass

import numpy as np

from pausefl_proto.arrays import FloatArray, IntArray
from pausefl_server.clients import ClientTable


@dataclass(frozen=True)
class SimulationResult:
    """Curves at the recorded rounds, (n,), and totals. Regret is NaN where a set's size is not m."""

    client_ids: tuple[str, ...]
    round: IntArray
    """The recorded rounds, ascending; the last one is the last that was played."""
    regret: FloatArray
    """Σ r(G_t) − r(S_t) so far (eq. (15)), realised."""
    genie_regret: FloatArray
    """The same in the objective the genie maximises (eq. (10)), min μ in place of min τ_min/τ: never falls."""
    reward: FloatArray
    """Σ r(S_t, t) so far (eq. (9))."""
    total_latency_s: FloatArray
    """Σ over rounds of the greatest latency (eq. (3)); a miss costs the deadline."""
    max_epsilon_spent: FloatArray
    """The greatest leakage of any client; 0 without privacy."""
    chosen: IntArray
    """(K,) how often each client was chosen, in the order of client_ids."""
    cluster_penalty_s: float = 0.0
    """Σ of R2's δ_τ terms, apart from total_latency_s."""
    missed: IntArray | None = None
    """(K,) how often each client missed the deadline; None where none was passed."""


def recorded_rounds(rounds: int) -> IntArray:
    """Every round of a short run, else some 200 linearly and 200 logarithmically spaced; the last one among them."""
    spaced = np.concatenate((np.geomspace(1, rounds, 200), np.linspace(1, rounds, 200)))
    return np.arange(1, rounds + 1) if rounds <= 400 else np.unique(np.rint(spaced).astype(np.int64))


class Curves:
    """Running sums, kept at the recorded rounds and at the last one that is played."""

    def __init__(self, rounds: int) -> None:
        self._recorded = recorded_rounds(rounds)
        self._sums, self._next = np.zeros(4), 0
        self._rounds: list[int] = []
        self._rows: list[FloatArray] = []
        self._last_round, self._last_row = 0, np.zeros(5)

    def pieces(self, block: FloatArray, first_round: int) -> list[FloatArray]:
        """A block of rounds cut behind every recorded round, so that `add` meets each."""
        cuts = self._recorded - first_round + 1
        return [piece for piece in np.split(block, cuts[(cuts > 0) & (cuts < len(block))]) if len(piece)]

    def add(self, last_round: int, gained: FloatArray, max_epsilon_spent: FloatArray) -> None:
        """Count the rounds up to `last_round`: (n, 4) regret, genie regret, reward, latency."""
        self._sums += gained.sum(axis=0)
        self._last_round, self._last_row = last_round, np.concatenate((self._sums, max_epsilon_spent))
        if last_round == self._recorded[self._next]:
            self._keep_last()
            self._next += 1

    def result(self, table: ClientTable, missed: IntArray, cluster_penalty_s: float = 0.0) -> SimulationResult:
        """The sums so far, with how often each client chosen missed the deadline, (K,) or more, by the table's row."""
        if self._last_round not in self._rounds[-1:]:  # ended early, between two recorded rounds
            self._keep_last()
        regret, genie_regret, reward, latency_s, spent = np.array(self._rows).T
        return SimulationResult(
            client_ids=tuple(table.ids),
            round=np.array(self._rounds, np.int64),
            regret=regret,
            genie_regret=genie_regret,
            reward=reward,
            total_latency_s=latency_s,
            max_epsilon_spent=spent,
            chosen=table.chosen.copy(),
            cluster_penalty_s=cluster_penalty_s,
            missed=missed[: len(table)] if missed.any() else None,
        )

    def _keep_last(self) -> None:
        self._rounds.append(self._last_round)
        self._rows.append(self._last_row)
