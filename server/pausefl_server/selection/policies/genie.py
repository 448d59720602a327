"""The genie: PAUSE's choice if the latency laws are known (PAUSE v2, eq. (10))."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pausefl_proto.arrays import FloatArray, IntArray
from pausefl_server.selection.base import Context
from pausefl_server.selection.latency import Recent
from pausefl_server.selection.policies.pause import Choice, Pause
from pausefl_server.selection.terms import rows_in_tie_order


@dataclass(frozen=True)
class Genie(Pause):
    """Chooses as PAUSE does, with the true μ_k = τ_min E[1/τ_k] in place of ucb. Regret is measured against it.

    The genie need not explore. So unseen clients have no precedence, and ζ, discount and window have no effect.
    """

    needs_oracle: ClassVar[bool] = True

    def choice(self, state: Recent | None, context: Context) -> Choice:
        return self._among(state, context, rows_in_tie_order(context))

    def _index(self, state: Recent | None, context: Context, rows: IntArray) -> FloatArray:
        if context.oracle is None:
            raise ValueError("genie needs the true mean latencies")
        known, ids = context.oracle.mean_inverse_latency, context.table.ids
        inverse_s = np.minimum([known[ids[row]] for row in rows.tolist()], 1e6)  # latencies are at least 1 µs
        tau_min_s = context.effective_tau_min_s
        if not np.isfinite(tau_min_s):  # "auto", but nothing was measured yet: use the fastest client's mean
            tau_min_s = 1.0 / inverse_s.max()
        return np.minimum(tau_min_s * inverse_s, 1.0)
