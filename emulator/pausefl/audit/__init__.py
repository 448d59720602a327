"""An audit of an experiment's privacy, as a run of it would release updates: do they keep what ε claims?

Client processes are forked as `pausefl run` forks them, with the model's own dimension, clip, sampler and schedule.
The audit asks how well uploads tell two worlds apart (`lower_bound`), whether clip and noise are what the ledger
charges, and whether two draws of noise are ever alike (`noise`). It fails a right mechanism once in a thousand audits.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from rich.table import Table

from pausefl.audit.canaries import merged
from pausefl.audit.ledgers import check_ledgers
from pausefl.audit.lower_bound import Leak, epsilon_lower_bound
from pausefl.audit.noise import Check, check_clip, check_freshness, check_noise, check_seed, check_sources
from pausefl.audit.runs import Witness, witnesses
from pausefl.config.client_records import budget_of
from pausefl.config.experiment import Experiment
from pausefl.config.loading import load_experiment
from pausefl.runtime.client.plan import client_plan
from pausefl.runtime.run_dir import stored_experiment
from pausefl.terminal_table import FittingTable
from pausefl_proto.errors import PauseflError

FALSE_ALARM = 1e-3
"""Probability that a right mechanism fails an audit: half of it for the bounds on ε, half for the checks."""


def run_audit(source: str, overrides: list[str], uploads: int) -> Iterator[FittingTable | str]:
    """Audit an experiment, and a run's ledgers if `source` is the directory of one; what to print.

    Attacks are made at ε = 1 and at the experiment's first ε_i. PauseflError when an upload leaks more than it claims,
    when noise is not what was charged or is not fresh, or when a ledger counts less than the server knows.
    """
    run_dir = Path(source) if Path(source).is_dir() else None
    experiment = stored_experiment(run_dir) if run_dir else load_experiment(source, overrides)
    ledgers = check_ledgers(run_dir) if run_dir else ""  # at once; the attacks take minutes
    budget = budget_of(experiment.privacy)
    if budget is None:
        raise PauseflError("privacy.enabled = false: there is no mechanism to audit, updates leave as they are")
    if experiment.privacy.reproducible_noise:
        raise PauseflError("privacy.reproducible_noise = true: not private, the seed is enough to subtract the noise")
    found = witnesses(client_plan(experiment), (1.0, budget.epsilon(1)), 2 * uploads)
    leaks, checks = leaks_of(found), list(checks_of(found, exact=experiment.privacy.sampler == "opendp"))
    yield FittingTable(_leak_table(leaks, experiment))
    yield FittingTable(_check_table(checks, found))
    for leak in leaks:
        if not leak.holds:
            raise PauseflError(f"{leak.attack}: leaks at least {leak.lower_bound:.3g}, claims {leak.epsilon:g}")
    for check in checks:
        if not check.holds(_alpha(checks)):
            raise PauseflError(f"{check.question}: {check.seen}, as a right mechanism has it once in a thousand audits")
    if ledgers:
        yield ledgers


def leaks_of(found: Sequence[Witness]) -> list[Leak]:
    """A lower bound on ε by attack and ε, from what attackers saw of all processes."""
    by_epsilon = {epsilon: merged([witness.scores[epsilon] for witness in found]) for epsilon in found[0].scores}
    attacks = [(epsilon, name, *of) for epsilon, scores in by_epsilon.items() for name, of in scores.items()]
    alpha = FALSE_ALARM / 2 / len(attacks)
    return [
        Leak(name, epsilon, epsilon_lower_bound(plus, minus, alpha), plus.size + minus.size)
        for epsilon, name, plus, minus in attacks
    ]


def checks_of(found: Sequence[Witness], *, exact: bool) -> Iterator[Check]:
    """What is asked of the clip, the noise and the seeds of all processes; an exact sampler draws its own entropy."""
    releases = [release for witness in found for release in witness.releases]
    yield check_clip(max(witness.clear_reach for witness in found), sum(witness.clear_draws for witness in found))
    yield from check_noise(releases)
    yield from check_freshness(releases)
    yield check_sources(np.concatenate([witness.sources for witness in found]))
    if not exact:
        yield check_seed(min(witness.seed_bits for witness in found))


def _alpha(checks: Sequence[Check]) -> float:
    return FALSE_ALARM / 2 / len(checks)


def _leak_table(leaks: Sequence[Leak], experiment: Experiment) -> Table:
    unit, clip = experiment.privacy.unit, experiment.privacy.clip
    title = f"unit {unit}, clip {clip:g}; a right mechanism fails once in {1 / FALSE_ALARM:g} audits"
    table = Table("attack", "claimed ε", "leaks at least ε", "attempts", "", title=title, title_justify="left")
    for leak in leaks:
        bound, verdict = f"{max(leak.lower_bound, 0):.3f}", "holds" if leak.holds else "BROKEN"
        table.add_row(leak.attack, f"{leak.epsilon:.4g}", bound, f"{leak.scores:,}", verdict)
    return table


def _check_table(checks: Sequence[Check], found: Sequence[Witness]) -> Table:
    releases, size = sum(len(witness.releases) for witness in found), found[0].releases[0].noise.size
    title = f"{releases} releases of {size:,} coordinates, by {len(found)} client processes of two runs"
    table = Table("question", "seen", "p", "", title=title, title_justify="left")
    for check in checks:
        verdict = "holds" if check.holds(_alpha(checks)) else "BROKEN"
        table.add_row(check.question, check.seen, f"{check.p_value:.2g}", verdict)
    return table
