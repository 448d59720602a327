"""What `simulate` writes down of newcomers whose kinds are several: each figure is of the newcomers that it names."""

import csv
import math
from pathlib import Path

import pytest

from pausefl.experiment.groups import drift_laws_of, presence_of
from pausefl.experiment.loading import parse_experiment
from pausefl.experiment.population.availability import Presence
from pausefl.studies.simulation.newcomers import DriftSetting, simulate_newcomers
from pausefl.studies.simulation.outputs import run_simulation
from pausefl_server.selection.policies.fed_ts import FedTs, Posteriors

CONFIG = """
[experiment]
seed = 3
[clients.groups]
first = { count = 6, drift = { kind = "bernoulli", small = 0.9 } }
able = { count = 2, join_round = 4, drift = { kind = "bernoulli", small = 0.9 } }
fair = { count = 1, join_round = 4, drift = { kind = "bernoulli", small = 0.8 } }
poor = { count = 1, join_round = 4, drift = { kind = "bernoulli", small = 0.3 } }
worst = { count = 1, join_round = 4, drift = { kind = "bernoulli", small = 0.1 } }
[selection]
policy = "fed-ts"
m = 3
"""
ROUNDS = 60


def test_the_warm_up_is_that_of_the_irrelevant_newcomer_nearest_to_the_critical_one(tmp_path: Path) -> None:
    (joined,) = run_simulation(parse_experiment(CONFIG), ROUNDS, tmp_path / "out")["insertions"]
    assert joined["critical"] == "fair-000"
    assert joined["warm_up_rounds"] == pytest.approx(24 * math.log(ROUNDS) / (0.8 - 0.3) ** 2)
    with (tmp_path / "out/intervals.csv").open() as file:
        assert {row["client_id"] for row in csv.DictReader(file)} == {"fair-000"}


def test_small_drifts_are_shares_of_those_that_were_seen(tmp_path: Path) -> None:
    """The prior of each posterior, Beta(1, 1), is no drift."""
    experiment = parse_experiment(CONFIG)
    presence = presence_of(experiment.groups, ROUNDS, 3) or Presence.of_all(())
    result = simulate_newcomers(FedTs(3), DriftSetting(drift_laws_of(experiment.groups), presence, 3), ROUNDS)
    assert isinstance(result.state, Posteriors)
    shares = run_simulation(experiment, ROUNDS, tmp_path / "out")["classified_small"]
    for kind, groups in {"relevant": ("able", "fair"), "irrelevant": ("poor", "worst")}.items():
        rows = [row for row, client_id in enumerate(result.table.ids) if client_id.startswith(groups)]
        small, great = result.state.successes[rows].sum(), result.state.failures[rows].sum()
        assert shares[kind] == pytest.approx(small / (small + great))
