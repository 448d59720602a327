"""The privacy unit: ε protects one coordinate of an update, or the whole update as a vector."""

from typing import Literal

PrivacyUnit = Literal["coordinate", "vector"]


def vector_epsilon(unit: PrivacyUnit, epsilon: float, size: int) -> float:
    """The ε of a whole update of `size` coordinates, released with `epsilon` per unit (docs/papers.md, decision 8)."""
    return epsilon if unit == "vector" else epsilon * size
