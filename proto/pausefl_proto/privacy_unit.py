"""The unit that ε protects: one coordinate of an update, or the whole update as a vector."""

from typing import Literal

PrivacyUnit = Literal["coordinate", "vector"]


def vector_epsilon(unit: PrivacyUnit, epsilon: float, size: int) -> float:
    """ε of a whole update of `size` coordinates that is released at `epsilon` a unit (docs/papers.md, decision 8)."""
    return epsilon if unit == "vector" else epsilon * size
