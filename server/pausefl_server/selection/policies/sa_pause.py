"""SA-PAUSE: the choice of PAUSE by simulated annealing (PAUSE v2, Algorithm 3), for any Φ_g and Φ_p."""

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from pausefl_proto.arrays import FloatArray, IntArray
from pausefl_proto.errors import PauseflError
from pausefl_proto.number_types import Positive, Whole
from pausefl_server.search import Problem, SetValue, pivot_and_fill
from pausefl_server.selection.base import Context
from pausefl_server.selection.policies.pause import Choice, Pause
from pausefl_server.selection.set_values import Recomputed, Weighted, factory_named, made

OMEGA = 1e-6
"""ω of PAUSE v1, eq. (19). It keeps C above 0 if all users are alike; also for the printed formula with α = γ = 0."""


@dataclass(frozen=True)
class SaPause(Pause):
    """PAUSE with simulated annealing as its search: the published method for many clients, the only one for other Φ.

    The result is the best set seen, the start included. With `start_set = "exact"` it is therefore never worse than the
    optimum of R1, and equals PAUSE under R1. Published runs started from a random set. If the optimum is known (Φ are
    means, R1 or R2), the energy gap to it is logged every round.
    """

    neighbourhood: Literal["v2", "v1", "swap"] = "v2"
    """Allowed swaps. v2: one of the two users has the least ucb of its set; v1: the least ucb, g or p; swap: any."""
    start_set: Literal["exact", "random"] = "exact"
    """The first set. exact: the optimum under R1. random: a uniform draw, as published."""
    temperature: Literal["spread", "printed"] = "spread"
    """C, the scale of τ_j. spread: the range of energies on seen clients, v1, eq. (19). printed: v2, eq. (20)."""
    kappa: Positive = 10.0
    """κ, the divisor of C in the temperature. The paper uses 30 (v2, Section V-D)."""
    steps: Whole = 3000
    """The number of neighbours that a round inspects. A thousand take about 0.3 ms."""
    time_cap_s: float = math.inf
    """Annealing stops after this many seconds. With a cap, the same seed may give different sets."""
    phi_g: str = "mean"
    """Φ_g: "mean" (R1 or R2), "label_diversity" or "package.module:factory" (see set_values)."""
    phi_p: str = "mean"
    """Φ_p, with the same choices as `phi_g`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.time_cap_s > 0:
            raise ValueError(f"time_cap_s = {self.time_cap_s}: must be above 0")
        for name in ("phi_g", "phi_p"):
            if getattr(self, name) != "mean":
                try:
                    factory_named(getattr(self, name))
                except ValueError as error:
                    raise ValueError(f"{name} = {getattr(self, name)!r}: {error}") from error
        if self.reward == "R2" and self.phi_g != "mean":
            raise ValueError(f'phi_g = {self.phi_g!r}: must be "mean" under reward = "R2", which says what Φ_g is')

    @property
    def weighs_means(self) -> bool:
        """Whether both Φ are means over the set. If so, the optimum is known, and PAUSE's genie has this objective."""
        return self.phi_g == self.phi_p == "mean"

    def warm_up(self) -> None:
        """Load the compiled chain, and the exact search for the energy gap."""
        from pausefl_server.search import annealing

        super().warm_up()
        annealing.warm_up()

    @property
    def disclosures(self) -> frozenset[str]:
        """The clients' label histograms, if a Φ is label diversity."""
        return frozenset({"labels"} if "label_diversity" in (self.phi_g, self.phi_p) else ())

    def _search(self, choice: Choice, context: Context) -> tuple[IntArray, dict[str, float]]:
        from pausefl_server.search.annealing import Cooling, anneal, anneal_additive  # which loads numba

        choice, seen = choice.finite(), np.isfinite(choice.ucb)
        problem = Problem.of(choice.ucb, choice.value, choice.m, choice.forced)
        ucb, free = problem.ucb, problem.free
        axes = {"v2": (ucb,), "v1": (ucb, choice.g[free], choice.p[free]), "swap": ()}[self.neighbourhood]
        start = self._start_set(choice, free, context)
        cooling = Cooling(self._scale(choice, seen) / self.kappa, self.steps, self.time_cap_s)
        seed = int(context.rng.integers(2**63))
        if self.weighs_means:
            cluster, held = problem.clusters(choice.cluster)
            found, steps = anneal_additive(
                ucb, problem.value, start, axes, cooling, seed, context.clock, cluster, choice.marginal, held
            )
            positions = np.concatenate((choice.forced, free[found]))
            energy, optimum = choice.energy(positions), choice.energy(choice.exact())
            return positions, {"energy": energy, "optimum": optimum, "gap": optimum - energy, "steps": steps}
        value_of = self._set_value(choice, free, context)
        found, steps = anneal(ucb, value_of, start, axes, cooling, seed, context.clock)
        energy = float(ucb[found].min()) + value_of.reset(found)
        if not math.isfinite(energy):  # the chain cannot leave a set of energy NaN or inf
            raise PauseflError(f"selection.sa-pause: phi_g and phi_p sum to {energy}: must return finite numbers")
        return np.concatenate((choice.forced, free[found])), {"energy": energy, "steps": steps}

    def _start_set(self, choice: Choice, free: IntArray, context: Context) -> IntArray:
        """The first set as rows of the chain: indices into `free`."""
        if self.start_set == "random":
            return context.rng.choice(len(free), choice.m - len(choice.forced), replace=False).astype(np.int64)
        best = pivot_and_fill(choice.ucb, choice.value, choice.m, choice.forced)
        return np.flatnonzero(np.isin(free, best))

    def _set_value(self, choice: Choice, free: IntArray, context: Context) -> Weighted:
        """αΦ_g + γΦ_p as a `SetValue`, a sum of one part for each Φ."""
        no_penalty = np.zeros(1)
        parts: list[tuple[float, SetValue]] = []
        for weight, phi, term, marginal in (
            (self.alpha, self.phi_g, choice.g, choice.marginal),
            (self.gamma, self.phi_p, choice.p, no_penalty),
        ):
            if phi == "mean":
                of_mean = replace(choice, value=weight * term / choice.m, marginal=marginal)
                parts.append((1.0, Recomputed(of_mean.worth)))
            else:
                parts.append((weight, made(phi, context, choice.rows)))
        return Weighted(tuple(parts), free, choice.forced)

    def _scale(self, choice: Choice, seen: "np.ndarray[tuple[int], np.dtype[np.bool_]]") -> float:
        """C, which should exceed the energy differences between sets."""
        known = choice.ucb[seen] if seen.any() else np.zeros(1)
        m = min(choice.m, len(known))
        spread = float(np.sort(known)[-m] - known.min())
        if self.temperature == "printed":
            return spread + 2 * self.alpha + self.greatest_penalty + self.gamma + OMEGA
        candidates = seen if seen.any() else np.ones(len(seen), np.bool_)
        g, p = choice.g[candidates], choice.p[candidates]
        return spread + self.alpha * _spread_of_mean(g, choice.m) + self.gamma * _spread_of_mean(p, choice.m) + OMEGA


def _spread_of_mean(term: FloatArray, m: int) -> float:
    ordered = np.sort(term)
    return float(ordered[-m:].mean() - ordered[:m].mean())
