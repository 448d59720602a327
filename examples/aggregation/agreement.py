"""An example of your own aggregation rule: the mean, in the coordinates where enough clients agree on the sign.

Run it: pausefl run examples/aggregation/experiment.toml
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pausefl_proto.arrays import FloatArray
from pausefl_proto.wire import Vector
from pausefl_server.model.aggregation import AggregationRule


@dataclass(frozen=True)
class SignAgreement(AggregationRule):
    """In each coordinate, the weighted mean of the updates, or 0 where too little of the weight agrees on the sign."""

    agreement: float = 0.6
    """The smallest share of the weight that must agree on the sign, from 0.5 to 1."""

    def __post_init__(self) -> None:
        if not 0.5 <= self.agreement <= 1:
            raise ValueError(f"agreement = {self.agreement}: must be from 0.5 to 1")

    def combine(self, updates: Sequence[Vector], weights: FloatArray) -> Vector:
        """Returns the round's update, (d,) float32, from n updates in selection order."""
        shares = weights / weights.sum()
        stacked = np.stack(updates)
        agreed = np.maximum(shares @ (stacked > 0), shares @ (stacked < 0)) >= self.agreement
        return np.where(agreed, shares @ stacked, 0).astype(np.float32)
