"""Functions Φ_g and Φ_p for SA-PAUSE that are no plain means: any function of the set, such as label diversity.

Once a round, `factory(context, rows) -> Phi` makes the function Φ, where `rows` are the candidates' table rows. Φ is
then called with arrays of positions in `rows`, each a set of clients. A Φ with the three methods of `SetValue` is
updated after each swap. Any other Φ is computed anew for every proposed set.
"""

import inspect
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from pausefl_process.plugins import imported
from pausefl_proto.arrays import FloatArray, IntArray
from pausefl_proto.errors import PauseflError
from pausefl_server.search import SetValue
from pausefl_server.selection.base import Context

Phi = Callable[[IntArray], float]
Factory = Callable[[Context, IntArray], Phi | SetValue]


def factory_named(name: str) -> Factory:
    """The factory of this name, "label_diversity" or "package.module:factory". Raises ValueError if there is none."""
    if name == "label_diversity":
        return LabelDiversity.of
    if ":" not in name:
        raise ValueError('must be "mean", "label_diversity" or "package.module:factory"')
    found = imported(name)
    try:
        inspect.signature(found).bind(None, None)
    except TypeError:
        raise ValueError("must be callable as factory(context, rows)") from None
    except ValueError:  # some callables written in C have no signature
        pass
    return cast(Factory, found)


def made(name: str, context: Context, rows: IntArray) -> SetValue:
    """This round's Φ, made by the factory of this name, as a `SetValue`."""
    phi = factory_named(name)(context, rows)
    if hasattr(phi, "swapped"):
        return cast(SetValue, phi)
    if not callable(phi):
        kind = type(phi).__name__
        raise PauseflError(f'selection.sa-pause: "{name}" returned a {kind}: must return a function of the set')
    return Recomputed(phi)


class Recomputed:
    """A `SetValue` from a plain function of the set, which is called for each proposed set."""

    def __init__(self, phi: Phi) -> None:
        self._phi = phi
        self._rows = np.empty(0, np.int64)

    def reset(self, rows: IntArray) -> float:
        self._rows = rows.copy()
        return float(self._phi(self._rows))

    def swapped(self, out: int, incoming: int) -> float:
        return float(self._phi(np.where(self._rows == out, incoming, self._rows)))

    def swap(self, out: int, incoming: int) -> None:
        self._rows = np.where(self._rows == out, incoming, self._rows)


@dataclass(frozen=True)
class Weighted:
    """Σ weight · part as a `SetValue`. The chain knows only the free rows; the forced rows are added to each set."""

    parts: tuple[tuple[float, SetValue], ...]
    free: IntArray
    """The position, among the candidates, of each row of the chain."""
    forced: IntArray
    """The positions that are always in the set."""

    def reset(self, rows: IntArray) -> float:
        chosen = np.concatenate((self.forced, self.free[rows]))
        return sum(weight * part.reset(chosen) for weight, part in self.parts)

    def swapped(self, out: int, incoming: int) -> float:
        return sum(weight * part.swapped(self.free[out], self.free[incoming]) for weight, part in self.parts)

    def swap(self, out: int, incoming: int) -> None:
        for _, part in self.parts:
            part.swap(self.free[out], self.free[incoming])


class LabelDiversity:
    """The entropy of a set's pooled labels, divided by its maximum. It is 1 if all classes are equally common.

    PAUSE v2 names this reward in Section III-A (sets "whose data distributions are complementary") without a formula.
    A client that did not disclose its label histogram counts as if its labels were uniform.
    """

    def __init__(self, histograms: FloatArray) -> None:
        """`histograms`: (n, classes), the number of examples per label of each candidate."""
        self._histograms = histograms
        self._pooled = np.zeros(histograms.shape[1])

    @classmethod
    def of(cls, context: Context, rows: IntArray) -> "LabelDiversity":
        """Label diversity from the label counts that clients disclosed under privacy.disclose = ["labels"].

        The number of classes is the (lower) median over these clients. Counts of further labels are ignored. A client's
        counts are scaled down to the |D_k| that counts for it. So no client can drown the others' labels in its own.
        """
        table = context.table
        known = {row: counts for row in rows.tolist() if (counts := table.label_counts.get(row)) is not None}
        stated = statistics.median_low([len(counts) for counts in known.values()]) if known else 0
        classes = max(stated, 2)  # ln 1 = 0 would be a divisor
        histograms = np.repeat(table.n_examples[rows, None] / classes, classes, axis=1)
        for i, row in enumerate(rows.tolist()):
            if row in known:
                counts = known[row][:classes]
                held = min(1.0, table.n_examples[row] / max(counts.sum(), 1.0))
                histograms[i] = np.pad(counts * held, (0, classes - len(counts)))
        return cls(histograms)

    def reset(self, rows: IntArray) -> float:
        self._pooled = self._histograms[rows].sum(axis=0)
        return self._entropy(self._pooled)

    def swapped(self, out: int, incoming: int) -> float:
        return self._entropy(self._pooled - self._histograms[out] + self._histograms[incoming])

    def swap(self, out: int, incoming: int) -> None:
        self._pooled = self._pooled - self._histograms[out] + self._histograms[incoming]

    def _entropy(self, pooled: FloatArray) -> float:
        # −Σ q ln q = ln n − (Σ c ln c)/n for counts c with sum n. Subtraction may leave rounding noise in place of 0.
        counts = np.maximum(pooled, 1e-9)
        n: Any = counts.sum()
        return float((np.log(n) - (counts @ np.log(counts)) / n) / np.log(len(counts)))
