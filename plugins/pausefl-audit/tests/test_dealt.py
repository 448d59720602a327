"""A run with canaries: right releases stay below their claimed ε, and releases with too little noise do not."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import pausefl
from benchmarks.own.trade_off import epsilon_by_trade_off, laplace_least
from pausefl_audit.audit import FALSE_ALARM, Audit, _guess_table, play_with_canaries
from pausefl_audit.findings import Guesses, guesses_all, multiple_of_claims
from pausefl_audit.noted import guesses_of
from pausefl_proto.errors import ConfigError, PauseflError

SMALL = {
    "clients.count": 4,
    "selection.m": 4,
    "workload.model": "synthetic",
    "latency.delay.kind": "none",
    "metrics.enabled": False,
    "privacy.eta": 1e-4,
    "privacy.epsilon_budget": 1e4,  # ε = 1 in every release
}
ROUNDS = {**SMALL, "experiment.rounds": 12, "wire.dtype": "int8", "wire.top_share": 0.5}
STEPS = {**SMALL, "experiment.rounds": 120, "privacy.unit": "vector", "server.mode": "asynchronous"}
STEPS |= {"asynchronous.concurrency": 4, "asynchronous.buffer": 2}
VIRTUAL = {"experiment.clock": "virtual"}
BROKEN = """
from pausefl import Behaviour
from pausefl_client.privacy.mechanism import Mechanism

class Half(Behaviour):
    def trainer(self, trainer, draw):
        scale = Mechanism.scale
        Mechanism.scale = lambda self, epsilon: scale(self, 2 * epsilon)
        return trainer

class Without(Behaviour):
    def trainer(self, trainer, draw):
        Mechanism.privatise = lambda self, update, epsilon, noise: self.clip_update(update)
        return trainer

class Unclipped(Behaviour):
    def trainer(self, trainer, draw):
        Mechanism.privatise = lambda self, update, epsilon, noise: update.copy()
        return trainer
"""


def counted(canaries: int, epsilons: Iterable[float], times: float, rng: np.random.Generator) -> list[Guesses]:
    """Guesses about releases with Laplace noise that leak `times` the claimed ε."""
    found = []
    for e in epsilons:
        seen = rng.laplace(0.5, 1 / (times * e), canaries)
        guessed = (np.abs(seen) >= 0.5) | guesses_all(e)
        found.append(Guesses(e, 1, canaries, int(guessed.sum()), int((guessed & (seen > 0)).sum())))
    return found


def test_the_bound_is_above_the_truth_as_rarely_as_it_says() -> None:
    rng = np.random.default_rng(5)
    bounds = [multiple_of_claims(counted(200, (4.0, 1.0), 1.0, rng), alpha=0.1) for _ in range(100)]
    assert sum(bound > 1 for bound in bounds) <= stats.binom.ppf(0.999, 100, 0.1)
    assert np.median(bounds) > 0.75


@pytest.mark.parametrize("epsilon", [0.5, 1.5, 4.0])
def test_the_bound_by_trade_off_is_above_the_truth_as_rarely_as_it_says(epsilon: float) -> None:
    rng = np.random.default_rng(7)
    found = [epsilon_by_trade_off(counted(200, (epsilon,), 1.0, rng)[0], alpha=0.1) for _ in range(100)]
    assert sum(bound > epsilon for bound in found) <= stats.binom.ppf(0.999, 100, 0.1)
    assert np.median(found) > 0.3 * epsilon


@pytest.mark.parametrize("epsilon", [0.2, 1.57, 3.92, 7.84])
def test_the_trade_off_is_that_of_laplace_noise_and_guesses_keep_to_it(epsilon: float) -> None:
    """The curve against Laplace's law, then the paper's inequality for right guesses of independent canaries."""
    for threshold in np.linspace(-3, 3, 25):
        here, there = (stats.laplace.sf(threshold, at, 1 / epsilon) for at in (0.5, -0.5))
        assert laplace_least(here, epsilon) == pytest.approx(there, abs=1e-12)
    right = np.arange(101)
    chances = stats.binom.pmf(right, 100, 1 - np.exp(-epsilon / 2) / 2)
    for i in right[1:]:
        hits, misses = (right * chances)[i:].sum() / 100, ((100 - right) * chances)[i - 1 :].sum() / 100
        assert laplace_least(hits, epsilon) <= misses + 1e-12


@pytest.mark.parametrize("epsilon", [0.5, 1.57, 3.92, 7.84])
def test_the_bound_by_trade_off_grows_with_right_guesses_and_is_no_tighter(epsilon: float) -> None:
    made = 300 if guesses_all(epsilon) else 180
    guesses = [Guesses(epsilon, 5, 300, made, right) for right in range(made // 2, made + 1, made // 20)]
    found = [epsilon_by_trade_off(each, FALSE_ALARM) for each in guesses]
    assert found == sorted(found)
    assert found[0] == 0 < found[-1]
    for each, bound in zip(guesses, found, strict=True):
        assert bound <= epsilon * multiple_of_claims([each], FALSE_ALARM) * 1.002


@pytest.mark.parametrize(
    ("epsilon", "canaries", "least"), [(1.0, 300, 0.3), (1.0, 1_000, 0.65), (1.0, 30_000, 0.94), (7.84, 1_000, 0.7)]
)
def test_the_power_is_what_the_page_says(epsilon: float, canaries: int, least: float) -> None:
    rng = np.random.default_rng(6)
    right, broken = (
        np.median([multiple_of_claims(counted(canaries, (epsilon,), times, rng), FALSE_ALARM) for _ in range(9)])
        for times in (1.0, 2.0)
    )
    assert least < right < 1 < broken


def test_no_guesses_and_wrong_ones_bound_nothing() -> None:
    assert multiple_of_claims([], FALSE_ALARM) == 0
    assert multiple_of_claims([Guesses(1.0, 9, 9, 9, 2)], FALSE_ALARM) == 0
    assert multiple_of_claims([Guesses(1.0, 20, 20, 20, 20)], FALSE_ALARM) == pytest.approx(0.88, abs=0.02)


def test_the_table_of_guesses_says_how_sure_its_bounds_are() -> None:
    table = _guess_table([Guesses(1.0, 9, 9, 9, 2)])
    assert str(table.title).endswith("bounds of 99.9% confidence")


def found_in(folder: Path, settings: Mapping[str, Any], broken: str = "") -> list[Guesses]:
    """Play a run with this broken mechanism: over gRPC, with a process per client, unless `settings` differ."""
    (folder / "broken.py").write_text(BROKEN)
    experiment = pausefl.load("demo", {**settings, "experiment.python_path": [str(folder)]})
    group = {"count": 4, "behaviours": [{"kind": f"broken:{broken}"}] if broken else []}
    broken_so = experiment.replace({"clients.groups.client": group})
    return guesses_of(play_with_canaries(broken_so, (), folder / "run"))


@pytest.mark.end_to_end
@pytest.mark.parametrize(("settings", "canaries", "least"), [(ROUNDS, 12 * 4 * 64, 0.6), (STEPS, 240, 0.0)])
def test_a_right_run_stays_below_its_claims(
    settings: Mapping[str, Any], canaries: int, least: float, tmp_path: Path
) -> None:
    found = found_in(tmp_path, settings)
    assert sum(each.canaries for each in found) == canaries
    assert found[0].epsilon == pytest.approx(1.0, abs=0.02)
    assert least < multiple_of_claims(found, FALSE_ALARM) <= 1


@pytest.mark.end_to_end
@pytest.mark.parametrize(
    ("settings", "broken"), [(ROUNDS, "Half"), (ROUNDS | VIRTUAL, "Without"), (STEPS | VIRTUAL, "Without")]
)
def test_a_run_with_too_little_noise_is_caught(settings: Mapping[str, Any], broken: str, tmp_path: Path) -> None:
    audit = Audit(pausefl.load("demo"), (), (), "", (), found_in(tmp_path, settings, broken))
    assert repr(audit) == "<Audit of pause on digits: 0 bounds on ε, 0 checks>"
    with pytest.raises(PauseflError, match=r"canaries of the run: releases leak at least [1-9.]+ times"):
        audit.raise_if_broken()


@pytest.mark.end_to_end
def test_the_audit_of_a_run_whose_updates_are_rejected_fails(tmp_path: Path) -> None:
    with pytest.raises(PauseflError, match=r"ended early: no client gave an update .* clipping and noise allow"):
        found_in(tmp_path, ROUNDS | VIRTUAL, "Unclipped")


@pytest.mark.end_to_end
def test_a_run_of_another_experiment_is_not_audited_in_its_place(tmp_path: Path) -> None:
    plain = pausefl.load("demo", {**SMALL, **VIRTUAL, "experiment.rounds": 1})
    pausefl.run(plain, tmp_path, progress=False)
    with pytest.raises(ConfigError, match="holds the run of another experiment"):
        play_with_canaries(plain, (), tmp_path)
