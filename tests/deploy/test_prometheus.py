"""deploy/prometheus: promtool finds the configuration sound and the rules right, and every alert can be acted upon."""

import functools
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from rigs.places import ROOT

FOLDER = ROOT / "deploy/prometheus"
CONFIGURATIONS = ["prometheus.yml", "files.yml", "kubernetes.yml"]
# Debian leaves it out of its build.
NO_KUBERNETES = "kubernetes_sd_configs not found"


def load(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text("utf-8"))


def rules(name: str) -> list[dict[str, Any]]:
    return [rule for group in load(name)["groups"] for rule in group["rules"]]


ALERTS = [rule["alert"] for rule in rules("alerts.yml")]


def promtool(*arguments: object) -> subprocess.CompletedProcess[str]:
    if shutil.which("promtool") is None:
        pytest.skip("promtool (part of Prometheus) is not installed")
    return subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", ["recording.yml", "alerts.yml", "limit.yml"])
def test_rules_say_what_their_unit_tests_expect(name: str) -> None:
    tested = promtool("test", "rules", FOLDER / "tests" / name)
    assert tested.returncode == 0, tested.stdout + tested.stderr


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_configuration_is_valid_with_its_rules(name: str) -> None:
    checked = promtool("check", "config", FOLDER / name)
    if NO_KUBERNETES in checked.stderr:
        pytest.skip("this build of promtool knows no Kubernetes discovery")
    assert checked.returncode == 0, checked.stdout + checked.stderr


@functools.cache
def unit_tests() -> dict[str, list[dict[str, Any]]]:
    """The expressions each alert's unit tests evaluate."""
    found: dict[str, list[dict[str, Any]]] = {}
    for test in (test for name in ("alerts.yml", "limit.yml") for test in load(f"tests/{name}")["tests"]):
        found.setdefault(test["name"].split(",")[0], []).extend(test["promql_expr_test"])
    return found


@pytest.mark.parametrize("alert", rules("alerts.yml"), ids=ALERTS)
def test_an_alert_says_what_is_the_matter_and_what_to_do(alert: dict[str, Any]) -> None:
    assert set(alert["annotations"]) == {"summary", "description", "what_to_do"}
    assert "$labels.run" in alert["annotations"]["summary"]
    assert all(text.strip() for text in alert["annotations"].values())
    assert alert["labels"]["severity"] in {"info", "warning", "critical"}


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_is_set_off_by_the_bad_run_alone(name: str) -> None:
    fired = [sample["labels"] for case in unit_tests()[name] for sample in case["exp_samples"]]
    assert fired
    assert all(f'alertname="{name}"' in labels and 'run="bad"' in labels for labels in fired)


def test_the_rules_ask_for_metrics_that_there_are() -> None:
    metrics = set(re.findall(r"^\| `(pausefl_\w+)`", (ROOT / "deploy/METRICS.md").read_text("utf-8"), re.MULTILINE))
    recorded = {rule["record"] for rule in rules("recording.yml")}
    for rule in rules("recording.yml") + rules("alerts.yml"):
        for name in re.findall(r"[\w:]*pausefl_[\w:]+", rule["expr"]):
            assert name in recorded or re.sub(r"_(bucket|sum|count)$", "", name) in metrics, name


def pod(**labels: str) -> dict[str, str]:
    """A pod of ours as Kubernetes discovery describes it, unless said otherwise."""
    described = {
        "pod_label_app_kubernetes_io_name": "pausefl",
        "pod_label_app_kubernetes_io_instance": "digits",
        "pod_label_app_kubernetes_io_component": "clients",
        "pod_annotation_prometheus_io_scrape": "true",
        "pod_annotation_prometheus_io_port": "9465",
        "pod_container_port_number": "9465",
        "pod_phase": "Running",
        "pod_name": "clients-7",
        "namespace": "lab",
    }
    return {f"__meta_kubernetes_{name}": value for name, value in (described | labels).items()}


def test_in_kubernetes_our_annotated_ports_are_scraped_and_named(tmp_path: Path) -> None:
    """The relabelling is the real one; pods are discovered from a file."""
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
