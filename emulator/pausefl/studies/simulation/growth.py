"""Fits how fast a regret grows."""

import numpy as np

from pausefl_proto.arrays import FloatArray, IntArray

ROUNDING = 1e-9
"""The greatest rounding error of running sums over many rounds, relative to the regret or, if that is less, to 1."""

NO_REGRET = "no regret: it takes rounds of m clients, and a genie that weighs as the policy does"
"""The message for a simulation without regret."""


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
        residual = regret - a - b * f
        scatter = float(((regret - regret.mean()) ** 2).sum())
        r_squared = 1 - float((residual**2).sum()) / scatter
        fits[name] = {"a": float(a), "b": float(b), "r_squared": r_squared}
    return fits
