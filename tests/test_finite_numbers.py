"""Numbers in an experiment are finite, but for parameters of policies that say otherwise."""

import pytest

from pausefl.config.loading import load_experiment, parse_experiment
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
