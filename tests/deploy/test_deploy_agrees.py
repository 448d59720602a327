"""Dockerfile, compose file, Prometheus and Grafana agree on ports, paths and names; tested without an engine."""

import json
import re
import tomllib
from typing import Any

import pytest
import yaml

from rigs.places import ROOT

DEPLOY = ROOT / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = ("server", "evaluator", "client")
DOCKERFILE = (DEPLOY / "Dockerfile").read_text("utf-8")
STAGES: dict[str, str] = dict(re.findall(r"(?ms)^FROM \S+ AS (\S+)\n(.*?)(?=^FROM |\Z)", DOCKERFILE))


def options(service: str) -> dict[str, str]:
    """The values on a service's command line, by key of `--set=key=value` and by name of `--option=value`."""
    words = [word.removeprefix("--set=").removeprefix("--") for word in SERVICES[service]["command"]]
    return dict(word.split("=", 1) for word in words if "=" in word)


def listens(service: str) -> set[int]:
    """The ports a service listens on, by its command line."""
    return {int(v) for k, v in options(service).items() if k.endswith((".port", ".client_port"))}


def mounts(service: str) -> dict[str, str]:
    """The source of each mount by its target; variables in sources are not replaced."""
    pairs = (re.fullmatch(r"(.+?):(/[^:]*)(?::ro)?", volume) for volume in SERVICES[service]["volumes"])
    return {pair[2]: pair[1] for pair in pairs if pair}


@pytest.mark.parametrize("stage", ["server", "evaluator", "client", "client-cuda"])
def test_an_image_exposes_and_checks_the_ports_its_service_listens_on(stage: str) -> None:
    service = stage.removesuffix("-cuda")
    (exposed,) = re.findall(r"(?m)^EXPOSE (.*)$", STAGES[stage])
    assert {int(port) for port in exposed.split()} == listens(service)
    (check,) = re.findall(r"(?m)^HEALTHCHECK .*\n +CMD (\[.*\])$", STAGES[stage])
    code = json.loads(check)[-1]
    key = {"server": "metrics.port", "evaluator": "evaluation.port", "client": "metrics.client_port"}[service]
    assert f"('127.0.0.1', {options(service)[key]}" in code
    assert ("'/healthz'" in code) == (service != "evaluator")
    assert "urllib" not in code, "which asks the proxy that a Docker engine may name to containers"


def test_no_image_runs_as_root_and_all_are_built_of_every_package() -> None:
    (user,) = re.findall(r"(?m)^USER (\d+):(\d+)$", STAGES["runtime"])
    assert "0" not in user
    assert f"useradd --uid {user[0]} " in STAGES["runtime"]
    for name in (*OURS, "whole", "client-cuda"):
        assert f"\nFROM runtime AS {name}\n" in DOCKERFILE
        assert "USER" not in STAGES[name]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    allowed = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    for folder in {path.split("/")[0] for path in project["tool"]["setuptools"]["package-dir"].values()}:
        assert f"COPY {folder} {folder}\n" in STAGES["project"]
        assert f"!{folder}" in allowed


def test_parts_call_each_other_where_they_listen_and_published_ports_are_listened_on() -> None:
    server, client = options("server"), options("client")
    assert client["server"] == f"server:{server['server.port']}"
    assert server["evaluation.address"] == f"evaluator:{options('evaluator')['evaluation.port']}"
    hosts = {key: value for name in OURS for key, value in options(name).items() if key.endswith("host")}
    assert hosts == dict.fromkeys(("server.host", "metrics.host", "evaluation.host", "metrics.client_host"), "0.0.0.0")
    (page,) = SERVICES["server"]["ports"]
    assert page.endswith(f":{options('server')['metrics.port']}")
    (prometheus,), (grafana,) = SERVICES["prometheus"]["ports"], SERVICES["grafana"]["ports"]
    assert prometheus.endswith(":9090")
    assert grafana.endswith(":3000")


def test_secrets_are_given_to_those_who_read_them_and_get_into_no_commit() -> None:
    """Documents and `make up` make secrets in these folders."""
    assert {"/certs/", "/deploy/certs/"} <= set((ROOT / ".gitignore").read_text("utf-8").splitlines())
    secrets = COMPOSE["secrets"].items()
    files = {name: secret["file"].removeprefix("${CERTIFICATES:-./certs}/") for name, secret in secrets}
    assert files["ca"] == "ca.pem"
    for service in OURS:
        tls = {key: options(service)[f"tls.{key}"] for key in ("ca", "certificate", "key")}
        own = ["ca", f"{service}-certificate", f"{service}-key"]
        assert list(tls.values()) == [f"/run/secrets/{name}" for name in own]
        assert SERVICES[service]["secrets"] == own
        assert (files[f"{service}-certificate"], files[f"{service}-key"]) == (f"{service}.pem", f"{service}.key")


def test_what_must_outlive_a_container_lies_on_a_volume() -> None:
    assert options("server")["run-dir"].startswith("/runs/")
    assert options("client")["ledger-dir"] == "/ledgers"
    (made,) = re.findall(r"install --directory --owner pausefl --group pausefl (.*)", STAGES["runtime"])
    for service, place, volume in (("server", "/runs", "runs"), ("client", "/ledgers", "ledgers")):
        assert mounts(service)[place] == volume
        assert volume in COMPOSE["volumes"]
        assert place in made.split()
    (data,) = re.findall(r"PAUSEFL_DATA=(\S+)", STAGES["runtime"])
    assert data in mounts("evaluator").keys() & mounts("client").keys(), "data sets, too, where images look for them"
    unit = (DEPLOY / "systemd/pausefl-client@.service").read_text("utf-8")
    assert {"CacheDirectory=pausefl", "Environment=XDG_CACHE_HOME=/var/cache"} < {*unit.splitlines()}, "it has no home"


def test_prometheus_scrapes_the_services_where_they_are() -> None:
    assert mounts("prometheus")["/etc/prometheus"] == "./prometheus"
    jobs = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text("utf-8"))["scrape_configs"]
    server, clients = ({job["job_name"]: job for job in jobs}[f"pausefl-{who}"] for who in ("server", "clients"))
    (target,) = server["static_configs"]
    assert target["targets"] == [f"server:{options('server')['metrics.port']}"]
    (found,) = clients["dns_sd_configs"]
    assert found["names"] == ["client"]
    assert "client" in SERVICES
    assert found["port"] == int(options("client")["metrics.client_port"])


def test_grafana_finds_prometheus_and_the_dashboards() -> None:
    folder = DEPLOY / "grafana/provisioning"
    (source,) = yaml.safe_load((folder / "datasources/prometheus.yml").read_text("utf-8"))["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert "prometheus" in SERVICES
    (provider,) = yaml.safe_load((folder / "dashboards/pausefl.yml").read_text("utf-8"))["providers"]
    assert mounts("grafana") == {
        "/etc/grafana/provisioning": "./grafana/provisioning",
        provider["options"]["path"]: "./grafana/dashboards",
    }
