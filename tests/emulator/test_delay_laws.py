"""Every latency law: moments and quantiles against scipy, compositions, laws that change, and users' own laws."""

import math
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.stats as st
from hypothesis import given
from hypothesis import strategies as some

from pausefl.experiment.delay_laws.base import Delay, SampledDelay, known_means
from pausefl.experiment.delay_laws.changing import DayCycle, DelayDrift, MarkovDelay, Outage, Schedule
from pausefl.experiment.delay_laws.combined import Floor, Mixture, Scale, Sum, published_delay
from pausefl.experiment.delay_laws.laws import (
    Constant,
    Exponential,
    Gamma,
    LogNormal,
    NoDelay,
    Normal,
    Pareto,
    Recorded,
    Values,
    Weibull,
)
from pausefl.experiment.delays.laws import DELAYS
from pausefl.experiment.experiment import parse_experiment
from pausefl.experiment.links import LatencyTable
from pausefl.experiment.population.availability import Presence
from pausefl.runtime.client.links import make_links
from pausefl.studies.ahead import expected_wait_s
from pausefl.studies.simulation.engine import Setting, server_of, simulate
from pausefl.studies.simulation.newcomers import DriftSetting
from pausefl_proto.draws import generator
from pausefl_proto.errors import ConfigError
from pausefl_server.selection.policies.pause import Pause
from rigs.experiments import links_of

N = 100_000
STEPS = Schedule((1, 3, 6), (Constant(0.1), Constant(0.2), Constant(0.3)))
SIGMA = math.sqrt(math.log(1.25))
LAWS: dict[str, tuple[Delay, Any]] = {
    "normal": (Normal(0.5, 0.1), st.norm(0.5, 0.1)),
    "lognormal": (LogNormal(0.2, 0.1), st.lognorm(SIGMA, scale=0.2 * math.exp(-(SIGMA**2) / 2))),
    "exponential": (Exponential(0.3), st.expon(scale=0.3)),
    "gamma": (Gamma(0.3, 4.0), st.gamma(4.0, scale=0.075)),
    "weibull": (Weibull(0.3, 2.5), st.weibull_min(2.5, scale=0.3)),
    "pareto": (Pareto(0.1, 3.0), st.pareto(3.0, scale=0.1)),
    "scale": (Scale(Gamma(300.0, 4.0), 0.001), st.gamma(4.0, scale=0.075)),
    "sum": (Sum((Exponential(0.1), Exponential(0.1), Exponential(0.1))), st.gamma(3.0, scale=0.1)),
}
VARYING: dict[str, Delay] = {
    **{name: law for name, (law, _) in LAWS.items()},
    "constant": Constant(0.2),
    "none": NoDelay(),
    "empirical": Recorded((0.1, 0.2, 0.4)),
    "values": Values((0.1, 0.2, 0.4)),
    "mixture": Mixture((Constant(0.1), Gamma(0.5, 3.0)), (0.75, 0.25)),
    "floor": Floor(Normal(0.1, 0.1), 0.05),
    "markov": MarkovDelay(Constant(0.1), Gamma(1.0, 4.0), 0.1, 0.3, path=3),
    "schedule": Schedule((1, 5), (Constant(0.1), Exponential(0.2))),
    "drift": DelayDrift(Exponential(0.1), (1, 11), (1.0, 2.0)),
    "day": DayCycle(Exponential(0.1), 24, 0.5),
    "outage": Outage(Exponential(0.1), ((3, 4),), 1.0),
}
CHANGING = ("schedule", "drift", "day", "outage")


def draws(law: Delay, n: int = N, first_round: int = 1) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return law.sample(generator(1, "test"), n, first_round)


def test_a_key_has_the_draws_of_earlier_versions() -> None:
    assert generator(1, "delay", "c", 5).bit_generator.random_raw() == 582645281140338848


@pytest.mark.parametrize("name", LAWS)
def test_draws_have_the_mean_and_the_quantiles_of_the_law(name: str) -> None:
    law, truth = LAWS[name]
    sample = draws(law)
    assert sample.mean() == pytest.approx(truth.mean(), abs=5 * truth.std() / math.sqrt(N))
    assert law.mean_s == pytest.approx(truth.mean(), rel=1e-9)
    for level in (0.01, 0.1, 0.5, 0.9, 0.99):
        # A quantile's standard error is sqrt(q(1-q)/n) / density.
        error_s = math.sqrt(level * (1 - level) / N) / truth.pdf(truth.ppf(level))
        assert np.quantile(sample, level) == pytest.approx(truth.ppf(level), abs=5 * error_s)
        points_error_s = error_s * math.sqrt(N / 20_000)  # laws without a closed form return a sample
        assert np.quantile(law.points(), level) == pytest.approx(truth.ppf(level), abs=5 * points_error_s)


@pytest.mark.parametrize("law", [law for name, law in VARYING.items() if name not in CHANGING])
def test_the_means_of_every_kind_are_those_of_its_draws_and_of_its_points(law: Delay) -> None:
    for sample in (draws(law), law.points()):
        assert law.mean_s == pytest.approx(sample.mean(), rel=0.02)
        if math.isfinite(law.mean_inverse):
            assert law.mean_inverse == pytest.approx((1 / sample).mean(), rel=0.02)


@pytest.mark.parametrize("law", [Exponential(0.3), Pareto(0.1, 3.0), Floor(Normal(0.1, 0.1), 0.02), NoDelay()])
@pytest.mark.parametrize("tau_min_s", [0.05, 0.15])
def test_what_is_known_of_rewards_clamps_them_at_tau_min(law: Delay, tau_min_s: float) -> None:
    _, inverses = known_means({"a": law}, tau_min_s)
    assert inverses["a"] == pytest.approx((1 / np.maximum(draws(law), tau_min_s)).mean(), rel=0.01)


class Alternating(SampledDelay):
    """A law of a user's own, which has its draws alone."""

    def sample(self, rng: np.random.Generator, n: int, first_round: int = 1) -> Any:
        return np.where(np.arange(first_round, first_round + n) % 2, 0.1, 0.4)


@pytest.mark.parametrize(
    ("law", "mean_s", "mean_inverse"),
    [
        (Alternating(), 0.25, 6.25),
        (Constant(0.2), 0.2, 5.0),
        (NoDelay(), 0.0, math.inf),
        (Normal(0.2, 0.0), 0.2, 5.0),
        (Exponential(0.3), 0.3, math.inf),
        (Gamma(0.3, 1.0), 0.3, math.inf),
        (Weibull(0.3, 1.0), 0.3, math.inf),
        (Pareto(0.1, 1.0), math.inf, 5.0),
        (Values((0.1, 0.2, 0.4)), 0.7 / 3, 17.5 / 3),
        (Values((0.0, 0.2)), 0.1, math.inf),
        (Mixture((Constant(0.1), Constant(0.5)), (0.75, 0.25)), 0.2, 8.0),
        (Mixture((Constant(0.1), NoDelay()), (1.0, 0.0)), 0.1, 10.0),
        (Floor(Constant(0.3), 0.05), 0.3, 1 / 0.3),
        (Floor(Pareto(0.1, 0.5), 0.2), math.inf, pytest.approx(10 / 3 * 2**-1.5 + 5 * (1 - 2**-0.5), rel=1e-3)),
        (Sum((Constant(0.1), Constant(0.3))), 0.4, 2.5),
        (Sum((Exponential(0.3),)), 0.3, math.inf),
        (Scale(Constant(2.0), 0.1), 0.2, 5.0),
        (MarkovDelay(Constant(0.1), Constant(0.5), 0.1, 0.3), 0.2, 8.0),
    ],
)
def test_expectations_in_closed_form(law: Delay, mean_s: float, mean_inverse: float) -> None:
    assert law.mean_s == pytest.approx(mean_s)
    assert law.mean_inverse == (mean_inverse if math.isinf(law.mean_inverse) else pytest.approx(mean_inverse))


NORMALS = Normal(0.9, 0.05), Normal(0.07, 0.05), Normal(0.0, 0.05), Normal(0.3, 0.0), Normal(0.01, 0.0)


def expected(law: Floor, f: Callable[[float], float]) -> float:
    """E[f(max(floor, X))] for a normal X."""
    assert isinstance(law.of, Normal)
    if not law.of.sd_s:
        return f(max(law.of.mean_s, law.floor_s))
    normal = st.norm(law.of.mean_s, law.of.sd_s)
    return float(f(law.floor_s) * normal.cdf(law.floor_s) + normal.expect(f, lb=law.floor_s))


@pytest.mark.parametrize("law", [Floor(normal, 0.05) for normal in NORMALS])
def test_means_are_those_of_the_floored_law(law: Floor) -> None:
    assert law.mean_s == pytest.approx(expected(law, lambda x: x), rel=1e-4)
    assert law.mean_inverse == pytest.approx(expected(law, lambda x: 1 / x), rel=1e-4)


@pytest.mark.parametrize("clients", [30, 31, 300])
def test_halves_are_the_published_ones(clients: int) -> None:
    """mean_k = 0.05 + 0.15 (k+1)/h for k < h = ⌊K/2⌋, else 0.7 + 0.2 (k+1−h)/(K−h); sd 0.05, floor 0.05."""
    half = clients // 2
    fast = [0.05 + 0.15 * (k + 1) / half for k in range(half)]
    slow = [0.7 + 0.2 * (k + 1) / (clients - half) for k in range(clients - half)]
    laws = [published_delay(k, clients) for k in range(clients)]
    means_s = [law.of.mean_s for law in laws]
    assert means_s == pytest.approx(fast + slow)
    assert laws == [Floor(Normal(mean_s, 0.05), 0.05) for mean_s in means_s]
    assert (fast[-1], slow[-1]) == pytest.approx((0.2, 0.9))


def test_a_floor_holds_the_mass_below_it() -> None:
    assert (draws(VARYING["floor"]) == 0.05).mean() == pytest.approx(st.norm(0.1, 0.1).cdf(0.05), abs=0.005)
    heavy, above = Floor(Pareto(0.1, 1.1), 0.2), 0.5**1.1
    assert heavy.mean_s == pytest.approx(0.2 * (1 - above) + above * 1.1 * 0.2 / 0.1, rel=1e-6)


HEAVY_TAILED = some.one_of(
    some.builds(Pareto, some.floats(0.01, 1), some.floats(1.05, 3)),
    some.builds(LogNormal, some.floats(0.01, 1), some.floats(0.1, 20)),
    some.builds(Weibull, some.floats(0.01, 1), some.floats(0.2, 3)),
    some.builds(Gamma, some.floats(0.01, 1), some.floats(0.2, 3)),
)


@given(HEAVY_TAILED, some.floats(0, 2))
def test_a_floor_never_lowers_the_mean(law: Delay, floor_s: float) -> None:
    assert max(law.mean_s, floor_s) <= Floor(law, floor_s).mean_s <= law.mean_s + floor_s


@pytest.mark.parametrize(
    ("law", "values_s", "shares"),
    [
        (Mixture((Constant(0.1), Constant(0.2), Constant(0.3)), (0.5, 0.3, 0.2)), [0.1, 0.2, 0.3], [0.5, 0.3, 0.2]),
        (Values((0.4, 0.1, 0.2)), [0.1, 0.2, 0.4], [1 / 3] * 3),
    ],
)
def test_parts_and_measured_values_have_their_shares(law: Delay, values_s: list[float], shares: list[float]) -> None:
    for taken, tolerance in ((draws(law), 0.01), (law.points(), 0.02)):
        values, counts = np.unique(taken, return_counts=True)
        assert values.tolist() == values_s
        assert counts / taken.size == pytest.approx(shares, abs=tolerance)


def test_every_kind_has_a_case() -> None:
    assert set(VARYING) == set(DELAYS), "a kind needs a case in LAWS or VARYING"


DRIFTS = DelayDrift(Constant(-1.0), (1, 11), (1.0, 2.0)), DelayDrift(Normal(0.1, 0.1), (1, 11), (0.0, 1.0))


@pytest.mark.parametrize("law", [*VARYING.values(), DayCycle(Constant(-1.0), 24, 0.5), *DRIFTS])
def test_a_draw_depends_on_generator_and_round_alone_and_is_not_below_the_stated_minimum(law: Delay) -> None:
    """Every kind keeps this contract, also laws whose base law draws below 0."""
    assert draws(law, 2_000).min() >= law.minimum_s
    for t in (1, 4, 9):
        assert draws(law, 1, t).tolist() == draws(law, 1, t).tolist()


@pytest.mark.parametrize(
    ("law", "first_round", "delays_s"),
    [
        (STEPS, 1, [0.1, 0.1, 0.2, 0.2, 0.2, 0.3, 0.3]),
        (STEPS, 5, [0.2, 0.3]),
        (Recorded((0.1, 0.2, 0.3)), 1, [0.1, 0.2, 0.3, 0.1]),
        (Recorded((0.1, 0.2, 0.3)), 5, [0.2, 0.3, 0.1]),
        # linear between the given rounds, constant after the last
        (DelayDrift(Constant(0.1), (1, 5, 7), (1.0, 3.0, 1.0)), 1, [0.1, 0.15, 0.2, 0.25, 0.3, 0.2, 0.1, 0.1, 0.1]),
        # a busy half, then a calm half
        (DayCycle(Constant(1.0), 4, 0.5), 1, [1.0, 1.5, 1.0, 0.5] * 2),
        (DayCycle(Constant(1.0), 4, 0.5, phase_rounds=1.0), 1, [1.5]),
        (Outage(Constant(0.1), ((2, 3), (5, 5)), 2.0), 1, [0.1, 2.1, 2.1, 0.1, 2.1, 0.1]),
    ],
)
def test_what_changes_with_the_round_does_as_it_says(law: Delay, first_round: int, delays_s: list[float]) -> None:
    assert draws(law, len(delays_s), first_round) == pytest.approx(delays_s)


@pytest.mark.parametrize("law", [VARYING[name] for name in CHANGING])
@pytest.mark.parametrize("wrap", [lambda law: law, lambda law: Sum((Constant(0.1), law)), lambda law: Floor(law, 0.2)])
@pytest.mark.parametrize("expectation", ["mean_s", "mean_inverse"])
def test_what_changes_by_round_has_no_expectation(law: Delay, wrap: Callable[[Delay], Delay], expectation: str) -> None:
    with pytest.raises(ConfigError, match="changes with the round"):
        getattr(wrap(law), expectation)


probabilities = some.floats(0.01, 1.0)


@given(to_bad=probabilities, to_good=probabilities, path=some.integers(0, 2**63 - 1))
def test_the_state_of_a_round_is_that_of_the_chain_step_by_step(to_bad: float, to_good: float, path: int) -> None:
    law = MarkovDelay(Constant(0.0), Constant(1.0), to_bad, to_good, path)
    u = np.random.Generator(np.random.PCG64(path)).random(60)
    bad = [u[0] < to_bad / (to_bad + to_good)]
    for x in u[1:]:
        bad.append(x < 1 - to_good if bad[-1] else x < to_bad)
    assert law.is_bad(60).tolist() == bad
    # The states do not depend on which rounds are asked for: single rounds give the same.
    assert [bool(draws(law, 1, t)[0]) for t in (1, 17, 60)] == [bad[0], bad[16], bad[59]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Values(()), "must hold at least one value"),
        (lambda: Sum(()), "must hold at least one law"),
        (lambda: Mixture((Constant(0.1),), (0.9,)), r"weights = \[0.9\]: must sum to 1, not 0.9"),
        (lambda: Mixture((Constant(0.1),), (0.5, 0.5)), r"must be as many as the laws in of \(1\)"),
        (lambda: Schedule((1, 1), (NoDelay(), NoDelay())), r"rounds = \[1, 1\]: must begin with 1 and ascend"),
        (lambda: Schedule((2,), (NoDelay(),)), "must begin with 1"),
        (lambda: DelayDrift(NoDelay(), (1, 2), (1.0,)), r"must be as many as there are factors \(1\)"),
        (lambda: Outage(NoDelay(), ((5, 4),), 1.0), r"windows = \[\[5, 4\]\]"),
        (lambda: Outage(NoDelay(), ((1, 4), (4, 6)), 1.0), "ascending, apart"),
        (lambda: Outage(NoDelay(), (), 1.0), "must be .first, last. rounds from 1 on"),
    ],
)
def test_impossible_parameters_are_refused_by_name(make: Callable[[], Delay], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


class BadDraws(SampledDelay):
    """Returns valid draws when asked for `sound` of them, and otherwise what `returned` makes of n."""

    def __init__(self, returned: Callable[[int], object], sound: int) -> None:
        self.returned, self.sound = returned, sound

    def sample(self, rng: np.random.Generator, n: int, first_round: int) -> np.ndarray:  # type: ignore[override]  # users may
        return np.ones(n) if n == self.sound else self.returned(n)  # type: ignore[return-value]  # wrong on purpose


BAD_DRAWS = {
    "negative": (lambda n: np.full(n, -1.0), "negative delay|delays of 0 or more; returned -1.0"),
    "nan": (lambda n: np.full(n, np.nan), "draws NaN|delays of 0 or more; returned nan"),
    "too many": (lambda n: np.ones(n + 1), r"BadDraws.sample: must return .* shape \(\d+,\).* one of shape \(\d+,\)"),
    "scalar": (lambda n: 0.1, r"BadDraws.sample: must return .* shape \(\d+,\).* one of shape \(\)"),  # noqa: ARG005 - wrong on purpose
    "nothing": (lambda n: [None] * n, "BadDraws.sample: must return numbers|draws NaN"),
    "durations": (lambda n: np.full(n, np.timedelta64(100, "ms")), r"numbers of seconds; .* timedelta64\[ms\]"),
    "unseeded": (lambda n: np.random.default_rng().random(n), "draws differ where `rng` is the same"),
    "error": (lambda n: 1 / (n - n), "ZeroDivisionError"),
    "file": (lambda n: np.load(f"/{n}/draws.npy"), "FileNotFoundError: .*draws.npy'"),
    "exit": (lambda n: sys.exit(f"no {n} draws"), r"SystemExit: no \d+ draws"),
}


@pytest.mark.parametrize(("returned", "message"), BAD_DRAWS.values(), ids=BAD_DRAWS)
@pytest.mark.parametrize("wrapped", ['{{ kind = "{}" }}', '{{ kind = "sum", of = [{{ kind = "{}" }}, "none"] }}'])
def test_bad_draws_of_a_law_are_told_when_the_experiment_is_read(
    returned: Callable[[int], object], message: str, wrapped: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "own_law", SimpleNamespace(law=lambda: BadDraws(returned, sound=0)))
    wrapped = wrapped.format("own_law:law").replace('"none"', '{ kind = "none" }')
    with pytest.raises(ConfigError, match=f"^latency.delay: .*({message})"):
        parse_experiment("", [f"latency.delay={wrapped}"])


class Baseless:
    def sample(self, rng: np.random.Generator, n: int, first_round: int = 1) -> np.ndarray:
        return np.ones(n)


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ('{ kind = "own_law:Baseless" }', "latency.delay"),
        ('{ kind = "own_law:Baseless", floor_s = 0.1 }', "latency.delay"),
        ('{ kind = "sum", of = [{ kind = "none" }, { kind = "own_law:Baseless" }] }', "latency.delay.of.1"),
    ],
)
def test_a_law_without_the_base_is_told_what_it_lacks(table: str, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "own_law", SimpleNamespace(Baseless=Baseless))
    lacks = "`points` and `mean_s` and `mean_inverse` and `minimum_s`; derive it from pausefl.SampledDelay"
    with pytest.raises(ConfigError, match=f"^{key}: Baseless has no {lacks}$"):
        parse_experiment("", [f"latency.delay={table}"])


@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        ("Imported", "latency.delay: its parameters cannot be read (NameError: name 'Imported' is not"),
        (np.ndarray, "latency.delay.of: must be annotated with a type of TOML values, not <class 'numpy.ndarray'>"),
    ],
)
def test_a_parameter_whose_type_is_unknown_is_named(
    annotation: object, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module may import the type for type checkers only."""
    monkeypatch.setitem(sys.modules, "own_law", SimpleNamespace(law=lambda of=1.0: Constant(of)))
    sys.modules["own_law"].law.__annotations__["of"] = annotation
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
        parse_experiment("", ["latency.delay={ kind = 'own_law:law', of = 1.0 }"])


@pytest.mark.parametrize("case", ["negative", "nan", "too many", "scalar", "file"])
def test_bad_draws_end_a_simulation_a_validation_and_a_run(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some laws fail only then: a link asks for one draw, a simulation for one per round."""
    returned, message = BAD_DRAWS[case]
    law: Any = BadDraws(returned, sound=16)
    monkeypatch.setitem(sys.modules, "own_law", SimpleNamespace(law=lambda: law))
    with pytest.raises(ConfigError, match=message):
        expected_wait_s(parse_experiment("", ["latency.delay.kind=own_law:law"]))
    with pytest.raises(ConfigError, match=message):
        simulate(Pause(1), Setting({"a": law, "b": law}, {"a": 1, "b": 1}, server_of(0.05)), 20)
    plan = replace(links_of(parse_experiment(""))["client-000"], delay=law)
    with pytest.raises(ConfigError, match=message):
        make_links(LatencyTable(), {"a": plan}, ["a"], 1)["a"].draw(1)


@dataclass(frozen=True)
class Drifting:
    """A user's law of drifts whose draws are `drawn`, whatever they are."""

    drawn: Any
    mean: float = 0.5

    def sample(self, rng: np.random.Generator, n: int) -> Any:
        del rng, n
        return self.drawn

    def share_up_to(self, threshold: float) -> float:
        return float(threshold >= self.mean)


class Twice(Drifting):
    def share_up_to(self, threshold: float) -> float:
        return 2 * threshold


@pytest.mark.parametrize("drawn", [None, [0.5, 0.5], np.zeros(3), np.array([0.5, np.nan]), np.array(["0.5", "0.5"])])
def test_what_a_law_of_drifts_draws_is_checked(drawn: object) -> None:
    law: Any = Drifting(drawn)
    setting = DriftSetting({"a": law}, Presence.of_all(["a"]))
    wrong = f"clients.groups: {__name__}:Drifting.sample: must return an array of 2 finite numbers"
    with pytest.raises(ConfigError, match=f"^{re.escape(wrong)}$"):
        list(setting.drifts(2))
    for mean, said in ((np.nan, "mean = nan: must be a finite number"), (2.0, "share_up_to: returned 4.0, no prob")):
        with pytest.raises(ConfigError, match=f"Twice.{said}"):
            DriftSetting({"a": Twice(drawn, mean)}, setting.presence)
    law = Drifting(np.array([0, 1]))
    assert np.stack(list(DriftSetting({"a": law}, setting.presence).drifts(2))).tolist() == [[0], [1]]
