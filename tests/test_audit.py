"""The audit: silent about the right mechanism, loud about three broken ones."""

import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from pausefl.audit import Finding, audit, epsilon_lower_bound
from pausefl_client.privacy import Mechanism, Unit
from pausefl_proto.wire import Vector

UPLOADS = 20_000
FEW = 4_000
UNITS: tuple[Unit, ...] = ("coordinate", "vector")


def right(mechanism: Mechanism, rng: np.random.Generator) -> Callable[[Vector, float], Vector]:
    return lambda update, epsilon: mechanism.privatise(update, epsilon, rng)


def half_the_noise(mechanism: Mechanism, rng: np.random.Generator) -> Callable[[Vector, float], Vector]:
    return lambda update, epsilon: mechanism.privatise(update, 2 * epsilon, rng)


def the_same_noise_again(mechanism: Mechanism, rng: np.random.Generator) -> Callable[[Vector, float], Vector]:
    """Drawn once, as from a generator seeded anew before every release."""
    return lambda update, epsilon: mechanism.privatise(update, epsilon, np.random.default_rng(1))


def noise_on_the_first_coordinate(mechanism: Mechanism, rng: np.random.Generator) -> Callable[[Vector, float], Vector]:
    def privatise(update: Vector, epsilon: float) -> Vector:
        bare, noised = mechanism.clip_update(update), mechanism.privatise(update, epsilon, rng)
        return np.concatenate([noised[:1], bare[1:]])

    return privatise


def one_draw_for_all_coordinates(mechanism: Mechanism, rng: np.random.Generator) -> Callable[[Vector, float], Vector]:
    def privatise(update: Vector, epsilon: float) -> Vector:
        noise = np.float32(rng.laplace(0.0, mechanism.scale(epsilon)))
        return mechanism.clip_update(update) + noise

    return privatise


def no_clipping(mechanism: Mechanism, rng: np.random.Generator) -> Callable[[Vector, float], Vector]:
    return lambda update, epsilon: rng.laplace(update, mechanism.scale(epsilon)).astype(np.float32)


def clipping_each_coordinate(mechanism: Mechanism, rng: np.random.Generator) -> Callable[[Vector, float], Vector]:
    """The right clip for the other unit: the upload's L1 norm is then d times what the noise is made for."""

    def privatise(update: Vector, epsilon: float) -> Vector:
        clipped = np.clip(update, -mechanism.clip, mechanism.clip)
        return rng.laplace(clipped, mechanism.scale(epsilon)).astype(np.float32)

    return privatise


def findings(
    make: Callable[..., Callable[[Vector, float], Vector]], unit: Unit, epsilon: float = 1.0, uploads: int = FEW
) -> dict[str, Finding]:
    # A fixed seed: the test always says the same, and over seeds it would raise a false alarm once in a thousand.
    mechanism = Mechanism(unit, 0.01)
    return {f.attack: f for f in audit(make(mechanism, np.random.default_rng(7)), mechanism, epsilon, uploads)}


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("epsilon", [0.2, 1.0, 4.0])
def test_the_right_mechanism_holds_and_the_bound_is_not_vacuous(unit: Unit, epsilon: float) -> None:
    found = findings(right, unit, epsilon, UPLOADS)
    assert all(f.holds for f in found.values())
    assert 0.8 * epsilon - 0.1 < found["one canary coordinate"].lower_bound <= epsilon
    if epsilon == 1.0:
        assert found["one canary coordinate"].lower_bound >= 0.8


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize(
    ("broken", "attack"),
    [
        (half_the_noise, "one canary coordinate"),
        (the_same_noise_again, "two uploads compared"),
        (noise_on_the_first_coordinate, "a canary in the last coordinate"),
        (one_draw_for_all_coordinates, "two coordinates compared"),
        (no_clipping, "one canary coordinate"),
    ],
)
def test_a_broken_mechanism_is_caught(
    unit: Unit, broken: Callable[..., Callable[[Vector, float], Vector]], attack: str
) -> None:
    finding = findings(broken, unit)[attack]
    assert not finding.holds
    assert finding.lower_bound > 1.5


def test_clipping_in_the_wrong_unit_is_caught() -> None:
    assert not findings(clipping_each_coordinate, "vector")["a canary in every coordinate"].holds


def test_the_lower_bound_is_below_the_truth_as_often_as_it_says() -> None:
    """Events of known probability: at ε = 1 a bound at confidence 90 % is too high in at most 10 % of 200 audits."""
    rng = np.random.default_rng(3)
    too_high = sum(
        epsilon_lower_bound(rng.laplace(0.5, 1.0, 2000), rng.laplace(-0.5, 1.0, 2000), alpha=0.1) > 1.0
        for _ in range(200)
    )
    assert too_high <= stats.binom.ppf(0.999, 200, 0.1)


def pausefl(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pausefl", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.end_to_end
def test_a_run_is_audited_with_its_ledgers(tmp_path: Path) -> None:
    run_dir, changes = tmp_path / "run", ("workload.model=synthetic", "latency.delay.kind=none", "experiment.rounds=4")
    arguments = [a for change in (*changes, "clients.count=6", "metrics.enabled=false") for a in ("--set", change)]
    assert pausefl("run", "demo", "--run-dir", run_dir, *arguments).returncode == 0
    audited = pausefl("audit", run_dir, "--uploads", 2000)
    assert audited.returncode == 0, audited.stderr
    assert audited.stdout.count("holds") == 10
    assert "6 ledgers hold together and count no less than the server knows" in audited.stdout

    shutil.copytree(run_dir, tmp_path / "rolled back")
    rolled_back = sqlite3.connect(tmp_path / "rolled back/ledgers/client-000.db")
    rolled_back.execute("DELETE FROM releases WHERE participation = (SELECT max(participation) FROM releases)")
    rolled_back.commit()
    rolled_back.close()
    audited = pausefl("audit", tmp_path / "rolled back", "--uploads", 100)
    assert audited.returncode == 1
    assert "client-000.db: counts" in audited.stderr


@pytest.mark.end_to_end
@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["demo", "--set", "privacy.reproducible_noise=true"], 1, "not private, whoever knows the seed"),
        (["demo", "--set", "privacy.enabled=false"], 1, "there is no mechanism to audit"),
        (["demo", "--uploads", "3"], 2, "--uploads 3: must be at least 100"),
        (["nowhere"], 2, "neither a .toml file nor a preset"),
    ],
)
def test_what_cannot_be_audited_is_one_line(arguments: list[str], status: int, message: str) -> None:
    done = pausefl("audit", *arguments)
    assert done.returncode == status
    (line,) = done.stderr.splitlines()
    assert message in line
