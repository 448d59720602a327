"""Prometheus and Grafana: configuration, rules and dashboards are valid, and each query finds data in a real run."""

import functools
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from pausefl.certificates import make_certificates
from rigs.places import ROOT
from rigs.waiting import free_port, wait_for

FOLDER = ROOT / "deploy/prometheus"


def load(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text("utf-8"))


def rules(name: str) -> list[dict[str, Any]]:
    return [rule for group in load(name)["groups"] for rule in group["rules"]]


def promtool(*arguments: object) -> subprocess.CompletedProcess[str]:
    if shutil.which("promtool") is None:
        pytest.skip("promtool (part of Prometheus) is not installed")
    return subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", ["recording.yml", "alerts.yml", "limit.yml", "queries.yml"])
def test_rules_say_what_their_unit_tests_expect(name: str) -> None:
    tested = promtool("test", "rules", FOLDER / "tests" / name)
    assert tested.returncode == 0, tested.stdout + tested.stderr


RECORDED = {rule["record"] for rule in rules("recording.yml")}


@pytest.mark.parametrize("name", ["prometheus.yml", "files.yml", "kubernetes.yml"])
def test_a_configuration_is_valid_with_its_rules(name: str) -> None:
    checked = promtool("check", "config", FOLDER / name)
    if "kubernetes_sd_configs not found" in checked.stderr:  # Debian's build leaves it out
        pytest.skip("this build of promtool knows no Kubernetes discovery")
    assert checked.returncode == 0, checked.stdout + checked.stderr


@functools.cache
def unit_tests() -> dict[str, list[dict[str, Any]]]:
    """The expressions in each alert's unit tests, by the alert's name."""
    found: dict[str, list[dict[str, Any]]] = {}
    for test in (test for name in ("alerts.yml", "limit.yml") for test in load(f"tests/{name}")["tests"]):
        found.setdefault(test["name"].split(",")[0], []).extend(test["promql_expr_test"])
    return found


@pytest.mark.parametrize("alert", rules("alerts.yml"), ids=lambda rule: rule["alert"])
def test_an_alert_says_what_to_do_and_is_set_off_by_the_bad_run_alone(alert: dict[str, Any]) -> None:
    name = alert["alert"]
    fired = [sample["labels"] for case in unit_tests()[name] for sample in case["exp_samples"]]
    assert fired
    assert all(f'alertname="{name}"' in labels and 'run="bad"' in labels for labels in fired)
    assert set(alert["annotations"]) == {"summary", "description", "what_to_do"}
    assert "$labels.run" in alert["annotations"]["summary"]
    assert all(text.strip() for text in alert["annotations"].values())
    assert alert["labels"]["severity"] in {"info", "warning", "critical"}


def test_the_rules_ask_for_metrics_that_there_are() -> None:
    metrics = set(re.findall(r"^\| `(pausefl_\w+)`", (ROOT / "deploy/METRICS.md").read_text("utf-8"), re.MULTILINE))
    for rule in rules("recording.yml") + rules("alerts.yml"):
        for name in re.findall(r"[\w:]*pausefl_[\w:]+", rule["expr"]):
            assert name in RECORDED or re.sub(r"_(bucket|sum|count)$", "", name) in metrics, name


def pod(**labels: str) -> dict[str, str]:
    """A pod of this project as Kubernetes discovery describes it; `labels` replaces some of its labels."""
    app = {"name": "pausefl", "instance": "digits", "component": "clients"}
    described = {f"pod_label_app_kubernetes_io_{name}": value for name, value in app.items()}
    described |= {"pod_annotation_prometheus_io_scrape": "true", "pod_annotation_prometheus_io_port": "9465"}
    described |= {"pod_container_port_number": "9465", "pod_phase": "Running", "pod_name": "clients-7"}
    return {f"__meta_kubernetes_{name}": value for name, value in (described | {"namespace": "lab"} | labels).items()}


def test_in_kubernetes_our_annotated_ports_are_scraped_and_named(tmp_path: Path) -> None:
    """The relabelling is the real one; only the pods are discovered from a file."""
    pods = {
        "10.0.0.1:9465": pod(),
        "10.0.0.2:8080": pod(pod_container_port_number="8080"),
        "10.0.0.3:9465": pod(pod_label_app_kubernetes_io_name="else"),
        "10.0.0.4:9465": pod(pod_annotation_prometheus_io_scrape="false"),
        "10.0.0.5:9465": pod(pod_phase="Succeeded"),
        "10.0.0.6:9464": pod(
            pod_label_app_kubernetes_io_component="server",
            pod_annotation_prometheus_io_port="9464",
            pod_annotation_prometheus_io_path="/else",
            pod_container_port_number="9464",
            pod_name="server-0",
        ),
    }
    (tmp_path / "pods.json").write_text(json.dumps([{"targets": [a], "labels": p} for a, p in pods.items()]), "utf-8")
    (job,) = load("kubernetes.yml")["scrape_configs"]
    del job["kubernetes_sd_configs"]
    job["file_sd_configs"] = [{"files": [str(tmp_path / "pods.json")]}]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump({"scrape_configs": [job]}), "utf-8")
    found = promtool("check", "service-discovery", "--timeout=1s", tmp_path / "prometheus.yml", job["job_name"])
    assert found.returncode == 0, found.stderr
    labels = {t["labels"]["__address__"]: t["labels"] for t in json.loads(found.stdout) if t["labels"]}
    assert set(labels) == {"10.0.0.1:9465", "10.0.0.6:9464"}
    clients, server = labels["10.0.0.1:9465"], labels["10.0.0.6:9464"]
    assert (clients["job"], clients["instance"]) == ("pausefl-clients", "lab/clients-7")
    assert (server["job"], server["instance"]) == ("pausefl-server", "lab/server-0")
    assert "run" not in clients.keys() | server.keys(), "they say it themselves"
    assert (clients["__metrics_path__"], server["__metrics_path__"]) == ("/metrics", "/else")


DEPLOY = ROOT / "deploy"
NAMES = ["overview", "latency", "privacy"]
EXPERIMENT = """
experiment.rounds = 100_000
clients = { count = 4, per_process = 2 }
selection.m = 2
privacy = { epsilon_budget = 10.0, eta = 0.01, epsilon_floor = 1e-5 }
latency.delay = { kind = "exponential", mean_s = 0.02 }
workload.max_steps = 1
evaluation.every = 5
metrics.client_port = 0
asynchronous = { concurrency = 2, buffer = 1 }
"""

# After a run's end these are unknown: comparisons of current series, and the number of clients that should be there.
OF_NOW = {"privacy: Ledgers apart: A", "privacy: Time until budgets end: A", "overview: Clients: B"}
# These are of all processes of a run, also past ones. All others are of the server that went on with it last.
OF_PROCESSES = {"overview: Certificates end in: A", "overview: Alerts: A", "privacy: Told by clients: A"}
# These are empty if there is nothing to report, and their panels say so. The limit on ε has no value by default.
MAY_BE_EMPTY = {"overview: Alerts: A", "overview: Suspect rounds by reason: A", "unit:pausefl_epsilon_limit:constant"}


@functools.cache
def dashboard(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DEPLOY / f"grafana/dashboards/{name}.json").read_text("utf-8"))
    return found


def panels_of(name: str) -> list[dict[str, Any]]:
    """The panels of a dashboard, without its row titles."""
    return [panel for panel in dashboard(name)["panels"] if panel["type"] != "row"]


def expressions(*, instant: bool) -> dict[str, str]:
    """All panels' queries by place: those evaluated at one moment, or those over a range."""
    return {
        f"{name}: {panel['title']}: {target['refId']}": target["expr"]
        for name in NAMES
        for panel in panels_of(name)
        for target in panel["targets"]
        if bool(target.get("instant")) == instant
    }


def substituted(text: str, variables: dict[str, str]) -> str:
    for name, value in variables.items():
        text = text.replace(f"${name}", value)
    assert "$" not in text, text
    return text


def variables_of(name: str) -> dict[str, str]:
    """The query of each variable."""
    return {v["name"]: v["query"]["query"] for v in dashboard(name)["templating"]["list"] if v["type"] == "query"}


def test_the_committed_dashboards_are_what_the_code_builds(tmp_path: Path) -> None:
    subprocess.run([sys.executable, DEPLOY / "grafana/build.py", tmp_path], check=True)
    assert sorted(path.stem for path in tmp_path.iterdir()) == sorted(NAMES)
    for name in NAMES:
        built = json.loads((tmp_path / f"{name}.json").read_text("utf-8"))
        assert built == dashboard(name), "run deploy/grafana/build.py"


@pytest.mark.parametrize("name", NAMES)
def test_panels_do_not_overlap_and_dashboards_share_their_variables_and_link_to_each_other(name: str) -> None:
    places = [panel["gridPos"] for panel in dashboard(name)["panels"]]
    assert all(p["x"] >= 0 and p["x"] + p["w"] <= 24 for p in places)
    for a, b in combinations(places, 2):
        beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        assert beside or a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]

    made = dashboard(name)
    assert set(variables_of(name)) == {"run", "client", "unit"}
    (link,) = made["links"]
    assert (made["uid"], link["tags"], made["tags"]) == (f"pausefl-{name}", ["pausefl"], ["pausefl"])
    assert (link["includeVars"], link["keepTime"]) == (True, True)
    for uid in re.findall(r'"/d/([\w-]+)', json.dumps(made)):
        assert uid in {f"pausefl-{other}" for other in NAMES}


def test_numbers_and_tables_are_of_the_range_chosen_and_never_made_up() -> None:
    """Results of a finished run can be read, and an unknown number is not shown as 0."""
    instant = expressions(instant=True)
    assert len(instant) > 25
    for place, expr in instant.items():
        assert "vector(0)" not in expr
        assert "[$__range]" in expr or place in OF_NOW, place
        assert "and on (instance, run) (last_over_time(pausefl_last_round" in expr or place in OF_PROCESSES | OF_NOW
    small = r"histogram_quantile\(0\.5, .*pausefl_(selection|timing_error)_seconds_bucket"
    assert not re.search(small, "\n".join(expressions(instant=False).values())), "most are below the first bucket"


def rates() -> list[Any]:
    """All queries of rates, over the interval that Grafana uses: four times the query's step or the scrape interval."""
    text = (DEPLOY / "grafana/provisioning/datasources/prometheus.yml").read_text("utf-8")
    (source,) = yaml.safe_load(text)["datasources"]
    found = []
    for name in NAMES:
        for panel in panels_of(name):
            for target in panel["targets"]:
                if "$__rate_interval" in target["expr"]:
                    step_s = int((target.get("interval") or source["jsonData"]["timeInterval"]).removesuffix("s"))
                    expr = substituted(target["expr"], {"__rate_interval": f"{4 * step_s}s", "run": "a"})
                    found.append(pytest.param(expr, id=f"{name}: {panel['title']}: {target['refId']}"))
    return found


@pytest.mark.parametrize(("period_s", "always"), [(10, True), (45, False)])
@pytest.mark.parametrize("expr", rates())
def test_slow_rounds_leave_no_gaps(expr: str, period_s: int, always: bool, tmp_path: Path) -> None:
    """No value is NaN, which would break a line, even if rounds take longer than the interval of a rate."""
    least = 120 if always else 1
    expected: dict[str, list[dict[str, Any]]] = {
        f"min(count_over_time(({expr})[2m:1s])) >= bool {least}": [{"labels": "{}", "value": 1}],
        f"count_over_time((({expr}) != ({expr}))[2m:1s])": [],
    }
    checks = [{"eval_time": "4m", "expr": asked, "exp_samples": found} for asked, found in expected.items()]
    values = " ".join(str(at_s // period_s) for at_s in range(300))  # each counts up by one every `period_s`
    names = set(re.findall(r"(?:pausefl|process)_\w+", expr))
    labels = ['le="0.1",', 'le="+Inf",', 'part="download",', 'part="injected_up",', 'direction="up",']
    series = [{"series": f'{name}{{{label}run="a"}}', "values": values} for name in names for label in labels]
    test = {"interval": "1s", "input_series": series, "promql_expr_test": checks}
    (tmp_path / "test.yml").write_text(yaml.safe_dump({"tests": [test]}), "utf-8")
    done = promtool("test", "rules", tmp_path / "test.yml")
    assert done.returncode == 0, done.stdout + done.stderr


class Prometheus:
    """A real Prometheus that scrapes a real run."""

    def __init__(self, folder: Path, targets: Path) -> None:
        found = {"files": [str(targets)], "refresh_interval": "1s"}
        config = {
            "global": {"scrape_interval": "250ms", "evaluation_interval": "250ms"},
            "rule_files": [str(FOLDER / "recording.yml"), str(FOLDER / "alerts.yml")],
            "scrape_configs": [{"job_name": "pausefl", "file_sd_configs": [found]}],
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config), "utf-8")
        self.address = f"127.0.0.1:{free_port()}"
        self._log = (folder / "prometheus.log").open("w")
        files = [f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'tsdb'}"]
        command = ["prometheus", *files, f"--web.listen-address={self.address}"]
        self._process = subprocess.Popen(command, stdout=self._log, stderr=subprocess.STDOUT)

    def ask(self, path: str, **parameters: str) -> Any:
        """The data of the API's answer; an error of the API is raised."""
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode()) from error

    def is_ready(self) -> bool:
        """Whether it answers queries."""
        try:
            urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=10).close()
        except urllib.error.URLError:
            return False
        return True

    def values(self, expr: str) -> list[float]:
        """The values of an instant query."""
        return [float(found["value"][1]) for found in self.ask("query", query=expr)["result"]]

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(10)
        self._log.close()


@contextmanager
def playing(folder: Path, name: str, *settings: str) -> Iterator[subprocess.Popen[bytes]]:
    """A run with its clients that plays until the block ends, and whose targets Prometheus knows."""
    (folder / "tiny.toml").write_text(EXPERIMENT, "utf-8")
    command = ["run", str(folder / "tiny.toml"), "--run-dir", str(folder / name), *settings]
    with (
        (folder / f"{name}.log").open("wb") as log,
        subprocess.Popen([sys.executable, "-m", "pausefl", *command], stdout=log, stderr=subprocess.STDOUT) as running,
    ):
        try:
            wait_for((folder / name / "targets.json").exists, "the targets", running=running)
            (folder / "targets" / f"{name}.json").symlink_to(folder / name / "targets.json")
            yield running
        finally:
            running.kill()


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[Prometheus]:
    if shutil.which("prometheus") is None:
        pytest.skip("Prometheus is not installed")
    (tmp_path / "targets").mkdir()
    scraping = Prometheus(tmp_path, tmp_path / "targets/*.json")
    try:
        wait_for(scraping.is_ready, "Prometheus")
        yield scraping
    finally:
        scraping.close()


def choose(prometheus: Prometheus, runs: str) -> dict[str, str]:
    """A value for each variable, found as Grafana does it, and the values that Grafana sets itself."""
    chosen = {"__rate_interval": "5s", "__range": "600s", "run": runs}
    for name, query in variables_of("overview").items():
        series, label = re.fullmatch(r"label_values\((.*), (\w+)\)", query).groups()  # type: ignore[union-attr]  # None would fail
        values = prometheus.ask(f"label/{label}/values", **{"match[]": substituted(series, chosen)})
        assert values, f"the variable {name} has no values"
        if name != "run":
            chosen[name] = "|".join(values) if name == "client" else values[0]
    return chosen


def without_data(prometheus: Prometheus, chosen: dict[str, str], *, is_played: bool) -> list[str]:
    """The queries without a number: of tiles and tables now, and of curves in the last ten minutes."""
    instant = {**expressions(instant=True), **(dict(zip(RECORDED, RECORDED, strict=True)) if is_played else {})}
    found = {place: prometheus.values(asked(expr, chosen)) for place, expr in instant.items()}
    empty = [place for place, values in found.items() if not any(map(math.isfinite, values))]
    now_s = time.time()
    span = {"start": str(now_s - 600), "end": str(now_s), "step": "0.2"}
    for place, expr in expressions(instant=False).items():
        curves = prometheus.ask("query_range", query=asked(expr, chosen), **span)["result"]
        if not any(math.isfinite(float(value)) for series in curves for _, value in series["values"]):
            empty.append(place)
    silent = MAY_BE_EMPTY if is_played else MAY_BE_EMPTY | OF_NOW
    return [place for place in empty if place not in silent]


def asked(expr: str, chosen: dict[str, str]) -> str:
    """The query as Grafana sends it; a dashboard of one run gets the first chosen run."""
    return substituted(expr.replace('run="$run"', f'run="{chosen["run"].partition("|")[0]}"'), chosen)


def wait_until_all_is_shown(prometheus: Prometheus, chosen: dict[str, str]) -> None:
    """Rates need a few scrapes, and accuracies an evaluated model."""
    until = time.monotonic() + 60
    while (empty := without_data(prometheus, chosen, is_played=True)) and time.monotonic() < until:
        time.sleep(0.5)
    assert empty == [], "\n".join(empty)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_every_query_finds_data_during_after_and_between_runs(prometheus: Prometheus, tmp_path: Path) -> None:
    def is_scraped(run: str) -> Callable[[], object]:
        return lambda: prometheus.values(f'count(pausefl_client_selections_total{{run="{run}"}}) == 4')

    make_certificates(tmp_path / "certs", ["127.0.0.1"], [])
    files = {"certificate": "server.pem", "key": "server.key", "ca": "ca.pem"}
    tls = [f"--set=tls.{key}={tmp_path / 'certs' / name}" for key, name in files.items()]
    with playing(tmp_path, "first", "--set=server.mode=asynchronous", *tls) as running:
        wait_for(is_scraped("first"), "the first scrape", running=running)
        chosen = choose(prometheus, "first")
        for expr in [*expressions(instant=True).values(), *expressions(instant=False).values()]:
            promql_parser.parse(substituted(expr, chosen))
        wait_until_all_is_shown(prometheus, chosen)
        running.send_signal(signal.SIGINT)
        running.wait(60)
    wait_for(lambda: not prometheus.values("pausefl_round"), "the end of the first run in Prometheus")
    assert without_data(prometheus, chosen, is_played=False) == []
    rounds = 'max by (run) (last_over_time(pausefl_round{run=~"first|second"}[10m]))'
    (of_first,) = prometheus.values(rounds)
    with playing(tmp_path, "second") as running:
        wait_for(is_scraped("second"), "the second run", running=running)
        wait_until_all_is_shown(prometheus, choose(prometheus, "second|first"))
        assert without_data(prometheus, chosen, is_played=False) == [], "the first run still answers"
        played = prometheus.values(rounds)
        assert len(played) == 2, "neither continues the other"
        assert of_first in played
        assert prometheus.values('count({__name__=~"pausefl_.+|process_.+",run=""})') == []
        if drawings := os.environ.get("PAUSEFL_DRAWN_BOARDS"):
            draw = (sys.executable, str(DEPLOY / "grafana/draw.py"), f"http://{prometheus.address}")
            subprocess.run([*draw, drawings, "first|second"], check=True)
