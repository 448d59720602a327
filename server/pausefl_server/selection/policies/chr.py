"""CHR: prefers newcomers with updates similar to the originals' (after FedCHAR; Li, Wang and An, IMWUT 2023)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pausefl_proto.arrays import FloatArray, IntArray
from pausefl_proto.wire import Vector
from pausefl_server.clients import ClientTable, grown
from pausefl_server.model.aggregation import weighted_mean
from pausefl_server.selection.base import Context, Inspection
from pausefl_server.selection.newcomers import NewcomerPolicy, is_original
from pausefl_server.selection.observed import PolicyRound


@dataclass(frozen=True)
class Chr(NewcomerPolicy):
    """Chooses from every insertion the p newcomers of greatest mean cosine similarity to the originals' mean update.

    Newcomers that were never chosen go first. A round without an answer counts as similarity 0.
    """

    def start(self) -> FloatArray:
        """The sum of each row's similarities: none yet."""
        return np.empty(0)

    def inspect(self, table: ClientTable, rows: IntArray, updates: Sequence[Vector]) -> Inspection | None:
        """The cosine of each newcomer's update with the originals' mean update. None if no original sent an update."""
        original = is_original(table)[rows]
        originals = [update for update, is_one in zip(updates, original, strict=True) if is_one]
        if not originals:
            return None
        centre = weighted_mean(originals, np.ones(len(originals)))
        statistics = [
            {} if is_one else {"cosine": _cosine(update, centre)}
            for update, is_one in zip(updates, original, strict=True)
        ]
        return Inspection(statistics, np.ones(len(rows), np.bool_))

    def observe(self, state: FloatArray, record: PolicyRound, table: ClientTable) -> FloatArray:
        """Add the round's similarities to the sums."""
        sums = grown(state, len(table))
        for o in record.observations:
            sums[table.row_of[o.client_id]] += o.statistics.get("cosine", 0.0)
        return sums

    def _promise(self, state: FloatArray, context: Context, newcomers: IntArray) -> FloatArray:
        chosen = context.table.chosen[newcomers]
        sums = grown(state, len(context.table))[newcomers]
        return np.where(chosen == 0, np.inf, sums / np.maximum(chosen, 1))


def _cosine(a: Vector, b: Vector) -> float:
    """a·b/(‖a‖‖b‖) of two (d,) vectors; 0 if one of them is zero."""
    a64, b64 = a.astype(np.float64), b.astype(np.float64)
    norms = math.sqrt(float(a64 @ a64)) * math.sqrt(float(b64 @ b64))
    return float(a64 @ b64) / norms if norms else 0.0
