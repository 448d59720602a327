"""`benchmarks.own diff`: find the figures of two measurements of the whole set that differ by more than noise.

A figure's logarithms over the repetitions are compared by Welch's t-test (Welch, Biometrika 34, 1947), and the p-values
of all figures are adjusted together (Benjamini and Hochberg, 1995, 5 %). The repetitions of one file share a machine's
state. So if the machine became slower, this counts as a change too. The machine's own figure says by how much.
"""

import json
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from pausefl_proto.errors import ConfigError

Measurement = Mapping[str, Any]
"""A measurement of the whole set, as `whole.measured` returns it."""
_READ = {"machine", "versions", "figures"}
_LEVEL = 0.05
_HIGHER_IS_BETTER = ("_per_s",)


@dataclass(frozen=True)
class FigureChange:
    """One figure in two measurements."""

    benchmark: str
    case: str
    figure: str
    before: float
    """Geometric mean over the repetitions."""
    after: float
    ratio: float
    """after / before."""
    ratio_low: float
    """The lower end of the ratio's 95 % interval."""
    ratio_high: float
    p: float
    """The p-value, adjusted for the number of figures."""

    @property
    def verdict(self) -> str:
        """ "better", "worse", or "same" where the difference is no more than noise."""
        if self.p >= _LEVEL:
            return "same"
        return "better" if (self.ratio > 1) == self.figure.endswith(_HIGHER_IS_BETTER) else "worse"


def read_measurement(path: Path) -> Measurement:
    """The measurement in a file that `python -m benchmarks.own all --json` wrote. ConfigError for any other file."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"diff: {path} cannot be read ({error})") from error
    if not (isinstance(found, dict) and found.get("name") == "all" and found.keys() >= _READ):
        raise ConfigError(f"diff: {path} was not written by `python -m benchmarks.own all --json`")
    return found


def changes(before: Measurement, after: Measurement) -> list[FigureChange]:
    """The changes of all figures that both have, the surest first. Figures not above 0 or of one value are left out."""
    first, second = (
        {_key(figure): figure["values"] for figure in measurement["figures"]} for measurement in (before, after)
    )
    pairs = {key: (np.array(first[key]), np.array(second[key])) for key in first if key in second}
    usable = {key: pair for key, pair in pairs.items() if all(len(v) > 1 and (v > 0).all() for v in pair)}
    compared = [_compared(key, np.log(one), np.log(other)) for key, (one, other) in usable.items()]
    adjusted = stats.false_discovery_control([change.p for change in compared]) if compared else []
    found = [FigureChange(**{**vars(change), "p": float(p)}) for change, p in zip(compared, adjusted, strict=True)]
    return sorted(found, key=lambda change: (change.p, -abs(math.log(change.ratio))))


def in_words(before: Measurement, after: Measurement, found: Sequence[FigureChange]) -> Iterator[str]:
    """Yields the lines to print: differences of machine and versions, the changed figures, and the number compared."""
    for key in ("machine", "versions"):
        for name, value in before[key].items():
            if (other := after[key].get(name)) != value:
                yield f"{name}: {value} before, {other} after"
    for change in found:
        if change.verdict != "same":
            span = f"[{change.ratio_low:.2f}, {change.ratio_high:.2f}]"
            numbers = f"{change.before:.4g} -> {change.after:.4g}, {change.ratio:.2f} times {span}"
            yield f"{change.verdict}: {change.benchmark}, {change.case}: {change.figure} {numbers}"
    changed = sum(change.verdict != "same" for change in found)
    missing = len({_key(f) for m in (before, after) for f in m["figures"]}) - len(found)
    yield f"{changed} of {len(found)} figures changed beyond noise; {missing} could not be compared"


def _key(figure: Mapping[str, Any]) -> tuple[str, str, str]:
    return figure["benchmark"], figure["case"], figure["figure"]


def _compared(key: tuple[str, str, str], one: Any, other: Any) -> FigureChange:
    """The change of one figure, given its logarithms before and after. The p-value is not yet adjusted."""
    shift = float(other.mean() - one.mean())
    if np.ptp(one) == np.ptp(other) == 0:  # counts and sizes may never vary: then any difference is real
        shift = float(other[0] - one[0])  # means of equal values may differ by rounding
        p, low, high = float(shift == 0), shift, shift
    else:
        with warnings.catch_warnings():  # scipy warns of lost precision if values never vary
            warnings.simplefilter("ignore", RuntimeWarning)
            test = stats.ttest_ind(other, one, equal_var=False)
        low, high = test.confidence_interval(1 - _LEVEL)
        p = float(test.pvalue)
    ratio, ratio_low, ratio_high = (math.exp(x) for x in (shift, low, high))
    return FigureChange(*key, math.exp(one.mean()), math.exp(other.mean()), ratio, ratio_low, ratio_high, p)
