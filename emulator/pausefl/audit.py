"""An empirical audit of the privacy mechanism: how well do its uploads tell two worlds apart?

The worlds differ in a canary at the mechanism's full sensitivity. If an event has probability p in one world and q in
the other, the mechanism is not ε-DP for any ε < ln(p/q). Bounding p from below and q from above (Clopper and Pearson,
1934) over many uploads gives a lower bound on ε that a right mechanism exceeds once in a thousand audits, and that a
broken one exceeds as soon as it leaks noticeably more than it claims.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.table import Table
from scipy import stats

from pausefl.config.client_records import budget_of, mechanism_of
from pausefl.config.experiment import Experiment, load_experiment
from pausefl.results.reading import read_run
from pausefl.runtime.client_plan import noise_plan
from pausefl.runtime.client_privacy import noise_for
from pausefl.runtime.run_dir import stored_experiment
from pausefl_client.ledger import ReleaseKey, verified_spend
from pausefl_client.privacy import Mechanism
from pausefl_proto.errors import PauseflError
from pausefl_proto.wire import Vector

FloatArray = npt.NDArray[np.float64]
Privatise = Callable[[Vector, float], Vector]
"""(update, ε) -> what leaves."""

FALSE_ALARM = 1e-3
"""Probability that a right mechanism fails an audit."""

_D = 8
_EVENTS = 64
# Far beyond any clip bound: a mechanism that forgets to clip gives itself away.
_CANARY = np.float32(1e3)


@dataclass(frozen=True)
class Finding:
    """What one attack found out about the mechanism."""

    attack: str
    epsilon: float
    """What the mechanism claims against this attack."""
    lower_bound: float
    """At this confidence the mechanism is not ε-DP for any smaller ε."""
    uploads: int

    @property
    def holds(self) -> bool:
        """Whether the claim survived."""
        return self.lower_bound <= self.epsilon


def audit(privatise: Privatise, mechanism: Mechanism, epsilon: float, uploads: int) -> list[Finding]:
    """Attack `privatise`, which claims to be `mechanism` at `epsilon`, with so many uploads per world and attack."""
    first, last, whole = np.zeros(_D, np.float32), np.zeros(_D, np.float32), np.full(_D, _CANARY, np.float32)
    first[0] = last[-1] = _CANARY
    n = uploads // 2  # the attack on two uploads needs pairs

    def sent(update: Vector) -> FloatArray:
        return np.array([privatise(update, epsilon) for _ in range(2 * n)], np.float64)

    def toward(canary: Vector) -> tuple[FloatArray, FloatArray]:
        """How much more each upload looks like +canary than like −canary: log-likelihoods times the scale."""
        plus, minus = (mechanism.clip_update(sign * canary).astype(np.float64) for sign in (1, -1))

        def score(uploads: FloatArray) -> FloatArray:
            likeness: FloatArray = (np.abs(uploads - minus) - np.abs(uploads - plus)).sum(1)
            return likeness

        return score(sent(canary)), score(sent(-canary))

    def between_two() -> tuple[FloatArray, FloatArray]:
        """How the second of two uploads differs from the first, whose input is the same in both worlds."""
        before, same, other = sent(first), sent(first), sent(-first)
        return same[:, 0] - before[:, 0], other[:, 0] - before[:, 0]

    def between_coordinates() -> tuple[FloatArray, FloatArray]:
        """How a coordinate with the canary differs from one without, in the same upload."""
        one, other = sent(last), sent(-last)
        return one[:, -1] - one[:, 0], other[:, -1] - other[:, 0]

    attacks: dict[str, tuple[float, Callable[[], tuple[FloatArray, FloatArray]]]] = {
        "one canary coordinate": (epsilon, lambda: toward(first)),
        "a canary in the last coordinate": (epsilon, lambda: toward(last)),
        "a canary in every coordinate": (mechanism.vector_epsilon(epsilon, _D), lambda: toward(whole)),
        "two uploads compared": (epsilon, between_two),
        "two coordinates compared": (epsilon, between_coordinates),
    }
    return [
        Finding(name, claimed, epsilon_lower_bound(*scores(), FALSE_ALARM / len(attacks)), 2 * n)
        for name, (claimed, scores) in attacks.items()
    ]


def epsilon_lower_bound(plus: FloatArray, minus: FloatArray, alpha: float) -> float:
    """A lower bound on ε from scores seen in either world, (n,) each, that is too high with probability `alpha`.

    The event "score ≥ t" is chosen on the first half of the scores and judged on the second, so that choosing does not
    spoil the bound.
    """
    half = plus.size // 2
    events = np.quantile(np.concatenate([plus[:half], minus[:half]]), np.linspace(0.02, 0.9999, _EVENTS))
    t = events[np.argmax(_log_ratio(plus[:half], minus[:half], events, alpha))]
    return float(_log_ratio(plus[half:], minus[half:], np.array([t]), alpha)[0])


def _log_ratio(plus: FloatArray, minus: FloatArray, events: FloatArray, alpha: float) -> FloatArray:
    """ln(p/q) with p bounded from below and q from above, each wrong with probability alpha/2."""
    hits, false_hits = ((scores[:, None] >= events).sum(0) for scores in (plus, minus))
    p = np.nan_to_num(stats.beta.ppf(alpha / 2, hits, plus.size - hits + 1), nan=0.0)
    q = np.nan_to_num(stats.beta.isf(alpha / 2, false_hits + 1, minus.size - false_hits), nan=1.0)
    ratio: FloatArray = np.log(np.maximum(p, 1e-300) / q)
    return ratio


def run_audit(source: str, overrides: list[str], uploads: int) -> Iterator[Table | str]:
    """Audit the mechanism of an experiment, at ε = 1 and at its first ε_i, and a run's ledgers; what to print.

    PauseflError when the mechanism leaks more than it claims, or a ledger counts less than the server knows.
    """
    run_dir = Path(source) if Path(source).is_dir() else None
    experiment = stored_experiment(run_dir) if run_dir else load_experiment(source, overrides)
    budget, mechanism = budget_of(experiment.privacy), mechanism_of(experiment.privacy)
    if budget is None or mechanism is None:
        raise PauseflError("privacy.enabled = false: there is no mechanism to audit, updates leave as they are")
    if experiment.privacy.reproducible_noise:
        raise PauseflError("privacy.reproducible_noise = true: not private, whoever knows the seed subtracts the noise")
    privatise = _as_clients_do(experiment, mechanism)
    findings = [f for e in (1.0, budget.epsilon(1)) for f in audit(privatise, mechanism, e, uploads)]
    yield _table(findings, mechanism)
    if failed := [finding for finding in findings if not finding.holds]:
        raise PauseflError(
            f"{failed[0].attack}: leaks at least {failed[0].lower_bound:.3g}, claims {failed[0].epsilon:g}"
        )
    if run_dir:
        yield check_ledgers(run_dir)


def check_ledgers(run_dir: Path) -> str:
    """That every ledger in the run directory holds together and counts no less than the server knows; sentences."""
    clients = read_run(run_dir).clients
    ledgers, ahead = 0, []
    for client_id, released in zip(clients["client_id"], clients["released"], strict=True):
        path = run_dir / "ledgers" / f"{client_id}.db"
        if path.exists():
            charged, spent = verified_spend(path)
            ledgers += 1
            if charged < released:
                raise PauseflError(f"{path}: counts {charged} releases (epsilon {spent:g}), the server {released}")
            if charged > released:
                ahead.append(f"{client_id} counts {charged} releases (epsilon {spent:.4g}), the server {released}")
    if not ledgers:
        return "No ledger lies in this run's directory: its clients keep them elsewhere."
    found = f"{ledgers} ledgers hold together and count no less than the server knows."
    if ahead:
        found += f" {len(ahead)} count more, of releases the server never heard of: {'; '.join(ahead)}."
    return found


def _as_clients_do(experiment: Experiment, mechanism: Mechanism) -> Privatise:
    uploads, noise = iter(range(1, 1 << 62)), noise_plan(experiment)

    def privatise(update: Vector, epsilon: float) -> Vector:
        key = ReleaseKey("audit", next(uploads), 1, "")
        return mechanism.privatise(update, epsilon, noise_for(noise, "audit", key))

    return privatise


def _table(findings: list[Finding], mechanism: Mechanism) -> Table:
    title = (
        f"unit {mechanism.unit}, clip {mechanism.clip:g}; a right mechanism fails once in {1 / FALSE_ALARM:g} audits"
    )
    table = Table("attack", "claimed ε", "leaks at least ε", "uploads", "", title=title, title_justify="left")
    for f in findings:
        verdict = "holds" if f.holds else "BROKEN"
        table.add_row(f.attack, f"{f.epsilon:.4g}", f"{max(f.lower_bound, 0):.3f}", f"2 × {f.uploads}", verdict)
    return table
