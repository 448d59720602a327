"""A run that is dealt canaries: right releases stay below their claims, and those with too little noise do not."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from scipy.special import expit

import pausefl
from pausefl_audit.audit import FALSE_ALARM, Audit
from pausefl_audit.findings import Guesses, multiple_of_claims
from pausefl_audit.noted import guesses_of, with_canaries
from pausefl_proto.errors import PauseflError

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
"""


def counted(made: int, epsilons: tuple[float, ...], times: float, rng: np.random.Generator) -> list[Guesses]:
    """Guesses about releases that leak `times` what they claim, as far as guesses can tell."""
    return [Guesses(e, made, made, made, int(rng.binomial(made, expit(times * e)))) for e in epsilons]


def test_the_bound_is_above_the_truth_as_rarely_as_it_says() -> None:
    rng = np.random.default_rng(5)
    bounds = [multiple_of_claims(counted(150, (1.5, 1.0, 0.2), 1.0, rng), alpha=0.1) for _ in range(60)]
    assert sum(bound > 1 for bound in bounds) <= stats.binom.ppf(0.999, 60, 0.1)
    assert np.median(bounds) > 0.75


@pytest.mark.parametrize(("made", "least"), [(200, 0.4), (1_000, 0.75), (10_000, 0.9)])
def test_the_power_is_what_the_page_says(made: int, least: float) -> None:
    rng = np.random.default_rng(6)
    assert least < np.median([multiple_of_claims(counted(made, (1.0,), 1.0, rng), FALSE_ALARM) for _ in range(9)]) < 1
    assert np.median([multiple_of_claims(counted(200, (1.0,), 2.0, rng), FALSE_ALARM) for _ in range(9)]) > 1


def test_no_guesses_and_wrong_ones_bound_nothing() -> None:
    assert multiple_of_claims([], FALSE_ALARM) == 0
    assert multiple_of_claims([Guesses(1.0, 9, 9, 9, 2)], FALSE_ALARM) == 0
    assert multiple_of_claims([Guesses(1.0, 20, 20, 20, 20)], FALSE_ALARM) == pytest.approx(0.88, abs=0.02)


def found_in(folder: Path, settings: Mapping[str, Any], broken: str = "") -> list[Guesses]:
    """Play a run over gRPC, one process a client, whose mechanism is broken in this way."""
    (folder / "broken.py").write_text(BROKEN)
    experiment = pausefl.load("demo", {**settings, "experiment.python_path": [str(folder)]})
    group = {"count": 4, "behaviours": [{"kind": f"broken:{broken}"}] if broken else []}
    dealt = with_canaries(experiment.replace({"clients.groups.client": group}))
    run = pausefl.run(dealt, folder / "run", progress=False)
    assert run.summary["outcome"] == "completed"
    return guesses_of(folder / "run")


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
@pytest.mark.parametrize(("settings", "broken"), [(ROUNDS, "Half"), (ROUNDS, "Without"), (STEPS, "Without")])
def test_a_run_with_too_little_noise_is_caught(settings: Mapping[str, Any], broken: str, tmp_path: Path) -> None:
    audit = Audit(pausefl.load("demo"), (), (), "", (), found_in(tmp_path, settings, broken))
    assert repr(audit) == "<Audit of pause on digits: 0 bounds on ε, 0 checks>"
    with pytest.raises(PauseflError, match=r"canaries of the run: releases leak at least [1-9.]+ times"):
        audit.raise_if_broken()
