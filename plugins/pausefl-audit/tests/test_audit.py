"""The audit reports nothing for the right mechanism, and finds broken ones."""

import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import pausefl as library
from pausefl_audit.audit import check_ledgers
from pausefl_audit.canaries import Claim, attack, canary, clear_noise, places
from pausefl_audit.findings import (
    Check,
    check_clip,
    check_freshness,
    check_noise,
    check_seed,
    check_sources,
    epsilon_lower_bound,
)
from pausefl_audit.runs import NoiseSample, seed_bits
from pausefl_client.privacy.ledger import Ledger, ReleaseKey
from pausefl_client.privacy.mechanism import Mechanism, entropy_rng
from pausefl_proto.budget import Budget
from pausefl_proto.errors import PauseflError
from pausefl_proto.privacy_unit import PrivacyUnit
from pausefl_proto.wire import Manifest, TensorSpec, Vector
from rigs.refusals import complaint

UNITS: tuple[PrivacyUnit, ...] = ("coordinate", "vector")
MANIFEST = Manifest((TensorSpec("weight", (30, 10)), TensorSpec("bias", (10,)), TensorSpec("scale", ())))
D = MANIFEST.size
CLIP = 0.01
ALPHA = 1e-5
Make = Callable[[Mechanism, np.random.Generator], Callable[[Vector, float], Vector]]


def right(mechanism: Mechanism, rng: np.random.Generator) -> Callable[[Vector, float], Vector]:
    return lambda update, epsilon: mechanism.privatise(update, epsilon, rng)


def half_the_noise(mechanism: Mechanism, rng: np.random.Generator) -> Callable[[Vector, float], Vector]:
    return lambda update, epsilon: mechanism.privatise(update, 2 * epsilon, rng)


def the_same_noise_again(mechanism: Mechanism, rng: np.random.Generator) -> Callable[[Vector, float], Vector]:
    """The same noise in each release, as from a generator seeded anew before it."""
    return lambda update, epsilon: mechanism.privatise(update, epsilon, np.random.default_rng(1))


def one_draw_for_all_coordinates(mechanism: Mechanism, rng: np.random.Generator) -> Callable[[Vector, float], Vector]:
    def privatise(update: Vector, epsilon: float) -> Vector:
        noise = np.float32(rng.laplace(0.0, mechanism.scale(epsilon)))
        return mechanism.clip_update(update) + noise

    return privatise


def no_noise_on_one_coordinate(mechanism: Mechanism, rng: np.random.Generator) -> Callable[[Vector, float], Vector]:
    def privatise(update: Vector, epsilon: float) -> Vector:
        noised = mechanism.privatise(update, epsilon, rng)
        noised[137] = mechanism.clip_update(update)[137]
        return noised

    return privatise


def gaussian_noise(mechanism: Mechanism, rng: np.random.Generator) -> Callable[[Vector, float], Vector]:
    """Gaussian noise of the same standard deviation."""

    def privatise(update: Vector, epsilon: float) -> Vector:
        clipped = mechanism.clip_update(update)
        return (clipped + rng.normal(0, 2**0.5 * mechanism.scale(epsilon), clipped.shape)).astype(np.float32)

    return privatise


def clipping(clip: Callable[[Vector, Mechanism], Vector]) -> Make:
    """A mechanism with the right noise but another clip."""

    def make(mechanism: Mechanism, rng: np.random.Generator) -> Callable[[Vector, float], Vector]:
        return lambda update, e: rng.laplace(clip(update, mechanism), mechanism.scale(e)).astype(np.float32)

    return make


def skipping(update: Vector, mechanism: Mechanism) -> Vector:
    clipped = mechanism.clip_update(update)
    clipped[200:300] = update[200:300]
    return clipped


def in_l2_norm(update: Vector, mechanism: Mechanism) -> Vector:
    finite = np.nan_to_num(update, nan=0.0, posinf=0.0, neginf=0.0)
    return finite * np.float32(min(1.0, mechanism.clip / max(1e-30, float(np.linalg.norm(finite)))))


def keeping_what_is_not_finite(update: Vector, mechanism: Mechanism) -> Vector:
    return np.where(np.isnan(update), update, mechanism.clip_update(update))


CLIPS: dict[str, Callable[[Vector, Mechanism], Vector]] = {
    "none": lambda update, _: np.nan_to_num(update, nan=0.0, posinf=0.0, neginf=0.0),
    "not on coordinates 200 to 299": skipping,
    "each coordinate to the whole bound": lambda u, m: np.clip(np.nan_to_num(u, posinf=0, neginf=0), -m.clip, m.clip),
    "NaN kept": keeping_what_is_not_finite,
    "negative values only": lambda u, m: np.where(u < 0, m.clip_update(u), np.nan_to_num(u, posinf=0, neginf=0)),
}


def attacks(make: Make, unit: PrivacyUnit, epsilon: float = 1.0) -> dict[str, float]:
    """The lower bound on ε by attack. Seeds are fixed, so the results never change."""
    mechanism = Mechanism(unit, CLIP)
    privatise, rng = make(mechanism, np.random.default_rng(7)), np.random.default_rng(8)
    found = attack(privatise, Claim(unit, CLIP), epsilon, MANIFEST, 8_000, rng)
    return {name: epsilon_lower_bound(plus, minus, ALPHA) for name, (plus, minus) in found.items()}


def releases(make: Make, unit: PrivacyUnit, epsilon: float = 1.0) -> list[NoiseSample]:
    """Releases of two runs of two clients, each of which is restarted once."""
    mechanism, claim = Mechanism(unit, CLIP), Claim(unit, CLIP)
    privatise, rng, found = make(mechanism, np.random.default_rng(7)), np.random.default_rng(8), []
    for place in range(48):
        update = canary(D, rng)
        noise, toward = claim.noise(update, privatise(update, epsilon), epsilon), np.sign(claim.clipped(update))
        found.append(NoiseSample(place % 2, f"{place // 2 % 2}", 1 + place // 4 % 2, place // 8, 1, noise, toward))
    return found


def failing(checks: list[Check]) -> set[str]:
    return {check.question for check in checks if not check.holds(ALPHA)}


def clip_holds(clip: Callable[[Vector, Mechanism], Vector] | None, unit: PrivacyUnit) -> bool:
    make = right if clip is None else clipping(clip)
    privatise = make(Mechanism(unit, CLIP), np.random.default_rng(7))
    clear = list(clear_noise(privatise, Claim(unit, CLIP), MANIFEST, np.random.default_rng(8)))
    return check_clip(max(clear), D * len(clear)).holds(ALPHA)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("epsilon", [0.2, 1.0, 4.0])
def test_the_right_mechanism_holds_and_the_bound_is_not_vacuous(unit: PrivacyUnit, epsilon: float) -> None:
    found = attacks(right, unit, epsilon)
    assert max(found.values()) <= epsilon
    assert found["canaries"] > 0.7 * epsilon - 0.15
    assert clip_holds(None, unit)
    of_right = releases(right, unit, epsilon)
    assert not failing([*check_noise(of_right), *check_freshness(of_right)])


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize(
    ("broken", "attack"),
    [
        (half_the_noise, "canaries"),
        (the_same_noise_again, "two uploads compared"),
        (one_draw_for_all_coordinates, "two coordinates compared"),
        (clipping(CLIPS["none"]), "canaries"),
    ],
)
def test_an_upload_that_leaks_more_than_it_claims_is_caught(unit: PrivacyUnit, broken: Make, attack: str) -> None:
    assert attacks(broken, unit)[attack] > 1.4


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("name", CLIPS)
def test_a_wrong_clip_is_caught(unit: PrivacyUnit, name: str) -> None:
    assert not clip_holds(CLIPS[name], unit)


def test_the_norm_of_a_clip_is_told() -> None:
    assert not clip_holds(in_l2_norm, "vector")


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize(
    ("broken", "question"),
    [
        (half_the_noise, "noise of the scale that is charged"),
        (no_noise_on_one_coordinate, "noise on every coordinate"),
        (gaussian_noise, "noise of Laplace's law"),
        (clipping(skipping), "noise within reach of its scale"),
    ],
)
def test_noise_that_is_not_what_was_charged_is_caught(unit: PrivacyUnit, broken: Make, question: str) -> None:
    assert question in failing(list(check_noise(releases(broken, unit))))


def shared(same: Callable[[NoiseSample, NoiseSample], bool]) -> set[str]:
    """The checks that fail if one of two releases for which `same` holds gets half of the other's noise, shifted."""
    of_right = releases(right, "coordinate")
    one, other = next((a, b) for k, a in enumerate(of_right) for b in of_right[k + 1 :] if same(a, b))
    other.noise[D // 2 :] = one.noise[: D - D // 2]
    return failing(list(check_freshness(of_right)))


@pytest.mark.parametrize(
    ("relation", "same"),
    [
        ("between two runs", lambda a, b: a.run != b.run),
        ("between two clients", lambda a, b: (a.run, a.life) == (b.run, b.life) and a.client_id != b.client_id),
        ("with a restarted client", lambda a, b: (a.run, a.client_id) == (b.run, b.client_id) and a.life != b.life),
        ("between two rounds", lambda a, b: (a.run, a.client_id, a.life) == (b.run, b.client_id, b.life)),
    ],
)
def test_noise_that_is_used_again_is_caught(relation: str, same: Callable[[NoiseSample, NoiseSample], bool]) -> None:
    assert shared(same) == {f"noise shared {relation}"}


def test_noise_used_again_within_a_release_or_in_another_attempt_is_caught() -> None:
    of_right = releases(right, "coordinate")
    of_right[5].noise[150:] = of_right[5].noise[: D - 150]
    first = of_right[0]
    repeated = NoiseSample(first.run, first.client_id, first.life, first.round, 2, first.noise, first.toward)
    assert failing(list(check_freshness(of_right))) == {"noise shared within a release"}
    assert failing(list(check_freshness([first, repeated]))) == {"noise shared between two attempts"}


def test_seeds_that_can_be_tried_out_are_caught() -> None:
    def drawn(bits: int, n: int) -> np.ndarray:
        seeds = np.random.default_rng(3).integers(1 << bits, size=n)
        return np.array([np.random.default_rng(int(seed)).laplace() for seed in seeds])

    assert not check_sources(drawn(16, 2_000)).holds(ALPHA)
    assert not check_sources(drawn(20, 8_000)).holds(ALPHA)
    assert check_sources(drawn(60, 2_000)).holds(ALPHA)


def test_the_bits_of_a_seed_are_counted() -> None:
    import os

    def of(size: int, mask: int) -> Callable[[], np.random.Generator]:
        return lambda: np.random.default_rng(int.from_bytes(os.urandom(size)) & mask)

    assert seed_bits(entropy_rng) == 128
    assert check_seed(128).holds(ALPHA)
    assert seed_bits(of(2, -1)) == 16
    assert seed_bits(of(16, 0xFFFF)) == 16
    assert seed_bits(lambda: np.random.default_rng(7)) == 0
    assert not check_seed(16).holds(ALPHA)


def test_places_cover_the_ends_of_tensors_and_of_chunks() -> None:
    large = Manifest((TensorSpec("weight", (300, 300)), TensorSpec("bias", (300,))))
    found = set(places(large, np.random.default_rng(1)))
    assert {0, 65_535, 65_536, 89_999, 90_000, 90_299} < found
    assert max(found) < large.size


def test_the_lower_bound_is_below_the_truth_as_often_as_it_says() -> None:
    """Events of known probability: at ε = 1 a bound at confidence 90 % is too high in at most 10 % of 100 audits."""
    rng = np.random.default_rng(3)
    too_high = sum(
        epsilon_lower_bound(rng.laplace(0.5, 1.0, 2000), rng.laplace(-0.5, 1.0, 2000), alpha=0.1) > 1.0
        for _ in range(100)
    )
    assert too_high <= stats.binom.ppf(0.999, 100, 0.1)


def test_checks_of_a_right_mechanism_fail_as_rarely_as_they_say() -> None:
    """Each check may fail with probability 5 %. In 60 lots of releases, none fails more often than chance allows."""
    failed: dict[str, int] = {}
    mechanism, claim, rng = Mechanism("coordinate", CLIP), Claim("coordinate", CLIP), np.random.default_rng(11)
    for _ in range(60):
        lot = []
        for round_ in range(6):
            update = canary(D, rng)
            noise = claim.noise(update, mechanism.privatise(update, 1.0, rng), 1.0)
            lot.append(NoiseSample(0, "a", 1, round_, 1, noise, np.sign(update).astype(np.float64)))
        for check in (*check_noise(lot), *check_freshness(lot)):
            failed[check.question] = failed.get(check.question, 0) + (not check.holds(0.05))
    assert max(failed.values()) <= stats.binom.ppf(0.9999, 60, 0.05)


def pausefl(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pausefl", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.end_to_end
@pytest.mark.slow
def test_a_run_is_audited_with_its_ledgers(tmp_path: Path) -> None:
    run_dir, changes = tmp_path / "run", ("workload.model=synthetic", "latency.delay.kind=none", "experiment.rounds=4")
    arguments = [a for change in (*changes, "clients.count=6", "metrics.enabled=false") for a in ("--set", change)]
    assert pausefl("run", "demo", "--run-dir", run_dir, *arguments).returncode == 0
    audited = pausefl("audit", run_dir, "--uploads", 2000)
    assert audited.returncode == 0, audited.stderr
    assert audited.stdout.count("holds") == 6 + 13
    assert "releases of 1,024 coordinates, by 8 client processes of two runs" in audited.stdout
    assert "6 ledgers hold together and count no less than the server knows" in audited.stdout

    shutil.copytree(run_dir, tmp_path / "rolled back")
    rolled_back = sqlite3.connect(tmp_path / "rolled back/ledgers/client-000.db")
    rolled_back.execute("DELETE FROM releases WHERE participation = (SELECT max(participation) FROM releases)")
    rolled_back.commit()
    rolled_back.close()
    audited = pausefl("audit", tmp_path / "rolled back", "--uploads", 100)
    assert audited.returncode == 1
    assert "client-000.db: counts" in audited.stderr


@pytest.mark.usefixtures("quickly_written")
def test_a_ledger_that_is_missing_beside_others_or_says_less_than_the_server_is_named(tmp_path: Path) -> None:
    settings = {
        "experiment.clock": "virtual",
        "experiment.rounds": 2,
        "metrics.enabled": False,
        "clients.count": 3,
        "selection.m": 3,
        "workload.model": "synthetic",
    }
    run_dir = tmp_path / "run"
    library.run(library.load("demo", settings), run_dir)
    assert check_ledgers(run_dir) == "3 ledgers hold together and count no less than the server knows."
    (run_dir / "ledgers/client-001.db").unlink()
    with pytest.raises(PauseflError, match=r"are missing, others are there: client-001 \(2 releases\)"):
        check_ledgers(run_dir)
    (forged := run_dir / "ledgers/client-000.db").unlink()
    with closing(Ledger(forged, Budget(1.0, 0.04), unit="coordinate")) as ledger:
        for t in (1, 2):
            ledger.record(ReleaseKey("run", t, 1, "model"), ledger.next_charge(), "update", memoryview(b""))
    with pytest.raises(PauseflError, match=r"000.db: counts 2 releases \(epsilon 0.07\d*\), the server 2 \(epsilon 3"):
        check_ledgers(run_dir)
    for path in run_dir.glob("ledgers/*.db"):
        path.unlink()
    assert "keep them elsewhere" in check_ledgers(run_dir)


@pytest.mark.end_to_end
def test_a_model_of_ones_own_that_fails_is_one_line_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def model(shape, classes):\n    raise RuntimeError('no such shape')\n")
    (tmp_path / "own.toml").write_text('[workload]\nmodel = "broken:model"\n')
    done = pausefl("audit", tmp_path / "own.toml")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert f"RuntimeError: no such shape ({tmp_path / 'broken.py'}:2)" in line


def test_a_client_that_has_measured_after_the_audit_ended_says_nothing() -> None:
    """The error of one run ends the audit; the other run's client then had nobody to send to: a traceback."""
    script = """
import multiprocessing
from pausefl_audit import runs

ours, theirs = multiprocessing.Pipe(duplex=False)
ours.close()
runs._measured = lambda task: "measured"
runs._client(None, theirs)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_run_of_an_audit_that_is_to_end_first_finishes_what_it_starts() -> None:
    """Otherwise its fork server got half a request, and printed a traceback beside the error's line."""
    script = """
import os, signal
from pausefl_audit.runs import terminated_later

with terminated_later():
    os.kill(os.getpid(), signal.SIGTERM)
    print("started", flush=True)
print("went on", flush=True)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGTERM, "started\n", "")


@pytest.mark.end_to_end
def test_a_client_of_an_audit_that_is_killed_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "fatal.py").write_text(
        "import os\n\n\ndef model(shape, classes):\n    os.kill(os.getpid(), 9)  # as for want of memory\n"
    )
    (tmp_path / "own.toml").write_text('[workload]\nmodel = "fatal:model"\n')
    done = pausefl("audit", tmp_path / "own.toml")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.endswith("a process of the audit, ended early (exit code -9)")


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["demo", "--set", "privacy.reproducible_noise=true"], 1, "not private, the seed is enough"),
        (["demo", "--set", "privacy.enabled=false"], 1, "there is no mechanism to audit"),
        (["demo", "--run-dir", "it", "--set", "privacy.enabled=false"], 1, "there is no mechanism to audit"),
        (["demo", "--uploads", "3"], 2, "--uploads 3: must be at least 100"),
        (["nowhere"], 2, "neither a .toml file nor a preset"),
    ],
)
def test_what_cannot_be_audited_is_one_line(
    arguments: list[str], status: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in complaint(capsys, "audit", *arguments, status=status)
