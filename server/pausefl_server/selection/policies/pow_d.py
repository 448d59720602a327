"""Power of choice (Cho, Wang and Joshi, AISTATS 2022): of d candidates, the m with the greatest loss."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from pausefl_proto.number_types import Count
from pausefl_server.selection.base import Context, Policy, Selection
from pausefl_server.selection.terms import losses, rows_in_tie_order


@dataclass(frozen=True)
class PowD(Policy):
    """Draws d candidates with probabilities p_k = |D_k|/|D|, without replacement, and chooses the m of greatest loss.

    The model averages their updates uniformly, as in the paper: data size counts once, in the draw. Losses are those
    reported last, as in the paper's variant rpow-d, which asks candidates for nothing. A client that was never chosen
    has the greatest loss, as there.
    """

    d: Count = 10
    """The number of candidates in a round. It counts as m if m is greater."""

    needs_loss: ClassVar[bool] = True
    needs_rounds: ClassVar[bool] = True  # its weights are shares of one choice

    def select(self, state: Any, context: Context) -> Selection:
        """The m clients of greatest loss among the candidates, which this round's generator draws."""
        rows = rows_in_tie_order(context)
        sizes = np.maximum(context.table.n_examples[rows], 1)
        d = min(max(self.d, self.m), len(rows))
        candidates = rows[np.sort(context.rng.choice(len(rows), d, replace=False, p=sizes / sizes.sum()))]
        loss = np.nan_to_num(losses(context, candidates), nan=np.inf)
        chosen = np.sort(candidates[np.argsort(-loss, kind="stable")[: self.m]])
        return Selection(chosen, weights=np.full(len(chosen), 1.0 / len(chosen)))
