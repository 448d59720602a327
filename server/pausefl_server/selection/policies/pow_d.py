"""Power of choice (Cho, Wang and Joshi, AISTATS 2022): of d candidates, the m with the greatest loss."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from pausefl_proto.number_types import Count
from pausefl_server.selection.base import Context, Policy, Selection
from pausefl_server.selection.terms import losses, rows_in_tie_order


@dataclass(frozen=True)
class PowD(Policy):
    """Draws d candidates with probabilities p_k = |D_k|/|D|, without replacement, and takes the m of greatest loss.

    The model averages them uniformly (the paper's update rule): data size counts once, in the draw. Losses are the last
    ones reported (the paper's variant rpow-d: no extra round trip to ask candidates); a client never chosen counts as
    the greatest, as there. Deviations: a client that was chosen and reported no loss counts as the median one, and with
    fewer than d eligible clients, all of them are candidates.
    """

    d: Count = 10
    """Candidates a round; m where that is more."""

    needs_loss: ClassVar[bool] = True
    needs_rounds: ClassVar[bool] = True  # for its weights, which are shares of one choice

    def select(self, state: Any, context: Context) -> Selection:
        """The candidates are a draw of this round's generator."""
        rows = rows_in_tie_order(context)
        sizes = np.maximum(context.table.n_examples[rows], 1)
        d = min(max(self.d, self.m), len(rows))
        candidates = rows[np.sort(context.rng.choice(len(rows), d, replace=False, p=sizes / sizes.sum()))]
        loss = np.nan_to_num(losses(context, candidates), nan=np.inf)
        chosen = np.sort(candidates[np.argsort(-loss, kind="stable")[: self.m]])
        return Selection(chosen, weights=np.full(len(chosen), 1.0 / len(chosen)))
