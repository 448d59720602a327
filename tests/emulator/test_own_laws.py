"""Laws of delays and drifts that users bring: what they draw is checked when it is read, and wherever it is used."""

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pausefl.experiment.delay_laws import SampledDelay
from pausefl.experiment.links import LatencyTable
from pausefl.experiment.loading import parse_experiment
from pausefl.experiment.population.availability import Presence
from pausefl.runtime.client.links import make_links
from pausefl.studies.simulation.engine import Setting, server_of, simulate
from pausefl.studies.simulation.newcomers import DriftSetting
from pausefl_proto.errors import ConfigError
from pausefl_server.selection.policies.pause import Pause
from rigs.links import links_of


class BadDraws(SampledDelay):
    """Draws as many as are `sound`; else what `returned` makes of n."""

    def __init__(self, returned: Callable[[int], object], sound: int) -> None:
        self.returned, self.sound = returned, sound

    def sample(self, rng: np.random.Generator, n: int, first_round: int = 1) -> np.ndarray:  # noqa: ARG002
        return np.ones(n) if n == self.sound else self.returned(n)  # type: ignore[return-value]


BAD_DRAWS = {
    "negative": (lambda n: np.full(n, -1.0), "negative delay|delays of 0 or more; returned -1.0"),
    "nan": (lambda n: np.full(n, np.nan), "draws NaN|delays of 0 or more; returned nan"),
    "too many": (lambda n: np.ones(n + 1), r"BadDraws.sample: must return .* shape \(\d+,\).* one of shape \(\d+,\)"),
    "scalar": (lambda n: 0.1, r"BadDraws.sample: must return .* shape \(\d+,\).* one of shape \(\)"),  # noqa: ARG005
    "nothing": (lambda n: [None] * n, "BadDraws.sample: must return numbers|draws NaN"),
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
    def sample(self, rng: np.random.Generator, n: int, first_round: int = 1) -> np.ndarray:  # noqa: ARG002
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


@pytest.mark.parametrize("case", ["negative", "nan", "too many", "scalar", "file"])
def test_bad_draws_end_a_simulation_and_a_run(case: str) -> None:
    """Those that are bad only then: a link draws one at a time, a simulation as many as it has rounds."""
    returned, message = BAD_DRAWS[case]
    law = BadDraws(returned, sound=16)
    with pytest.raises(ConfigError, match=message):
        simulate(Pause(1), Setting({"a": law, "b": law}, {"a": 1, "b": 1}, server_of(0.05)), 20)
    plan = replace(links_of(parse_experiment(""))["client-000"], delay=law)
    link = make_links(LatencyTable(), {"a": plan}, ["a"], 1)["a"]
    with pytest.raises(ConfigError, match=message):
        link.draw(1)


@dataclass(frozen=True)
class Drifting:
    """A law of drifts of one's own that draws what it is told to."""

    drawn: Any
    mean: float = 0.5

    def sample(self, rng: np.random.Generator, n: int) -> Any:
        del rng, n
        return self.drawn

    def share_up_to(self, threshold: float) -> float:
        return float(threshold >= self.mean)


@pytest.mark.parametrize("drawn", [None, [0.5, 0.5], np.zeros(3), np.array([0.5, np.nan]), np.array(["0.5", "0.5"])])
def test_what_a_law_of_drifts_draws_is_checked(drawn: object) -> None:
    setting = DriftSetting({"a": Drifting(drawn)}, Presence.of_all(["a"]))
    wrong = f"clients.groups: {__name__}:Drifting.sample: must return an array of 2 finite numbers"
    with pytest.raises(ConfigError, match=f"^{re.escape(wrong)}$"):
        list(setting.drifts(2))
    sound = DriftSetting({"a": Drifting(np.array([0, 1]))}, setting.presence)
    assert np.stack(list(sound.drifts(2))).tolist() == [[0], [1]]
