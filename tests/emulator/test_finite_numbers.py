"""Numbers in an experiment are finite, but for parameters of policies that say otherwise."""

import json
from pathlib import Path

import pytest

from pausefl.experiment.loading import load_experiment, parse_experiment
from pausefl.runtime.plan import plan_of
from pausefl.runtime.virtual.process import play_virtually
from pausefl_proto.errors import ConfigError


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("workload.optimizer_options={weight_decay=inf}", "workload.optimizer_options.weight_decay = inf"),
        ("workload.optimizer_options={betas=[0.9, nan]}", "workload.optimizer_options.betas.1 = nan"),
        ('workload.training={kind="moon", mu=-inf}', "workload.training.mu = -inf"),
    ],
)
def test_a_number_in_a_free_table_is_finite(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_experiment("demo", [override])
    assert str(error.value) == f"{message}: must be a finite number"


def test_an_infinite_parameter_of_a_policy_survives_being_written_down() -> None:
    experiment = load_experiment("demo", ["selection.sa-pause.time_cap_s=inf"])
    assert parse_experiment(experiment.to_toml()) == experiment


def test_a_summary_is_json_whatever_a_policy_takes(tmp_path: Path) -> None:
    """JSON has no infinity: `jq`, browsers and other languages refused the summary of every run under sa-pause."""
    overrides = ["selection.policy=sa-pause", "experiment.clock=virtual", "workload.model=synthetic"]
    experiment = load_experiment("demo", [*overrides, "experiment.rounds=1", "metrics.enabled=false"])
    play_virtually(plan_of(experiment, "run"), tmp_path, lambda _: None)

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    summary = json.loads((tmp_path / "summary.json").read_text("utf-8"), parse_constant=refuse)
    assert summary["policy_parameters"]["time_cap_s"] is None
