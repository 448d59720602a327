"""Aggregation rules and server optimizers against naive references, in any order of arrival."""

import itertools

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pausefl.experiment.server_records import aggregation_of
from pausefl.experiment.tables import AggregationTable
from pausefl_proto.wire import Vector
from pausefl_server.model import aggregation as rules
from pausefl_server.model.aggregation import RULES, Aggregation, weighted_mean
from pausefl_server.model.global_model import GlobalModel
from pausefl_server.model.optimizers import SERVER_OPTIMIZERS, DynamicRegularizer, Optimizer, ServerOptimizer

SIZES = st.sampled_from([1, 2, 50, 1000, 8192, 20_000, 70_000])  # one block, and more than one
COUNTS = st.integers(1, 9)
HARMFUL = st.integers(0, 6)
OPTIMIZERS = ("sgd", "fedavgm", "fedadam", "fedyogi")


def rule_of(name: str) -> Aggregation:
    """A named rule with its defaults, as an experiment has it."""
    return aggregation_of(AggregationTable(rule={"kind": name}))


def optimizer_of(name: str, **parameters: float) -> Optimizer:
    """A named server optimizer with its defaults; `parameters` are parameters of `ServerOptimizer`."""
    made: type[Optimizer] = SERVER_OPTIMIZERS[name]
    return ServerOptimizer(name, **parameters) if made is ServerOptimizer else made()  # type: ignore[arg-type]  # of several types


def vectors(n: int, size: int, seed: int) -> list[Vector]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(size, np.float32) for _ in range(n)]


# -- FedAvg, eq. (2)


@given(st.integers(1, 20), SIZES, st.integers(0, 1000), st.data())
def test_fedavg_is_equation_2_to_float32s_accuracy(n: int, size: int, seed: int, data: st.DataObject) -> None:
    updates = vectors(n, size, seed)
    weights = np.array(data.draw(st.lists(st.integers(1, 10**6), min_size=n, max_size=n)), np.float64)
    averaged = weighted_mean(updates, weights)
    assert averaged.dtype == np.float32
    expected = sum(a * h.astype(np.float64) for a, h in zip(weights / weights.sum(), updates, strict=True))
    # Values are below 5 in magnitude; each of the n products and sums has a rounding error of 2^-24.
    np.testing.assert_allclose(averaged, expected, rtol=0, atol=5 * (n + 3) * 2**-23)


@pytest.mark.parametrize("scale", [1.0, 0.25, 1024.0])
def test_only_the_ratios_of_the_weights_count(scale: float) -> None:
    updates, weights = vectors(3, 100, seed=3), np.array([1.0, 2.0, 5.0])
    assert weighted_mean(updates, scale * weights).tobytes() == weighted_mean(updates, weights).tobytes()
    assert weighted_mean(updates[:1], scale * weights[:1]).tobytes() == updates[0].tobytes()
    with pytest.raises(ValueError):
        weighted_mean(updates, weights[:2])


# -- robust rules against references without blocks


@given(COUNTS | st.sampled_from([32, 33]), SIZES, st.integers(0, 1000))
@example(32, 8192, 1)
@example(33, 8192, 1)
def test_the_median_is_the_middle_value_of_each_coordinate(n: int, size: int, seed: int) -> None:
    """Up to 32 updates are sorted by whole rows, more updates by columns."""
    updates = vectors(n, size, seed)
    ordered = np.sort(np.stack(updates), axis=0)
    expected = (ordered[(n - 1) // 2] + ordered[n // 2]) / np.float32(2)
    np.testing.assert_allclose(rules.trimmed_mean(updates, n), expected, atol=1e-7)


@given(COUNTS, SIZES, HARMFUL, st.integers(0, 1000))
def test_the_trimmed_mean_leaves_out_the_extremes(n: int, size: int, harmful: int, seed: int) -> None:
    updates = vectors(n, size, seed)
    f = next(f for f in range(harmful, -1, -1) if n - 2 * f >= 1)
    expected = np.array([np.mean(sorted(map(float, column))[f : n - f]) for column in np.stack(updates).T[:200]])
    np.testing.assert_allclose(rules.trimmed_mean(updates, harmful)[:200], expected, atol=1e-6)


@given(COUNTS, st.sampled_from([1, 50, 20_000]), HARMFUL, st.integers(0, 1000))
def test_krum_scores_are_sums_of_the_least_distances(n: int, size: int, harmful: int, seed: int) -> None:
    updates = vectors(n, size, seed)
    expected = []
    for i, one in enumerate(updates):
        distances = sorted(float(((np.float64(one) - o) ** 2).sum()) for j, o in enumerate(updates) if j != i)
        expected.append(sum(distances[: max(1, n - harmful - 2)]))
    assert rules.krum_scores(updates, harmful) == pytest.approx(expected, rel=1e-9)
    assert rules.krum(updates, harmful).tobytes() == updates[int(np.argmin(expected))].tobytes()
    mean = np.mean([updates[i] for i in np.argsort(expected, kind="stable")[: max(1, n - harmful)]], axis=0)
    np.testing.assert_allclose(rules.multi_krum(updates, harmful), mean, atol=1e-6)


@given(COUNTS, SIZES, st.none() | st.floats(0.01, 100), st.integers(0, 1000))
def test_no_clipped_update_is_longer_than_the_bound(n: int, size: int, clip_norm: float | None, seed: int) -> None:
    updates = [np.float32(k + 1) * u for k, u in enumerate(vectors(n, size, seed))]
    norms = [float(np.linalg.norm(np.float64(u))) for u in updates]
    bound = clip_norm or float(np.median(norms))
    for before, after, norm in zip(updates, rules.clipped(updates, clip_norm), norms, strict=True):
        np.testing.assert_allclose(after, before * min(1.0, bound / norm), rtol=1e-5)


@given(SIZES, st.integers(0, 1000))
def test_squared_distances_and_inner_products_are_those_of_float64(size: int, seed: int) -> None:
    a, b = vectors(2, size, seed)
    expected = float(((np.float64(a) - np.float64(b)) ** 2).sum())
    assert rules.squared_distance(a, b) == pytest.approx(expected, rel=1e-12)
    great, small = np.full(20_000, 1e30, np.float32), np.full(20_000, 3.0, np.float32)
    assert rules.inner_product(great, great) == pytest.approx(2e64)
    assert rules.inner_product(great, small) == pytest.approx(6e34)


# -- what every rule must keep


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("n", [1, 2, 3, 9])
def test_arguments_are_left_as_they_were(rule: str, n: int) -> None:
    """Updates from the wire are read-only. The result belongs to the caller."""
    updates = vectors(n, 100, seed=8)
    for vector in updates:
        vector.flags.writeable = False
    combined, again = (rule_of(rule).combine(updates, np.arange(1.0, n + 1)) for _ in range(2))
    assert combined.tobytes() == again.tobytes()
    assert combined.dtype == np.float32
    assert combined.shape == (100,)
    assert not any(np.shares_memory(combined, v) for v in updates)


GREATEST = [np.full(10, value, np.float32) for value in (0.0, 3e38, -3e38)]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("update", [*vectors(1, 100, seed=8), *GREATEST], ids=["some", "0", "greatest", "least"])
def test_agreement_is_kept_also_at_the_greatest_values_that_the_wire_takes(rule: str, update: Vector) -> None:
    np.testing.assert_allclose(rule_of(rule).combine([update] * 5, np.ones(5)), update, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("rule", ["median", "trimmed-mean", "krum", "multi-krum"])
@pytest.mark.parametrize("harm", [1e6, -1e6])
def test_f_harmful_updates_of_many_do_not_move_the_result_far(rule: str, harm: float) -> None:
    honest = [1 + 0.1 * v for v in vectors(7, 200, seed=4)]
    harmful = [np.full(200, harm, np.float32)] * 2
    assert np.abs(Aggregation(rule, harmful=2).combine([*harmful, *honest], np.ones(9)) - 1).max() < 0.5
    assert np.abs(Aggregation().combine([*harmful, *honest], np.ones(9)) - 1).max() > 1e5


def test_clipping_bounds_what_one_update_can_do_and_coordinate_rules_do_not_even_depend_on_the_order() -> None:
    updates = [*vectors(4, 50, seed=4), np.full(50, 1e6, np.float32)]
    assert np.linalg.norm(Aggregation("norm-clip", clip_norm=2.0).combine(updates, np.ones(5))) <= 2.0 + 1e-5
    for rule in (Aggregation("median"), Aggregation("trimmed-mean")):
        assert len({rule.combine(p, np.ones(4)).tobytes() for p in itertools.permutations(updates[:4])}) == 1


# -- server optimizers


def naive_steps(
    kind: str, theta: npt.NDArray[np.float64], changes: list[Vector], rate: float, b1: float, b2: float, tau: float
) -> npt.NDArray[np.float64]:
    """The optimizers' equations as the papers print them, per coordinate in float64."""
    theta = theta.astype(np.float64).copy()
    for i in range(theta.size):
        m, v = 0.0, tau**2
        for change in changes:
            d = float(change[i])
            if kind == "sgd":
                theta[i] += rate * d
            elif kind == "fedavgm":
                m = b1 * m + d
                theta[i] += rate * m
            else:
                m = b1 * m + (1 - b1) * d
                v = b2 * v + (1 - b2) * d * d if kind == "fedadam" else v - (1 - b2) * d * d * np.sign(v - d * d)
                theta[i] += rate * m / (np.sqrt(v) + tau)
    return theta


@pytest.mark.parametrize("kind", OPTIMIZERS)
@given(seed=st.integers(0, 1000), rate=st.floats(0.01, 2), b1=st.floats(0, 0.95), b2=st.floats(0.5, 0.99))
def test_optimizers_are_the_papers_formulas(kind: str, seed: int, rate: float, b1: float, b2: float) -> None:
    theta, *changes = vectors(6, 10, seed)
    optimizer = ServerOptimizer(kind, rate, b1, b2, tau=0.01)  # type: ignore[arg-type]  # one of its names
    moved, state = theta, optimizer.start(theta.size)
    for change in changes:
        moved, state = optimizer.step(moved, change, state)
    expected = naive_steps(kind, theta.astype(np.float64), changes, rate, b1, b2, 0.01)
    np.testing.assert_allclose(moved, expected, rtol=1e-3, atol=1e-4)
    assert moved.dtype == state.dtype == np.float32


@pytest.mark.parametrize("kind", SERVER_OPTIMIZERS)
@given(
    great=st.lists(st.sampled_from([0.0, 1e-30, 1.0, 1e18, 1e19, 2e19, 1e25, 1e30]), min_size=1, max_size=6),
    sign=st.sampled_from([-1.0, 1.0]),
    b2=st.sampled_from([0.0, 0.5, 0.99]),
)
def test_no_change_makes_models_or_moments_infinite(kind: str, great: list[float], sign: float, b2: float) -> None:
    optimizer = optimizer_of(kind, learning_rate=0.1, beta_2=b2)
    theta, state = np.zeros(2, np.float32), optimizer.start(2)
    for change in great:
        theta, state = optimizer.step(theta, np.array([sign * change, 1.0], np.float32), state)
        assert np.isfinite(theta).all()
        assert np.isfinite(state).all()


@pytest.mark.parametrize("kind", SERVER_OPTIMIZERS)
def test_a_step_leaves_its_arguments_as_they_were(kind: str) -> None:
    theta, change = vectors(2, 20, seed=1)
    optimizer = optimizer_of(kind)
    state = optimizer.start(20)
    for vector in (theta, change, state):
        vector.flags.writeable = False
    moved, _ = optimizer.step(theta, change, state)
    assert not any(np.shares_memory(moved, v) for v in (theta, change, state))
    averaged, _ = ServerOptimizer().step(theta, change, ServerOptimizer().start(20))
    assert averaged.tobytes() == (theta + change).tobytes()


def test_the_share_of_all_clients_is_1_at_most_and_control_variates_follow_their_mean_times_it() -> None:
    optimizer, updates = DynamicRegularizer(), vectors(2, 5, seed=1)
    model = GlobalModel.start(np.zeros(5, np.float32), optimizer)
    moved = model.updated(updates, np.ones(2), Aggregation(), optimizer, clients=1)
    np.testing.assert_allclose(moved.optimizer_state, (updates[0] + updates[1]) / 2, atol=1e-6)
    moved = model.updated(updates, np.ones(2), Aggregation(), optimizer, clients=8)
    np.testing.assert_allclose(moved.optimizer_state, (updates[0] + updates[1]) / 8, atol=1e-6)
    np.testing.assert_allclose(moved.theta, (updates[0] + updates[1]) * (1 / 2 + 1 / 8), atol=1e-6)
    updates = vectors(2, 6, seed=1)
    model = GlobalModel.start(np.zeros(6, np.float32), ServerOptimizer(), model_size=3)
    moved = model.updated(updates, np.array([1.0, 3.0]), Aggregation(), ServerOptimizer(), clients=8)
    np.testing.assert_allclose(moved.theta[:3], (updates[0][:3] + 3 * updates[1][:3]) / 4, atol=1e-6)
    np.testing.assert_allclose(moved.theta[3:], (updates[0][3:] + updates[1][3:]) / 8, atol=1e-6)


def test_an_update_far_greater_than_the_rounds_median_is_an_outlier() -> None:
    unit = np.full(4, 0.5, np.float32)  # of norm 1
    found = rules.outliers([unit, 2 * unit, 100 * unit], norm_limit=3.0)
    assert found == {2: "has a norm of 100, the round's others allow 6"}
    for updates in ([unit, 0 * unit], [0 * unit] * 2):
        assert rules.outliers(updates, norm_limit=3.0) == {}
