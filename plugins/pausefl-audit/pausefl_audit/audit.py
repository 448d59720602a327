"""Audits an experiment's privacy: whether updates, released as in a run, leak no more than the claimed ε.

Client processes are forked as `pausefl run` forks them, with the model's own dimension, clip, sampler and schedule.
The audit tests how well uploads distinguish two worlds (`findings`), whether clip and noise are those that the ledger
charges, and whether noise is ever repeated. For a run with canaries, it also bounds what that run leaked (`noted`).
Each of these two parts fails a correct mechanism once in a thousand audits.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

import numpy as np
from rich.table import Table

from pausefl.experiment.experiment import Experiment, load_experiment
from pausefl.extras import needs
from pausefl.library import count_of, load, path_of, run
from pausefl.outcomes import check_outcome
from pausefl.results.reading import read_run
from pausefl.runtime.client.plan import client_plan
from pausefl.runtime.run_dir import stored_experiment
from pausefl.terminal_table import FittingTable
from pausefl_audit.canaries import merged
from pausefl_audit.findings import (
    Check,
    Guesses,
    Leak,
    check_clip,
    check_freshness,
    check_noise,
    check_seed,
    check_sources,
    epsilon_lower_bound,
    multiple_of_claims,
)
from pausefl_audit.noted import guesses_of, with_canaries
from pausefl_audit.runs import Witness, witnesses
from pausefl_client.privacy.ledger import verified_spend
from pausefl_proto.budget import Budget, is_same_epsilon
from pausefl_proto.errors import ConfigError, PauseflError

FALSE_ALARM = 1e-3
"""The probability that a correct mechanism fails an audit: half of it for the bounds on ε, half for the checks."""


@dataclass(frozen=True)
class Audit:
    """The results of attacks on a mechanism and of checks of its noise."""

    experiment: Experiment
    """The audited experiment."""
    leaks: Sequence[Leak]
    """The lower bounds on ε, one per attack and claimed ε."""
    checks: Sequence[Check]
    """The checks of clip, noise and seeds, each with its p-value."""
    ledgers: str
    """Sentences on the ledgers of a run; empty without a run."""
    witnessed: Sequence[Witness]
    """The measurements from each client process."""
    guesses: Sequence[Guesses] = ()
    """The guesses of the run's canaries, by claimed ε. Empty without a run or canaries."""

    def __repr__(self) -> str:
        return f"<Audit of {self.experiment.title}: {len(self.leaks)} bounds on ε, {len(self.checks)} checks>"

    @property
    def multiple(self) -> float:
        """A lower bound on what the run's releases leaked, as a multiple of the ε that they claim."""
        return multiple_of_claims(self.guesses, FALSE_ALARM)

    def raise_if_broken(self) -> None:
        """Raise PauseflError if uploads leak more than claimed, or noise is not as charged or not fresh."""
        for leak in self.leaks:
            if not leak.holds:
                raise PauseflError(f"{leak.attack}: leaks at least {leak.lower_bound:.3g}, claims {leak.epsilon:g}")
        for check in self.checks:
            if not check.holds(_alpha(self.checks)):
                seen = f"{check.question}: {check.seen}"
                raise PauseflError(f"{seen}, as a right mechanism has it once in a thousand audits")
        if self.multiple > 1:
            raise PauseflError(f"canaries of the run: releases leak at least {self.multiple:.3g} times what they claim")

    def in_tables(self) -> Iterator[FittingTable | str]:
        """Yields the tables and texts to print, and raises PauseflError after the tables if the mechanism is broken."""
        yield FittingTable(_leak_table(self.leaks, self.experiment))
        yield FittingTable(_check_table(self.checks, self.witnessed))
        if self.guesses:
            yield FittingTable(_guess_table(self.guesses))
        self.raise_if_broken()
        if self.ledgers:
            yield self.ledgers


@needs("server", "client", "audit")
def audit(source: str | Path | Experiment, *, uploads: int = 20_000, run_dir: str | Path | None = None) -> Audit:
    """Attack the privacy mechanism of an experiment or a run with `uploads` uploads, and check a run's ledgers.

    With `run_dir`, the experiment is first run there with canaries in its data, and their releases are audited too.
    Raises PauseflError if an upload leaks more than it claims, or if noise is not what was charged.
    """
    if not isinstance(source, str | Path | Experiment):
        raise ConfigError(f"source = {source!r:.80}: must be a run directory, a TOML file, a preset or an Experiment")
    uploads = count_of("uploads", uploads, at_least=100)
    if run_dir is not None:
        source = play_with_canaries(source, (), path_of("run_dir", run_dir))
    found = run_audit(source, (), uploads)
    found.raise_if_broken()
    return found


def run_audit(source: str | Path | Experiment, overrides: Sequence[str], uploads: int) -> Audit:
    """Audit an experiment, and a run's ledgers and canaries if `source` is the directory of one.

    Attacks are made at ε = 1 and at the experiment's first ε_i. PauseflError without a mechanism to audit, and if a
    ledger counts fewer releases than the server knows.
    """
    ledgers, guesses = "", list[Guesses]()
    if isinstance(source, Experiment):
        experiment = source
    elif (run_dir := Path(source)).is_dir():  # checked before the attacks, which take minutes
        experiment, ledgers, guesses = stored_experiment(run_dir), check_ledgers(run_dir), guesses_of(run_dir)
    else:
        experiment = load_experiment(str(source), overrides)
    first_epsilon = _audited(experiment).epsilon(1)
    found = witnesses(client_plan(experiment), (1.0, first_epsilon), 2 * uploads)
    checks = list(checks_of(found, exact=experiment.privacy.sampler == "opendp"))
    return Audit(experiment, leaks_of(found), checks, ledgers, found, guesses)


def play_with_canaries(source: str | Path | Experiment, overrides: Sequence[str], run_dir: Path) -> Path:
    """Play an experiment as a run with canaries, or go on with that run if `run_dir` holds it; returns `run_dir`.

    PauseflError if the run fails, for example because the server rejects updates, or if `run_dir` holds another one.
    """
    experiment = load(source, overrides)
    _audited(experiment)
    played = run(with_canaries(experiment), run_dir, resume=True)
    check_outcome(played.summary["outcome"], played.summary["stopped_because"], "the same command")
    return run_dir


def _audited(experiment: Experiment) -> Budget:
    """The experiment's privacy budget. PauseflError if there is no mechanism to audit, or noise is reproducible."""
    budget = experiment.privacy.budget
    if budget is None:
        raise PauseflError("privacy.enabled = false: there is no mechanism to audit, updates leave as they are")
    if experiment.privacy.reproducible_noise:
        raise PauseflError("privacy.reproducible_noise = true: not private, the seed is enough to subtract the noise")
    return budget


def leaks_of(found: Sequence[Witness]) -> list[Leak]:
    """The lower bounds on ε by attack and claimed ε, from the scores of all processes together."""
    by_epsilon = {epsilon: merged([witness.scores[epsilon] for witness in found]) for epsilon in found[0].scores}
    attacks = [(epsilon, name, *of) for epsilon, scores in by_epsilon.items() for name, of in scores.items()]
    alpha = FALSE_ALARM / 2 / len(attacks)
    return [
        Leak(name, epsilon, epsilon_lower_bound(plus, minus, alpha), plus.size + minus.size)
        for epsilon, name, plus, minus in attacks
    ]


def checks_of(found: Sequence[Witness], *, exact: bool) -> Iterator[Check]:
    """Checks of clip, noise and seeds over all processes. An exact sampler has no seed: it draws entropy itself."""
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


def _guess_table(guesses: Sequence[Guesses]) -> Table:
    """A table with a row per claimed ε, whose bounds hold simultaneously, and a row for all releases."""
    alpha = FALSE_ALARM / len(guesses)
    title = f"canaries that the run was dealt, and guesses of their signs; bounds of {1 - FALSE_ALARM:.1%} confidence"
    table = Table(
        "claimed ε", "leaks at least ε", "releases", "canaries", "guesses", "right", title=title, title_justify="left"
    )
    for each in guesses:
        bound = each.epsilon * multiple_of_claims([each], alpha)
        table.add_row(f"{each.epsilon:.4g}", f"{bound:.3f}", *_counts(each))
    whole = reduce(Guesses.plus, guesses)
    table.add_row("all", f"{multiple_of_claims(guesses, FALSE_ALARM):.3f} times the claims", *_counts(whole))
    return table


def _counts(guesses: Guesses) -> list[str]:
    return [f"{count:,}" for count in (guesses.releases, guesses.canaries, guesses.made, guesses.right)]


def check_ledgers(run_dir: Path) -> str:
    """Check that every ledger in the run directory is consistent, and counts no less than the server knows, also in ε.

    Returns sentences. PauseflError if one fails or is missing beside others. Without any, clients keep them elsewhere.
    """
    clients = read_run(run_dir).clients
    ledgers, ahead, missing = 0, [], []
    columns = (clients[name] for name in ("client_id", "released", "epsilon_spent"))
    for client_id, released, told in zip(*columns, strict=True):
        path = run_dir / "ledgers" / f"{client_id}.db"
        if path.exists():
            charged, spent = verified_spend(path)
            ledgers += 1
            if charged < released or (spent < told and not is_same_epsilon(spent, told)):
                counts = f"counts {charged} releases (epsilon {spent:g}), the server {released} (epsilon {told:g})"
                raise PauseflError(f"{path}: {counts}")
            if charged > released:
                ahead.append(f"{client_id} counts {charged} releases (epsilon {spent:.4g}), the server {released}")
        elif released:
            missing.append(f"{client_id} ({released} releases)")
    if not ledgers:
        return "No ledger lies in this run's directory: its clients keep them elsewhere."
    if missing:
        raise PauseflError(
            f"{run_dir / 'ledgers'}: ledgers of clients that were charged are missing, others are there:"
            f" {', '.join(missing)}"
        )
    found = f"{ledgers} ledgers hold together and count no less than the server knows."
    if ahead:
        found += f" {len(ahead)} count more, of releases the server never heard of: {'; '.join(ahead)}."
    return found
