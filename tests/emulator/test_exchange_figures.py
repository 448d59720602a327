"""The figures with a dot for each exchange: which exchanges they show, what they say of that, and what they compare."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes

from pausefl.results.reading import RunData, read_run
from pausefl.results.report import plots
from pausefl.results.report.html import run_page
from pausefl.results.report.style import rendered
from rigs.reports import write_run

EXCHANGES = 30


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunData:
    return read_run(write_run(tmp_path_factory.mktemp("exchanges") / "run"))


def many(run: RunData, n: int, suspect: int) -> RunData:
    """So many exchanges of one client, a round each, of which the first rounds are suspect."""
    rounds, seconds = np.arange(1, n + 1), np.linspace(0.1, 1.0, n)
    breakdown: Any = {
        "client_id": np.full(n, "c"), "round": rounds, "drawn_s": seconds, "communication_s": seconds,
        "round_trip_s": seconds + 1,
    }  # fmt: skip
    return replace(run, breakdown=breakdown, suspect_rounds={"round": rounds[:suspect], "reason": rounds[:suspect]})


def dots(axes: Axes) -> int:
    return sum(len(np.asarray(collection.get_offsets())) for collection in axes.collections)


@pytest.mark.parametrize(("most", "shown", "said"), [(20, 20, "20 of 30, drawn at random"), (30, 30, "")])
def test_as_many_exchanges_are_shown_as_is_said(
    run: RunData, monkeypatch: pytest.MonkeyPatch, most: int, shown: int, said: str
) -> None:
    """Suspect and other rounds together: of each kind as many were shown as the figure said there were in all."""
    monkeypatch.setattr(plots, "MOST_DOTS", most)
    axes = plots.latency(many(run, EXCHANGES, suspect=15)).axes[1]
    assert dots(axes) == shown
    assert said in [text.get_text() for text in axes.texts]


def test_totals_are_compared_with_round_trips(run: RunData) -> None:
    """What is drawn is a whole round trip then: the device's own time parted it from the communication time."""
    run = replace(run, config='[latency]\nmode = "total"\n')
    figure = plots.latency(many(run, EXCHANGES, suspect=0))
    axes = figure.axes[1]
    (offsets,) = (np.asarray(collection.get_offsets()) for collection in axes.collections)
    np.testing.assert_allclose(offsets[:, 1], offsets[:, 0] + 1)
    assert axes.get_ylabel() == "measured round trip (s)"
    assert axes.get_xlabel() == "drawn total (s)"
    assert "against the round trip measured for it" in run_page(run, {"latency": rendered(figure, "svg")})
