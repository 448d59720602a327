"""Running sums of a simulation, recorded at some of its rounds, and fits of how fast a regret grows."""

from dataclasses import dataclass

import numpy as np

from pausefl_proto.arrays import FloatArray, IntArray
from pausefl_server.clients import ClientTable

ROUNDING = 1e-9
"""The greatest rounding error of running sums over many rounds, relative to the regret or, if that is less, to 1."""

NO_REGRET = "no regret: it takes rounds of m clients, and a genie that weighs as the policy does"
"""The message for a simulation without regret."""


@dataclass(frozen=True)
class SimulationResult:
    """Curves at the recorded rounds, (n,), and totals. Regret is NaN once the size of a chosen set is not m."""

    client_ids: tuple[str, ...]
    round: IntArray
    """The recorded rounds, ascending. The last one is the last round that was played."""
    regret: FloatArray
    """Σ r(G_t) − r(S_t) so far (eq. (15)), with the latencies as drawn."""
    genie_regret: FloatArray
    """The regret in the genie's objective (eq. (10)), with min μ instead of min τ_min/τ. It never falls."""
    reward: FloatArray
    """Σ r(S_t, t) so far (eq. (9))."""
    total_latency_s: FloatArray
    """The sum over rounds of the greatest latency (eq. (3)); a miss counts with the deadline."""
    max_epsilon_spent: FloatArray
    """The greatest ε that any client has spent; 0 without privacy."""
    chosen: IntArray
    """(K,) how often each client was chosen, in the order of client_ids."""
    missed: IntArray
    """(K,) how often each client missed the deadline."""
    cluster_penalty_s: float = 0.0
    """The sum of R2's δ_τ terms; it is not part of total_latency_s."""


def recorded_rounds(rounds: int) -> IntArray:
    """The rounds to record: all up to 400, else about 200 linearly and 200 logarithmically spaced, and the last one."""
    spaced = np.concatenate((np.geomspace(1, rounds, 200), np.linspace(1, rounds, 200)))
    return np.arange(1, rounds + 1) if rounds <= 400 else np.unique(np.rint(spaced).astype(np.int64))


class Curves:
    """Adds up the rounds of a simulation, and records the sums at `recorded_rounds` and at the last played round."""

    def __init__(self, rounds: int) -> None:
        self._recorded = recorded_rounds(rounds)
        self._kept = frozenset(self._recorded.tolist())
        self._sums = np.zeros(4)
        self._rows: dict[int, tuple[float, ...]] = {0: (0.0,) * 5}  # by round: the recorded ones, and the last so far

    def pieces(self, block: FloatArray, first_round: int) -> list[FloatArray]:
        """The block of rounds, cut after each recorded round, so that `add` is called at every one of them."""
        cuts = self._recorded - first_round + 1
        return [piece for piece in np.split(block, cuts[(cuts > 0) & (cuts < len(block))]) if len(piece)]

    def add(self, last_round: int, gained: FloatArray, max_epsilon_spent: float) -> None:
        """Add the next n rounds, up to `last_round`. gained, (n, 4): regret, genie regret, reward, latency by round."""
        self._sums = np.concatenate((self._sums[None], gained)).sum(axis=0)
        if (before := next(reversed(self._rows))) not in self._kept:
            del self._rows[before]
        self._rows[last_round] = (*self._sums, max_epsilon_spent)

    def result(self, table: ClientTable, missed: IntArray, cluster_penalty_s: float = 0.0) -> SimulationResult:
        """The result so far. `missed`, (K,) or longer, is how often each client missed the deadline, by table row."""
        regret, genie_regret, reward, latency_s, spent = np.array([*self._rows.values()]).T
        return SimulationResult(
            client_ids=tuple(table.ids),
            round=np.array([*self._rows], np.int64),
            regret=regret,
            genie_regret=genie_regret,
            reward=reward,
            total_latency_s=latency_s,
            max_epsilon_spent=spent,
            chosen=table.chosen.copy(),
            cluster_penalty_s=cluster_penalty_s,
            missed=missed[: len(table)],
        )


def growth_fits(rounds: IntArray, regret: FloatArray) -> dict[str, dict[str, float]]:
    """Least-squares fits regret ≈ a + b·f(n) with f = ln n, √n and n: a, b and r_squared by the name of f.

    Only the recorded rounds in the last nine tenths of the simulation are used. Empty with fewer than three of them, or
    if the regret in them changes by no more than rounding.
    """
    late = (rounds > rounds[-1] / 10) & np.isfinite(regret)
    n, regret = rounds[late].astype(np.float64), regret[late]
    if len(n) < 3 or np.ptp(regret) <= ROUNDING * max(1.0, float(np.abs(regret).max())):
        return {}
    fits = {}
    for name, f in {"ln n": np.log(n), "sqrt n": np.sqrt(n), "n": n}.items():
        b, a = np.polyfit(f, regret, 1)
        fits[name] = {"a": float(a), "b": float(b), "r_squared": float(np.corrcoef(f, regret)[0, 1] ** 2)}
    return fits
