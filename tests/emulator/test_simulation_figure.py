"""What simulation.png shows of a policy that weighs latencies."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from pausefl.experiment.loading import parse_experiment
from pausefl.studies.simulation.outputs import run_simulation
from rigs.simulations import CONFIG


def drawn(figure: Figure, title: str) -> dict[str, np.ndarray]:
    """The curves of the axes of this title by label."""
    (axes,) = [axes for axes in figure.axes if axes.get_title(loc="left") == title]
    return {str(line.get_label()): np.asarray(line.get_ydata(), np.float64) for line in axes.lines}


@pytest.mark.parametrize("changes", [{}, {"alpha": 0.0, "gamma": 0.0}, {"reward": "R2"}])
def test_the_bound_is_drawn_beside_the_regret_however_far_above_it(
    changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    overrides = [f"selection.pause.{name}={value}" for name, value in changes.items()]
    text = CONFIG.format(policy="pause", partition="iid") + '[latency.delay]\nkind = "halves"\n'
    summary = run_simulation(parse_experiment(text, overrides), 60, tmp_path / "out")
    figure, _ = figures  # as PNG and as PDF
    curves = drawn(figure, "Regret beside bound (17)")
    assert len(summary["bound_17"]) == 2
    for reading, at_the_end in summary["bound_17"].items():
        bound = curves[f"bound (17), {reading.replace('delta', 'δ').replace('tau', 'τ').replace('mu', 'μ')}"]
        assert len(bound) == 60
        assert bound[-1] == at_the_end
    assert np.nanmax(curves["in the genie's objective, where above 0"]) == summary["genie_regret"]


def test_where_two_means_are_equal_there_is_no_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no warning of a division by zero; the figure says why it has no such panel."""
    figures: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    text = CONFIG.format(policy="pause", partition="iid") + '[latency.delay]\nkind = "constant"\nvalue_s = 0.2\n'
    summary = run_simulation(parse_experiment(text), 20, tmp_path / "out")
    assert summary["bound_17"] == {}
    titles = [axes.get_title(loc="left") for axes in figures[0].axes]
    assert titles == [
        "Regret against the genie",
        "Total latency",
        "Greatest leakage of a client",
        "Selections per client",
    ]
    assert "two clients have the same mean latency" in figures[0].get_supxlabel()
    names = [label.get_text() for label in figures[0].axes[-1].get_xticklabels()]
    assert names == [f"client-{i:03}" for i in range(8)]
    assert summary["genie_regret"] == pytest.approx(0.0)
