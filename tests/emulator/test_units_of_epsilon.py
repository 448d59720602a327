"""No ε is shown without what it protects, and none where nothing is protected."""

import json
from pathlib import Path

import pytest
from matplotlib.figure import Figure

import pausefl
from pausefl.studies import simulations
from pausefl.studies.offline.replay_outputs import in_words as replay_in_words
from pausefl.studies.offline.replay_outputs import replayed
from pausefl.studies.simulation.outputs import in_words, run_simulation
from pausefl_tune.plan import TuningPlan
from rigs.experiments import small

LABELS = ("coordinate", "ε per coordinate"), ("vector", "ε of the whole upload vector")
each_unit = pytest.mark.parametrize(("unit", "label"), LABELS)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    figures: list[Figure] = []
    monkeypatch.setattr(simulations, "write_picture", lambda _, draw: figures.append(draw()))
    return figures


def leakage_labels(figure: Figure) -> list[str]:
    return [axes.get_ylabel() for axes in figure.axes if axes.get_title(loc="left") == "Greatest leakage"]


@each_unit
def test_simulations_say_it(unit: str, label: str, tmp_path: Path, drawn: list[Figure]) -> None:
    experiment = small({"privacy.unit": unit})
    one = run_simulation(experiment, 5, tmp_path / "one")
    assert json.loads((tmp_path / "one/simulation.json").read_text("utf-8"))["privacy_unit"] == unit
    assert f", greatest {label} of a client " in next(in_words(one))
    several = simulations.run_simulations(experiment, ["pause", "random"], 1, 5, tmp_path / "several")
    assert several["privacy_unit"] == unit
    assert f", greatest {label} " in next(simulations.in_words(several))
    assert leakage_labels(drawn[0]) == [label]


def test_simulations_without_privacy_have_no_epsilon(tmp_path: Path, drawn: list[Figure]) -> None:
    experiment = small({"privacy.enabled": False})
    one = run_simulation(experiment, 5, tmp_path / "one")
    assert one["privacy_unit"] is one["max_epsilon_spent"] is None
    several = simulations.run_simulations(experiment, ["pause", "random"], 1, 5, tmp_path / "several")
    assert "ε" not in " ".join([*in_words(one), *simulations.in_words(several)])
    assert leakage_labels(drawn[0]) == []


@each_unit
def test_a_replay_says_it(unit: str, label: str, tmp_path: Path) -> None:
    pausefl.run(small({"privacy.unit": unit}), tmp_path / "run", progress=False)
    summary = replayed(tmp_path / "run", "random", {}, draws=2).summary
    assert summary["privacy_unit"] == unit
    assert any(line.startswith(f"greatest {label} ") for line in replay_in_words(summary))


@each_unit
def test_a_search_says_it(unit: str, label: str) -> None:
    plan = TuningPlan(small({"privacy.unit": unit}).to_toml())
    assert [objective.label for objective in plan.objectives][1] == f"greatest {label}"
