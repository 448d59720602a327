"""Where a run can be scraped: the file for Prometheus's discovery, and what is found at the addresses in it."""

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from pausefl.experiment.loading import parse_experiment
from pausefl.runtime.fleet import Fleet
from pausefl.runtime.plan import plan_of
from pausefl.runtime.scrape_targets import Targets
from pausefl_process.events import ProgressEvent, RoundCommitted
from pausefl_proto.errors import ConfigError
from rigs.command import summary_of

CONFIG = """
experiment.rounds = 100
clients = { count = 4, per_process = 2 }
selection = { policy = "all", m = 4 }
latency.delay.kind = "none"
workload.model = "synthetic"
metrics.client_port = 0
"""


class Scraper:
    """Looks into targets.json after each round: keeps what is there last, and scrapes all once there are three."""

    def __init__(self, run_dir: Path) -> None:
        self._file = run_dir / "targets.json"
        self.groups: dict[str, Any] = {}
        self.pages: dict[str, list[str]] = {}

    def show(self, event: ProgressEvent) -> None:
        if isinstance(event, RoundCommitted):
            self.groups = {group["labels"]["job"]: group for group in json.loads(self._file.read_text())}
            if not self.pages and sum(len(group["targets"]) for group in self.groups.values()) == 3:
                for job, group in self.groups.items():
                    self.pages[job] = [scrape(address) for address in group["targets"]]


def scrape(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as response:
        return str(response.read(), "utf-8")


@pytest.mark.end_to_end
def test_a_run_says_where_each_of_its_processes_is_scraped(tmp_path: Path) -> None:
    run_dir = tmp_path / "run-1"
    run_dir.mkdir()
    scraper = Scraper(run_dir)
    Fleet(plan_of(parse_experiment(CONFIG), run_dir.name), run_dir).run(scraper)
    assert {group["labels"]["run"] for group in scraper.groups.values()} == {"run-1"}
    (server,) = scraper.pages["pausefl-server"]
    labels = 'dataset="synthetic",model="synthetic",policy="all",run="run-1",run_name="run-1",unit="coordinate"'
    assert f"pausefl_run_info{{{labels}}} 1.0" in server
    hosts = scraper.pages["pausefl-clients"]
    assert len(hosts) == 2
    for host in hosts:
        assert 'pausefl_host_clients{run="run-1"} 2.0' in host
        assert 'pausefl_host_exchanges_total{run="run-1",status="ok"}' in host
        assert 'pausefl_host_epsilon_spent_max{run="run-1",unit="vector"}' in host
    for client_id in ("client-000", "client-001", "client-002", "client-003"):
        label = f'pausefl_host_epsilon_spent{{client="{client_id}",run="run-1",unit="coordinate"}}'
        assert sum(label in host for host in hosts) == 1
    assert json.loads((run_dir / "targets.json").read_text()) == []
    assert "host_metrics" in summary_of(run_dir)["disclosed"]


@pytest.mark.end_to_end
def test_clients_that_have_left_are_scraped_no_more(tmp_path: Path) -> None:
    last, groups = Scraper(tmp_path), {"stay": {"count": 1}, "go": {"count": 1, "leave_round": 5}}
    changes = {"clients.count": 2, "clients.groups": groups, "clients.per_process": 1, "selection.m": 1}
    changes |= {"experiment.rounds": 60, "latency.delay": {"kind": "constant", "value_s": 0.05}}
    Fleet(plan_of(parse_experiment(CONFIG, changes), "run"), tmp_path).run(last)
    addresses = [address for group in last.groups.values() for address in group["targets"]]
    assert len(addresses) == 2, "the server and the process that stays"


def test_a_process_that_is_started_again_is_scraped_where_it_listens_now(tmp_path: Path) -> None:
    targets = Targets(tmp_path)
    for address in ("127.0.0.1:9001", "127.0.0.1:9002"):
        with targets.expect("pausefl-client-000") as end:
            end.send(address)
        (expected,) = targets.expected
        targets.hear(expected)
    (group,) = json.loads((tmp_path / "targets.json").read_text())
    assert group["targets"] == ["127.0.0.1:9002"]


def test_one_port_for_many_processes_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^metrics\.client_port = 9465: 2 client processes run here"):
        Fleet(plan_of(parse_experiment(CONFIG, ["metrics.client_port=9465"]), "run"), tmp_path)
