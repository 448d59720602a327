"""The Laplace mechanism in both units (PAUSE v2, eq. (5); docs/papers.md, decision 8)."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

from pausefl.experiment.experiment import Experiment, parse_experiment
from pausefl.runtime.client.plan import client_plan
from pausefl.runtime.client.privacy import noise_for
from pausefl_client.privacy.device_noise import DeviceLaplace, philox_state, secret_generator
from pausefl_client.privacy.ledger import ReleaseKey
from pausefl_client.privacy.mechanism import ExactLaplace, LaplaceSource, Mechanism, NumpyLaplace, entropy_rng
from pausefl_proto.draws import generator
from pausefl_proto.errors import BudgetError
from pausefl_proto.privacy_unit import PrivacyUnit, vector_epsilon

UNITS: tuple[PrivacyUnit, ...] = ("coordinate", "vector")
N = 100_000
"""More values than one chunk of noise has."""

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
updates = hnp.arrays(np.float32, st.integers(1, 40), elements=st.floats(width=32, allow_nan=True, allow_infinity=True))
clips = st.floats(1e-6, 1e6)


def distance(unit: PrivacyUnit, one: np.ndarray, other: np.ndarray) -> float:
    """The L1 distance between two updates; for the unit "coordinate", the greatest distance of a coordinate."""
    gaps = np.abs(one.astype(np.float64) - other)
    return float(gaps.sum() if unit == "vector" else gaps.max())


@pytest.mark.parametrize(("unit", "share", "norm"), [("vector", 1.0, np.sum), ("coordinate", 0.5, np.max)])
@given(clip=clips, update=updates)
@example(clip=1e-20, update=np.array([1.1e20], np.float32))  # by a factor that float32 rounds coarsely
def test_a_clip_bounds_the_l1_norm_or_every_coordinate_whatever_the_update(
    unit: PrivacyUnit, share: float, norm: Callable[..., float], clip: float, update: np.ndarray
) -> None:
    clipped = Mechanism(unit, clip).clip_update(update)
    assert clipped.dtype == np.float32
    assert norm(np.abs(clipped.astype(np.float64))) <= share * clip


@pytest.mark.parametrize("unit", UNITS)
@given(clip=clips, one=updates, data=st.data())
def test_sensitivity_is_reached_and_never_exceeded(
    unit: PrivacyUnit, clip: float, one: np.ndarray, data: st.DataObject
) -> None:
    mechanism = Mechanism(unit, clip)
    other = data.draw(hnp.arrays(np.float32, one.shape, elements=st.floats(width=32)))
    assert distance(unit, mechanism.clip_update(one), mechanism.clip_update(other)) <= mechanism.sensitivity
    far = np.full(one.shape, 1e9, np.float32)
    reached = distance(unit, mechanism.clip_update(far), mechanism.clip_update(-far))
    assert reached == pytest.approx(mechanism.sensitivity, rel=1e-6)


@pytest.mark.parametrize("unit", UNITS)
def test_an_update_within_the_bound_is_left_as_it_is(unit: PrivacyUnit) -> None:
    update = np.array([0.1, -0.2, 0.05], np.float32)
    clipped = Mechanism(unit, 1.0).clip_update(update)
    assert np.array_equal(clipped, update)
    assert not np.shares_memory(clipped, update)
    far = Mechanism("vector", 1.0).clip_update(np.array([3.0, -1.0], np.float32))
    assert far == pytest.approx([0.75, -0.25], rel=1e-6), "its direction is kept"


@pytest.mark.parametrize(("unit", "scale"), [("coordinate", 0.3 / 2.0), ("vector", 2 * 0.3 / 2.0)])
def test_noise_is_laplace_at_the_stated_scale(unit: PrivacyUnit, scale: float) -> None:
    # The seed is fixed, so the result never changes. Over random seeds, one test in a thousand would fail.
    mechanism, source = Mechanism(unit, 0.3), NumpyLaplace(np.random.default_rng(7))
    update = np.zeros(N, np.float32)
    update[::2] = 1e-7
    noise = mechanism.privatise(update, 2.0, source).astype(np.float64) - mechanism.clip_update(update)
    assert mechanism.scale(2.0) == pytest.approx(scale)
    assert stats.kstest(noise, stats.laplace(scale=scale).cdf).pvalue > 1e-3
    assert stats.kstest(noise, stats.laplace(scale=scale / 2).cdf).pvalue < 1e-9


def test_the_exact_sampler_is_laplace_at_the_same_scale() -> None:
    # The entropy is the operating system's: one run in a million fails by chance.
    mechanism, update = Mechanism("coordinate", 0.3), np.full(4000, 7.0, np.float32)
    noise = mechanism.privatise(update, 2.0, ExactLaplace()).astype(np.float64) - mechanism.clip_update(update)
    assert stats.kstest(noise, stats.laplace(scale=mechanism.scale(2.0)).cdf).pvalue > 1e-6
    assert stats.kstest(noise, stats.laplace(scale=mechanism.scale(2.0) / 2).cdf).pvalue < 1e-9


def torch_generator(device: str, seed: int) -> torch.Generator:
    """A secret generator, if the device allows it, else one with a fixed seed."""
    return secret_generator(torch.device(device)) if device == "cuda" else torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_cuda)])
def test_noise_of_a_device_is_laplace_at_the_same_scale(device: str) -> None:
    # On a GPU the entropy is the operating system's: one run in a million fails by chance.
    mechanism, update = Mechanism("coordinate", 0.3), np.full(N, 7.0, np.float32)
    sources = [DeviceLaplace(torch_generator(device, seed)) for seed in (1, 2)]
    clipped = mechanism.clip_update(update)
    one, other = (mechanism.privatise(update, 2.0, source).astype(np.float64) - clipped for source in sources)
    for drawn in (one, other):
        assert stats.kstest(drawn, stats.laplace(scale=mechanism.scale(2.0)).cdf).pvalue > 1e-6
        assert stats.kstest(drawn, stats.laplace(scale=mechanism.scale(2.0) / 2).cdf).pvalue < 1e-9
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.02
    assert abs(np.corrcoef(one[: N // 2], one[N // 2 :])[0, 1]) < 0.02


def noise_of(experiment: Experiment, client_id: str, key: ReleaseKey) -> LaplaceSource:
    plan = client_plan(experiment)
    assert plan.privacy is not None
    return noise_for(plan.privacy, plan.training, client_id, key)


def test_noise_is_drawn_where_training_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    key = ReleaseKey("run", 1, 1, "")
    experiment = parse_experiment("", ["clients.count=2", "selection.m=1"])
    monkeypatch.setattr("pausefl_client.training.torch_trainer.resolve_device", lambda _: torch.device("cpu"))
    assert isinstance(noise_of(experiment, "c1", key), NumpyLaplace)
    monkeypatch.setattr("pausefl_client.training.torch_trainer.resolve_device", lambda _: torch.device("cuda"))
    monkeypatch.setattr("pausefl_client.privacy.device_noise.secret_generator", str)
    on_device = noise_of(experiment, "c1", key)
    assert isinstance(on_device, DeviceLaplace)
    assert str(on_device.generator) == "cuda"
    exact = parse_experiment("", ["clients.count=2", "selection.m=1", "privacy.sampler=opendp"])
    assert isinstance(noise_of(exact, "c1", key), ExactLaplace)


@pytest.mark.parametrize("seed", [1, 2])
def test_noise_does_not_follow_from_anything_public(seed: int) -> None:
    """Draws for the same experiment, client, round and attempt differ. Even with the seed, they cannot be predicted."""
    key = ReleaseKey("run", 1, 1, "model")
    experiment = parse_experiment("", ["clients.count=2", "selection.m=1", f"experiment.seed={seed}"])
    one, other = (noise_of(experiment, "client-000", key).laplace(np.zeros(8), 1.0) for _ in range(2))
    assert not np.intersect1d(one, other).size
    public = NumpyLaplace(generator(seed, "noise", "client-000", 1, 1)).laplace(np.zeros(8), 1.0)
    assert not np.intersect1d(one, public).size


def test_noise_is_fresh_for_every_coordinate_and_release() -> None:
    mechanism, source = Mechanism("coordinate", 1.0), NumpyLaplace(np.random.default_rng(7))
    everything = np.concatenate([mechanism.privatise(np.zeros(N, np.float32), 1.0, source) for _ in range(2)])
    # Rounded to float32, a few hundred of the 200,000 draws may be equal; a reused chunk would repeat 34,000.
    assert np.unique(everything).size > 0.97 * everything.size
    for lag in (1, 1 << 16, N):
        assert abs(np.corrcoef(everything[:-lag], everything[lag:])[0, 1]) < 0.02


@pytest.mark.parametrize("unit", UNITS)
def test_a_release_is_float32_finite_and_leaves_the_update_alone(unit: PrivacyUnit) -> None:
    update = np.array([np.nan, np.inf, -np.inf, 1.0], np.float32)
    before = update.copy()
    update.flags.writeable = False
    released = Mechanism(unit, 0.5).privatise(update, 1.0, NumpyLaplace(np.random.default_rng(1)))
    assert released.dtype == np.float32
    assert np.isfinite(released).all()
    assert np.array_equal(update, before, equal_nan=True)


def draws(monkeypatch: pytest.MonkeyPatch, entropy: bytes, draw: Callable[[], object]) -> object:
    """The draw that follows from this entropy of the operating system, which must be read at once and completely."""
    left = [entropy]

    def urandom(size: int) -> bytes:
        assert size == len(left[-1])
        return left.pop()

    with monkeypatch.context() as given:
        given.setattr("os.urandom", urandom)
        drawn = draw()
    assert not left
    return drawn


@pytest.mark.parametrize(
    ("draw", "bits"),
    [(lambda: entropy_rng().random(), 128), (lambda: bytes(philox_state().numpy()), 124)],
    ids=["numpy", "cuda"],
)
def test_each_bit_of_entropy_is_used(monkeypatch: pytest.MonkeyPatch, draw: Callable[[], object], bits: int) -> None:
    """Each release reads 128 bits. Flipping any one of `bits` of them gives another draw."""
    entropy = bytes(range(16))
    turned = [(int.from_bytes(entropy) ^ 1 << bit).to_bytes(16) for bit in range(128)]
    assert len({draws(monkeypatch, given, draw) for given in (entropy, *turned)}) == 1 + bits


def test_torch_is_not_trusted_with_a_seed_of_32_bits_and_philox_begins_where_it_can_count_from() -> None:
    """Philox draws four numbers at a time and must have 2^62 positions left."""
    low, high = (torch.rand(4, generator=torch.Generator().manual_seed(s)) for s in (5, 5 + (1 << 40)))
    assert torch.equal(low, high)  # why torch's CPU generator is refused
    with pytest.raises(ValueError, match="32 bits"):
        secret_generator(torch.device("cpu"))
    places = [int(philox_state().numpy().view("<u8")[1]) for _ in range(20)]
    assert all(place % 4 == 0 and place < 1 << 62 for place in places)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_a_bad_clip_or_unit_names_its_key_and_a_bad_epsilon_releases_nothing(bad: float) -> None:
    for clip in (bad, 1e-43):
        with pytest.raises(ValueError, match=r"^clip = .*must be"):
            Mechanism("vector", clip)
    with pytest.raises(ValueError, match=r"^unit = 'layer': must be one of"):
        Mechanism("layer", 1.0)  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(ValueError, match="epsilon"):
        Mechanism("vector", 1.0).privatise(np.ones(3, np.float32), bad, NumpyLaplace(entropy_rng()))


@pytest.mark.parametrize("epsilon", [5e-324, 1e-60])
def test_an_epsilon_beyond_float32_is_refused_as_used_up(epsilon: float) -> None:
    assert [vector_epsilon(unit, 2.0, 100) for unit in UNITS] == [200.0, 2.0]
    with pytest.raises(BudgetError, match="used up"):
        Mechanism("vector", 1.0).scale(epsilon)
