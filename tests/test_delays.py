"""Latency laws: their means and quantiles, the floor, the published halves, and what a draw depends on."""

from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from pausefl.delays import Delay, Floor, NoDelay, Normal, known_means, published_delay, published_halves
from pausefl_proto.arrays import FloatArray
from pausefl_proto.draws import generator


def floored_normal(mean_s: float, sd_s: float, floor_s: float) -> Floor:
    return Floor(Normal(mean_s, sd_s), floor_s)


LAWS = [
    floored_normal(0.9, 0.05, 0.05),
    floored_normal(0.07, 0.05, 0.05),  # a third of its mass sits on the floor
    floored_normal(0.0, 0.05, 0.05),
    floored_normal(0.3, 0.0, 0.05),
    floored_normal(0.01, 0.0, 0.05),
]


def draws(law: Delay, n: int = 200_000) -> FloatArray:
    return law.sample(generator(1, "test"), n)


def expected(law: Floor, f: object) -> float:
    """E[f(max(floor, X))] by integration over the normal density."""
    assert isinstance(law.of, Normal)
    mean_s, sd_s = law.of.mean_s, law.of.sd_s
    if not sd_s:
        return float(f(max(mean_s, law.floor_s)))  # type: ignore[operator]
    normal = stats.norm(mean_s, sd_s)
    tail, _ = integrate.quad(
        lambda x: f(x) * normal.pdf(x),  # type: ignore[operator]
        law.floor_s,
        max(law.floor_s, mean_s) + 10 * sd_s,
        points=[max(law.floor_s, mean_s)],
    )
    return float(f(law.floor_s) * normal.cdf(law.floor_s) + tail)  # type: ignore[operator]


@pytest.mark.parametrize("law", LAWS)
def test_means_are_those_of_the_floored_law(law: Floor) -> None:
    assert law.mean_s == pytest.approx(expected(law, lambda x: x), rel=1e-4)
    assert law.mean_inverse == pytest.approx(expected(law, lambda x: 1 / x), rel=1e-4)


@pytest.mark.parametrize("law", LAWS)
def test_draws_have_the_stated_means(law: Floor) -> None:
    sample = draws(law)
    assert isinstance(law.of, Normal)
    error = 5 * law.of.sd_s / len(sample) ** 0.5  # five standard errors
    assert sample.mean() == pytest.approx(law.mean_s, abs=error + 1e-12)
    assert (1 / sample).mean() == pytest.approx(law.mean_inverse, abs=error / law.floor_s**2 + 1e-9)


@pytest.mark.parametrize("level", [0.01, 0.1, 0.5, 0.9, 0.99])
def test_draws_have_the_quantiles_of_the_normal(level: float) -> None:
    law = floored_normal(0.9, 0.05, 0.05)
    assert np.quantile(draws(law), level) == pytest.approx(NormalDist(0.9, 0.05).inv_cdf(level), abs=1e-3)


def test_the_mass_below_the_floor_sits_on_it() -> None:
    law = floored_normal(0.07, 0.05, 0.05)
    sample = draws(law)
    assert sample.min() == 0.05
    share = NormalDist(0.07, 0.05).cdf(0.05)
    assert (sample == 0.05).mean() == pytest.approx(share, abs=0.005)


@given(st.floats(-1, 1), st.floats(0, 1), st.floats(0, 1), st.integers(0, 2**32))
def test_no_draw_lies_below_the_floor(mean_s: float, sd_s: float, floor_s: float, seed: int) -> None:
    sample = floored_normal(mean_s, sd_s, floor_s).sample(np.random.default_rng(seed), 100)
    assert sample.shape == (100,)
    assert (sample >= floor_s).all()


def test_a_law_that_can_be_zero_has_an_infinite_mean_inverse() -> None:
    assert floored_normal(0.0, 0.1, 0.0).mean_inverse == float("inf")
    assert NoDelay().mean_inverse == float("inf")


def test_no_delay_is_nothing() -> None:
    assert draws(NoDelay(), 7).tolist() == [0.0] * 7
    assert NoDelay().mean_s == 0.0


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ((float("nan"), 0.1, 0.1), "mean_s"),
        ((float("inf"), 0.1, 0.1), "mean_s"),
        ((0.1, -0.1, 0.1), "sd_s"),
        ((0.1, 0.1, -0.1), "floor_s"),
        ((0.1, float("inf"), 0.0), "sd_s"),
    ],
)
def test_numbers_that_make_no_law_are_refused_by_name(values: tuple[float, float, float], name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} = .*: must be a finite number"):
        floored_normal(*values)


@pytest.mark.parametrize("clients", [30, 31, 300])
def test_halves_are_the_published_ones(clients: int) -> None:
    """mean_k = 0.05 + 0.15 (k+1)/h for k < h = ⌊K/2⌋, else 0.7 + 0.2 (k+1−h)/(K−h); sd 0.05, floor 0.05."""
    half = clients // 2
    fast = [0.05 + 0.15 * (k + 1) / half for k in range(half)]
    slow = [0.7 + 0.2 * (k + 1) / (clients - half) for k in range(clients - half)]
    laws = published_halves(clients)
    means_s = [law.of.mean_s for law in laws]
    assert means_s == pytest.approx(fast + slow)
    assert laws == [floored_normal(mean_s, 0.05, 0.05) for mean_s in means_s]
    assert (fast[-1], slow[-1]) == pytest.approx((0.2, 0.9))


@given(st.integers(1, 60), st.floats(0, 0.19), st.floats(0, 0.2))
def test_means_rise_within_each_half(clients: int, floor_s: float, sd_s: float) -> None:
    laws = [published_delay(k, clients, floor_s=floor_s, sd_s=sd_s) for k in range(clients)]
    means_s = [law.of.mean_s for law in laws]
    assert means_s == sorted(means_s)


def test_what_the_genie_is_told_is_the_laws_means() -> None:
    laws = {f"c{k}": law for k, law in enumerate(published_halves(4))}
    means, inverses = known_means(laws)
    assert means == {c: law.mean_s for c, law in laws.items()}
    assert inverses == {c: law.mean_inverse for c, law in laws.items()}


def one_draw(seed: int, client_id: str, round: int) -> float:
    return float(LAWS[0].sample(generator(seed, "delay", client_id, round), 1)[0])


def test_a_draw_is_a_function_of_seed_client_and_round() -> None:
    keys = [(s, c, r) for s in (1, 2) for c in ("client-000", "client-001") for r in range(1, 20)]
    in_order = {key: one_draw(*key) for key in keys}
    backwards = {key: one_draw(*key) for key in reversed(keys)}
    assert in_order == backwards
    assert len(set(in_order.values())) == len(keys)


def test_draws_of_different_clients_and_rounds_are_independent() -> None:
    one = np.array([one_draw(1, "client-000", r) for r in range(1, 2001)])
    other = np.array([one_draw(1, "client-001", r) for r in range(1, 2001)])
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.1
    assert abs(np.corrcoef(one[1:], one[:-1])[0, 1]) < 0.1
