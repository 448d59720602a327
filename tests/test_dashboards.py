"""The Grafana dashboards: what is committed is what the code builds, and every query finds data in a real run."""

import functools
import json
import math
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from rigs.waiting import wait_for

DEPLOY = Path(__file__).parent.parent / "deploy"
NAMES = ["overview", "latency", "privacy"]
EXPERIMENT = """
[experiment]
rounds = 100_000
[clients]
count = 4
per_process = 2
[selection]
m = 2
[privacy]
epsilon_budget = 10.0
eta = 0.01
epsilon_floor = 1e-5
[latency.delay]
kind = "exponential"
mean_s = 0.02
[workload]
max_steps = 1
[evaluation]
every = 5
[metrics]
client_port = 0
"""

# Then the variables have their values.
CHOSEN_FROM = "count(pausefl_client_selections_total) == 4"


@functools.cache
def load(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DEPLOY / f"grafana/dashboards/{name}.json").read_text("utf-8"))
    return found


def panels() -> list[Any]:
    found = [(name, panel) for name in NAMES for panel in load(name)["panels"]]
    return [pytest.param(panel, id=f"{name}: {panel['title']}") for name, panel in found]


def expressions() -> dict[str, str]:
    """Every query of every panel, and every recorded rule."""
    queries = {
        f"{name}: {panel['title']}: {target['refId']}": target["expr"]
        for name in NAMES
        for panel in load(name)["panels"]
        for target in panel["targets"]
    }
    groups = yaml.safe_load((DEPLOY / "prometheus/recording.yml").read_text("utf-8"))["groups"]
    return queries | {rule["record"]: rule["record"] for group in groups for rule in group["rules"]}


def substituted(text: str, variables: dict[str, str]) -> str:
    for name, value in variables.items():
        text = text.replace(f"${name}", value)
    assert "$" not in text, text
    return text


def variables_of(name: str) -> dict[str, str]:
    """The query of each variable."""
    listed = load(name)["templating"]["list"]
    return {v["name"]: v["query"]["query"] for v in listed if v["type"] == "query"}


def test_the_committed_dashboards_are_what_the_code_builds(tmp_path: Path) -> None:
    subprocess.run([sys.executable, DEPLOY / "grafana/build.py", tmp_path], check=True)
    assert sorted(path.stem for path in tmp_path.iterdir()) == sorted(NAMES)
    for name in NAMES:
        assert json.loads((tmp_path / f"{name}.json").read_text("utf-8")) == load(name), "run deploy/grafana/build.py"


@pytest.mark.parametrize("panel", panels())
def test_a_panel_says_what_it_shows_in_which_unit(panel: dict[str, Any]) -> None:
    assert panel["title"]
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["fieldConfig"]["defaults"]["noValue"]


@pytest.mark.parametrize("name", NAMES)
def test_panels_do_not_overlap(name: str) -> None:
    places = [panel["gridPos"] for panel in load(name)["panels"]]
    assert all(p["x"] >= 0 and p["x"] + p["w"] <= 24 for p in places)
    for a, b in combinations(places, 2):
        beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        assert beside or a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]


@pytest.mark.parametrize("name", NAMES)
def test_dashboards_share_their_variables_and_link_to_each_other(name: str) -> None:
    made = load(name)
    assert set(variables_of(name)) == {"run", "client", "unit"}
    (link,) = made["links"]
    assert (made["uid"], link["tags"], made["tags"]) == (f"pausefl-{name}", ["pausefl"], ["pausefl"])
    assert (link["includeVars"], link["keepTime"]) == (True, True)
    for uid in re.findall(r'"/d/([\w-]+)', json.dumps(made)):
        assert uid in {f"pausefl-{other}" for other in NAMES}


def test_where_dashboards_and_prometheus_are_provisioned() -> None:
    folder = DEPLOY / "grafana/provisioning"
    (source,) = yaml.safe_load((folder / "datasources/prometheus.yml").read_text("utf-8"))["datasources"]
    assert (source["type"], source["isDefault"]) == ("prometheus", True)
    (provider,) = yaml.safe_load((folder / "dashboards/pausefl.yml").read_text("utf-8"))["providers"]
    assert provider["type"] == "file"


def test_large_numbers_are_of_now() -> None:
    """The last one known may be of the run before, where runs follow each other in the same containers."""
    stats = [panel for name in NAMES for panel in load(name)["panels"] if panel["type"] == "stat"]
    assert stats
    assert all(target["instant"] and not target["range"] for panel in stats for target in panel["targets"])


def test_a_run_is_called_by_its_own_name() -> None:
    (panel,) = [panel for panel in load("overview")["panels"] if panel["title"] == "What is run"]
    (shown,) = [t["options"]["include"]["names"] for t in panel["transformations"] if t["id"] == "filterFieldsByName"]
    assert {"run", "run_name"} <= set(shown)


def rates() -> list[Any]:
    """Every query of a rate, with the time Grafana takes it over: four of the query's steps, or of the scrapes'."""
    text = (DEPLOY / "grafana/provisioning/datasources/prometheus.yml").read_text("utf-8")
    (source,) = yaml.safe_load(text)["datasources"]
    found = []
    for name in NAMES:
        for panel in load(name)["panels"]:
            for target in panel["targets"]:
                if "$__rate_interval" in target["expr"]:
                    step_s = int((target.get("interval") or source["jsonData"]["timeInterval"]).removesuffix("s"))
                    chosen = {"__rate_interval": f"{4 * step_s}s", "run": "a"}
                    expr = substituted(target["expr"], chosen)
                    found.append(pytest.param(expr, id=f"{name}: {panel['title']}: {target['refId']}"))
    return found


def exchanges_every(period_s: int, expr: str) -> list[dict[str, str]]:
    """What a query asks for, counting up by one so often for five minutes, as promtool takes it."""
    values = " ".join(str(at_s // period_s) for at_s in range(300))
    names = set(re.findall(r"pausefl_\w+", expr))
    labels = ['le="0.1",', 'le="+Inf",', 'part="download",', 'part="injected_up",', 'direction="up",']
    return [{"series": f'{name}{{{label}run="a"}}', "values": values} for name in names for label in labels]


@pytest.mark.parametrize(("period_s", "always"), [(10, True), (45, False)])
@pytest.mark.parametrize("expr", rates())
def test_slow_rounds_leave_no_gaps(expr: str, period_s: int, always: bool, tmp_path: Path) -> None:
    """Even where rounds take longer than rates reach back, none is a NaN, in which a line would end."""
    if shutil.which("promtool") is None:
        pytest.skip("promtool (part of Prometheus) is not installed")
    least = 120 if always else 1
    checks: list[dict[str, Any]] = [
        {
            "expr": f"min(count_over_time(({expr})[2m:1s])) >= bool {least}",
            "exp_samples": [{"labels": "{}", "value": 1}],
        },
        {"expr": f"count_over_time((({expr}) != ({expr}))[2m:1s])", "exp_samples": []},
    ]
    series = exchanges_every(period_s, expr)
    test = {"interval": "1s", "input_series": series, "promql_expr_test": [{"eval_time": "4m", **c} for c in checks]}
    (tmp_path / "test.yml").write_text(yaml.safe_dump({"tests": [test]}), "utf-8")
    done = subprocess.run(
        ["promtool", "test", "rules", tmp_path / "test.yml"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


class Prometheus:
    """A real one, that scrapes a real run."""

    def __init__(self, folder: Path, targets: Path) -> None:
        config = {
            "global": {"scrape_interval": "250ms", "evaluation_interval": "250ms"},
            "rule_files": [str(DEPLOY / "prometheus/recording.yml"), str(DEPLOY / "prometheus/alerts.yml")],
            "scrape_configs": [{"job_name": "pausefl", "file_sd_configs": [{"files": [str(targets)]}]}],
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config), "utf-8")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self._log = (folder / "prometheus.log").open("w")
        options = {
            "config.file": folder / "prometheus.yml",
            "storage.tsdb.path": folder / "tsdb",
            "web.listen-address": self.address,
        }
        command = ["prometheus", *(f"--{name}={value}" for name, value in options.items())]
        self._process = subprocess.Popen(command, stdout=self._log, stderr=subprocess.STDOUT)

    def ask(self, path: str, **parameters: str) -> Any:
        """The data of the API's answer; its error is raised."""
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode()) from error

    def is_ready(self) -> bool:
        """Whether it answers queries yet."""
        try:
            urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=10).close()
        except urllib.error.URLError:
            return False
        return True

    def values(self, expr: str) -> list[float]:
        """What an instant query finds."""
        return [float(found["value"][1]) for found in self.ask("query", query=expr)["result"]]

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(10)
        self._log.close()


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[Prometheus]:
    """It scrapes a run, clients and all, that goes on for as long as the test does."""
    if shutil.which("prometheus") is None:
        pytest.skip("Prometheus is not installed")
    (tmp_path / "tiny.toml").write_text(EXPERIMENT, "utf-8")
    run = [sys.executable, "-m", "pausefl", "run", str(tmp_path / "tiny.toml"), "--run-dir", str(tmp_path / "run")]
    with (
        (tmp_path / "run.log").open("wb") as log,
        subprocess.Popen(run, stdout=log, stderr=subprocess.STDOUT) as running,
    ):
        try:
            wait_for((tmp_path / "run/targets.json").exists, "the targets", running=running)
            scraping = Prometheus(tmp_path, tmp_path / "run/targets.json")
            try:
                wait_for(scraping.is_ready, "Prometheus", running=running)
                wait_for(lambda: scraping.values(CHOSEN_FROM), "the first scrape", running=running)
                yield scraping
            finally:
                scraping.close()
        finally:
            running.kill()
    assert running.returncode == -signal.SIGKILL, (tmp_path / "run.log").read_text("utf-8")


def choose(prometheus: Prometheus) -> dict[str, str]:
    """A value for each variable, found as Grafana finds it, and what Grafana knows of by itself."""
    chosen = {"__rate_interval": "5s"}
    for name, query in variables_of("overview").items():
        series, label = re.fullmatch(r"label_values\((.*), (\w+)\)", query).groups()  # type: ignore[union-attr]
        values = prometheus.ask(f"label/{label}/values", **{"match[]": substituted(series, chosen)})
        assert values, f"the variable {name} has no values"
        chosen[name] = "|".join(values) if name == "client" else values[0]
    return chosen


def without_data(prometheus: Prometheus, chosen: dict[str, str]) -> list[str]:
    """Which queries find no number; the limit on ε is none as it comes, but infinite."""
    asked = {place: expr for place, expr in expressions().items() if place != "unit:pausefl_epsilon_limit:constant"}
    queries = {place: substituted(expr, chosen) for place, expr in asked.items()}
    return [place for place, query in queries.items() if not any(map(math.isfinite, prometheus.values(query)))]


@pytest.mark.end_to_end
def test_every_query_and_recorded_rule_finds_data(prometheus: Prometheus) -> None:
    chosen = choose(prometheus)
    for expr in expressions().values():
        promql_parser.parse(substituted(expr, chosen))
    # Rates want a few scrapes to go by, accuracies a model that was evaluated.
    until = time.monotonic() + 60
    while (empty := without_data(prometheus, chosen)) and time.monotonic() < until:
        time.sleep(0.25)
    assert empty == []
