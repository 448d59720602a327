"""How fast a regret grows."""

import numpy as np

from pausefl_proto.arrays import FloatArray, IntArray

ROUNDING = 1e-9
"""How much of a regret, or of 1 where that is more, running sums of many rounds may be off."""

NO_REGRET = "no regret: it takes rounds of m clients, and a genie that weighs as the policy does"
"""Said where a simulation has none."""


def growth_fits(rounds: IntArray, regret: FloatArray) -> dict[str, dict[str, float]]:
    """Least-squares fits regret ≈ a + b·f(n) over the recorded rounds of the last nine tenths, f = ln n, √n and n.

    Empty with fewer than three such rounds, and where the regret does not change in them but for rounding.
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
