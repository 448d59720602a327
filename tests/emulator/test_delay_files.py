"""Measured delays from a CSV file: whose they are, in which unit, drawn or as recorded."""

from pathlib import Path

import numpy as np
import pytest

from pausefl.experiment.experiment import Experiment
from pausefl.experiment.loading import load_experiment, parse_experiment
from pausefl_proto.errors import ConfigError
from rigs.links import delays_of

PINGS = "device,ms\nphone-1,100\nphone-2,300\nphone-1,120\nphone-2,280\nphone-1,140\n"


def with_delays(tmp_path: Path, text: str, more: str, clients: int = 2) -> Experiment:
    (tmp_path / "rtt.csv").write_text(text)
    table = f'{{ kind = "empirical", file = "{tmp_path / "rtt.csv"}", {more} }}'
    return parse_experiment(f"[clients]\ncount = {clients}\n[selection]\nm = 1\n[latency]\ndelay = {table}\n")


def test_each_client_has_the_delays_measured_with_it(tmp_path: Path) -> None:
    columns = 'column = "ms", client_column = "device", unit = "ms"'
    laws = delays_of(with_delays(tmp_path, PINGS, columns))
    assert [law.mean_s for law in laws.values()] == pytest.approx([0.12, 0.29])


def test_a_file_that_names_clients_of_the_experiment_is_read_by_name(tmp_path: Path) -> None:
    text = "client,s\nclient-001,0.3\nclient-000,0.1\n"
    columns = 'column = "s", client_column = "client"'
    assert [law.mean_s for law in delays_of(with_delays(tmp_path, text, columns)).values()] == [0.1, 0.3]
    with pytest.raises(ConfigError, match=r'delay.client_column = "client": .*rtt.csv has no client-002'):
        with_delays(tmp_path, text, columns, clients=3)


def test_delays_can_be_replayed_as_recorded(tmp_path: Path) -> None:
    columns = 'column = "ms", client_column = "device", unit = "ms", order = "recorded"'
    law = delays_of(with_delays(tmp_path, PINGS, columns))["client-000"]
    draws = [law.sample(np.random.default_rng(), 1, first_round=t)[0] for t in (1, 2, 3, 4)]
    assert draws == pytest.approx([0.1, 0.12, 0.14, 0.1])


@pytest.mark.parametrize(
    ("text", "more", "message"),
    [
        (PINGS, 'column = "ms", unit = "ms", client_column = "x"', r"line 1 has no column .* \(it has: device, ms\)"),
        (PINGS, 'column = "ms", unit = "ms", order = "random"', r"latency.delay.order = 'random'"),
        ("c,s\na,1\n", 'column = "s", client_column = "c"', "has 1 clients, the experiment 2"),
        ("s\nnan\n", 'column = "s"', 'line 2 has "nan" for s'),
    ],
)
def test_what_is_wrong_with_a_file_of_delays_is_one_line(text: str, more: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        with_delays(tmp_path, text, more)


def test_seconds_may_be_long_if_they_are_said_to_be_seconds(tmp_path: Path) -> None:
    law = delays_of(with_delays(tmp_path, PINGS, 'column = "ms", unit = "s"'))["client-000"]
    assert law.mean_s == pytest.approx(188)


def test_a_path_begins_in_the_folder_of_the_experiment_file(tmp_path: Path) -> None:
    (tmp_path / "rtt.csv").write_text("s\n0.2\n")
    file = tmp_path / "own.toml"
    file.write_text('[latency.delay]\nkind = "empirical"\nfile = "rtt.csv"\ncolumn = "s"\n')
    loaded = load_experiment(str(file))
    assert {law.mean_s for law in delays_of(loaded).values()} == {0.2}
    assert delays_of(parse_experiment(loaded.to_toml())) == delays_of(loaded)  # from any folder


def test_a_file_that_was_corrected_is_read_again(tmp_path: Path) -> None:
    """A notebook that loaded its experiment anew went on with the first delays."""
    for ms in (100, 900):
        law = delays_of(with_delays(tmp_path, f"device,ms\np1,{ms}\n", 'column = "ms", unit = "ms"'))["client-000"]
        assert law.mean_s == pytest.approx(ms / 1000)
