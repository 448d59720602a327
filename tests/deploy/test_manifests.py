"""deploy/kubernetes: its parts agree with each other and the command line, and its pods' scripts work."""

import functools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from pausefl.cli import main
from pausefl.experiment.experiment import Experiment, parse_experiment
from pausefl.experiment.server_records import check_policies
from pausefl_process.http_server import Response, WebServer
from rigs.authority import Authority
from rigs.command import rounds_in, run, synthetic
from rigs.places import ROOT
from rigs.waiting import wait_for, wait_until_unread

KUBERNETES = ROOT / "deploy/kubernetes"
OVERLAYS = ["laptop", "cluster", "gpu"]
Thing = dict[str, Any]


def render(folder: Path) -> list[Thing]:
    """The objects that `kubectl apply -k` would apply."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    rendered = subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True, check=True)
    return list(yaml.safe_load_all(rendered.stdout))


@functools.cache
def rendered(overlay: str) -> list[Thing]:
    return render(KUBERNETES / "overlays" / overlay)


def of_kind(things: list[Thing], *kinds: str) -> dict[str, Thing]:
    """Objects of these kinds by name, without the project's prefix."""
    return {t["metadata"]["name"].removeprefix("pausefl-"): t for t in things if t["kind"] in kinds}


def pods(things: list[Thing]) -> dict[str, Thing]:
    """Pod templates by the name of their service."""
    return {name: t["spec"]["template"] for name, t in of_kind(things, "StatefulSet", "Deployment").items()}


def container(pod: Thing) -> Thing:
    (found,) = pod["spec"]["containers"]
    return dict(found)


def ports(pod: Thing) -> dict[str, int]:
    return {port["name"]: port["containerPort"] for port in container(pod)["ports"]}


def selected(things: list[Thing], selector: Thing) -> list[Thing]:
    """The pods that a selector matches."""
    wanted = selector.get("matchLabels", selector).items()
    return [pod for pod in pods(things).values() if wanted <= pod["metadata"]["labels"].items()]


@functools.cache
def experiment(overlay: str, part: str) -> Experiment:
    """The experiment as a pod of this part reads it."""
    things = rendered(overlay)
    (config,) = [t for t in things if t["kind"] == "ConfigMap" and "experiment.toml" in t["data"]]
    overrides = [a.removeprefix("--set=") for a in container(pods(things)[part])["args"] if a.startswith("--set=")]
    return parse_experiment(config["data"]["experiment.toml"], overrides)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_there_is_a_place_for_every_client(overlay: str) -> None:
    things = rendered(overlay)
    clients = of_kind(things, "StatefulSet")["clients"]
    (count,) = [e["value"] for e in container(pods(things)["clients"])["env"] if e["name"] == "COUNT"]
    assert clients["spec"]["replicas"] * int(count) == experiment(overlay, "server").clients.count


@pytest.mark.parametrize("part", ["server", "evaluator", "clients"])
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_pods_command_is_one_that_there_is(overlay: str, part: str, capsys: pytest.CaptureFixture[str]) -> None:
    things = rendered(overlay)
    check_policies(experiment(overlay, part))
    pod = container(pods(things)[part])
    place = pod["command"].index("pausefl")
    with pytest.raises(SystemExit):
        main([pod["command"][place + 1], "--help"])
    known = set(re.findall(r"--[\w-]+", capsys.readouterr().out))
    assert {argument.partition("=")[0] for argument in pod["args"]} <= known


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_parts_call_each_other_where_they_listen(overlay: str) -> None:
    things = rendered(overlay)
    all_ports = {part: ports(pod) for part, pod in pods(things).items()}
    server = experiment(overlay, "server")
    assert (server.server.port, server.metrics.port) == (all_ports["server"]["grpc"], all_ports["server"]["metrics"])
    assert experiment(overlay, "clients").metrics.client_port == all_ports["clients"]["metrics"]
    assert experiment(overlay, "evaluator").evaluation.port == all_ports["evaluator"]["grpc"]
    calls = [server.evaluation.address]
    calls += [a.removeprefix("--server=") for a in container(pods(things)["clients"])["args"] if "--server=" in a]
    services = of_kind(things, "Service")
    for host, port in (call.split(":") for call in calls):
        assert int(port) in [p["port"] for p in services[host.removeprefix("pausefl-")]["spec"]["ports"]]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_selectors_mean_pods_that_have_the_ports(overlay: str) -> None:
    things = rendered(overlay)
    for name, service in of_kind(things, "Service").items():
        (pod,) = selected(things, service["spec"]["selector"])
        assert {p["targetPort"] for p in service["spec"]["ports"]} <= set(ports(pod)), name
    for name, budget in of_kind(things, "PodDisruptionBudget").items():
        assert len(selected(things, budget["spec"]["selector"])) == 1, name
    for name, stateful in of_kind(things, "StatefulSet").items():
        assert stateful["spec"]["serviceName"] == f"pausefl-{name}"
        assert of_kind(things, "Service")[name]["spec"]["clusterIP"] == "None"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_whoever_must_speak_with_each_other_may_and_nobody_else(overlay: str) -> None:
    policies = of_kind(things := rendered(overlay), "NetworkPolicy")
    default = policies.pop("default")["spec"]
    assert len(selected(things, default["podSelector"])) == 3
    assert default["policyTypes"] == ["Ingress", "Egress"]
    assert "ingress" not in default
    allowed: dict[str, set[tuple[str, str, str]]] = {"ingress": set(), "egress": set()}
    for policy in policies.values():
        (here,) = selected(things, policy["spec"]["podSelector"])
        for way, side in (("ingress", "from"), ("egress", "to")):
            for rule in policy["spec"].get(way, []):
                ((kind, selector),) = rule[side][0].items()
                is_outside = kind == "namespaceSelector"
                peers = ["monitoring"] if is_outside else [component(p) for p in selected(things, selector)]
                target = here if way == "ingress" else selected(things, selector)[0]
                assert {p["port"] for p in rule["ports"]} <= set(ports(target))
                ends = (peers[0], component(here)) if way == "ingress" else (component(here), peers[0])
                allowed[way] |= {(*ends, p["port"]) for p in rule["ports"]}
    inside = {("clients", "server", "grpc"), ("server", "evaluator", "grpc")}
    assert allowed["egress"] == inside
    assert allowed["ingress"] == inside | {("monitoring", "server", "metrics"), ("monitoring", "clients", "metrics")}


def component(pod: Thing) -> str:
    return str(pod["metadata"]["labels"]["app.kubernetes.io/component"])


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_no_pod_may_more_than_it_needs(overlay: str) -> None:
    for pod in pods(rendered(overlay)).values():
        spec, only = pod["spec"], container(pod)
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        forbidden = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True}
        assert only["securityContext"] == {**forbidden, "capabilities": {"drop": ["ALL"]}}
        assert only["resources"]["limits"]["memory"]
        assert only["resources"]["requests"]["cpu"]
        assert {"startupProbe", "livenessProbe", "readinessProbe"} <= set(only)
        (certificate,) = [v["secret"]["secretName"] for v in spec["volumes"] if "secret" in v]
        assert certificate == f"pausefl-{component(pod)}-tls"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_what_must_outlive_a_pod_lies_on_a_claim_that_is_kept(overlay: str) -> None:
    """`kubectl delete -k` deletes all rendered objects, and with a namespace everything in it."""
    assert not of_kind(rendered(overlay), "Namespace", "PersistentVolumeClaim", "Secret")
    for name, mount in (("server", "/runs"), ("clients", "/ledgers")):
        stateful = of_kind(rendered(overlay), "StatefulSet")[name]["spec"]
        (claim,) = stateful["volumeClaimTemplates"]
        mounts = {m["name"]: m["mountPath"] for m in container(stateful["template"])["volumeMounts"]}
        assert mounts[claim["metadata"]["name"]] == mount
        assert stateful["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Retain", "whenScaled": "Retain"}


def test_the_documented_namespace_is_the_one_of_the_overlays() -> None:
    (named,) = re.findall(r"^kubectl apply -f deploy/kubernetes/(namespace\S+)$", documented(), re.MULTILINE)
    namespace = yaml.safe_load((KUBERNETES / named).read_text("utf-8"))["metadata"]
    assert namespace["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    for overlay in OVERLAYS:
        names = {t["metadata"].get("namespace") for t in rendered(overlay) if t["kind"] != "PriorityClass"}
        assert names == {namespace["name"]}


def test_a_server_with_a_node_to_itself_gets_one() -> None:
    """Clients may already be on every node; only a pod of higher priority replaces them."""
    things = rendered("cluster")
    specs = {name: pod["spec"] for name, pod in pods(things).items()}
    (term,) = specs["clients"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert [component(pod) for pod in selected(things, term["labelSelector"])] == ["server"]
    (priority,) = [t for t in things if t["kind"] == "PriorityClass"]
    assert specs["server"]["priorityClassName"] == priority["metadata"]["name"]
    assert priority["value"] > 0
    assert not priority.get("globalDefault")
    assert priority.get("preemptionPolicy") != "Never"
    assert "priorityClassName" not in specs["clients"]


def documented() -> str:
    return (KUBERNETES.parent.parent / "docs/kubernetes.md").read_text("utf-8")


def test_the_documented_filling_of_the_volume_is_let_into_the_namespace() -> None:
    (overrides,) = re.findall(r"--overrides='(.*?)'", documented(), re.DOTALL)
    spec = json.loads(overrides)["spec"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "fill"}, "spec": spec}
    kubernetes_validate.validate(pod, "1.31", strict=True)
    (only,) = spec["containers"]
    theirs = pods(rendered("cluster"))["clients"]
    assert spec["securityContext"].items() <= theirs["spec"]["securityContext"].items()
    assert {"runAsNonRoot", "runAsUser", "fsGroup", "seccompProfile"} <= set(spec["securityContext"])
    assert only["securityContext"].items() <= container(theirs)["securityContext"].items()
    assert {"allowPrivilegeEscalation", "capabilities"} <= set(only["securityContext"])
    (claim,) = [volume["persistentVolumeClaim"]["claimName"] for volume in spec["volumes"]]
    own = yaml.safe_load((KUBERNETES / "components/data/claim.yaml").read_text("utf-8"))
    mounted = {v["name"]: v for v in theirs["spec"]["volumes"]}["data"]["persistentVolumeClaim"]["claimName"]
    assert claim == own["metadata"]["name"] == mounted
    waits, copies = (documented().index(text) for text in ("kubectl -n pausefl wait", "kubectl -n pausefl cp"))
    assert documented().index("run fill") < waits < copies < documented().index("kubectl apply -k deploy/")


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_prometheus_finds_the_metrics_by_annotation(overlay: str) -> None:
    for name in ("server", "clients"):
        pod = pods(rendered(overlay))[name]
        notes, labels = pod["metadata"]["annotations"], pod["metadata"]["labels"]
        assert (notes["prometheus.io/scrape"], int(notes["prometheus.io/port"])) == ("true", ports(pod)["metrics"])
        assert (labels["app.kubernetes.io/name"], labels["app.kubernetes.io/instance"]) == ("pausefl", overlay)


def test_the_operators_monitors_can_be_added_and_mean_the_same(tmp_path: Path) -> None:
    def from_here(path: str) -> str:
        return os.path.relpath(KUBERNETES / path, tmp_path)

    own = {"resources": [from_here("overlays/laptop")], "components": [from_here("components/monitors")]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(own), "utf-8")
    things = render(tmp_path)
    monitor, podmonitor = (of_kind(things, kind) for kind in ("ServiceMonitor", "PodMonitor"))
    wanted = monitor["server"]["spec"]["selector"]["matchLabels"].items()
    (service,) = [s for s in of_kind(things, "Service").values() if wanted <= s["metadata"]["labels"].items()]
    (endpoint,) = monitor["server"]["spec"]["endpoints"]
    assert endpoint["port"] in [p["name"] for p in service["spec"]["ports"]]
    (pod,) = selected(things, podmonitor["clients"]["spec"]["selector"])
    (pod_endpoint,) = podmonitor["clients"]["spec"]["podMetricsEndpoints"]
    assert pod_endpoint["port"] in ports(pod)
    for name, found in (("server", endpoint), ("clients", pod_endpoint)):
        given = {r["targetLabel"]: r for r in found["relabelings"]}
        assert given["job"]["replacement"] == f"pausefl-{name}"
        assert given["instance"]["sourceLabels"][-1] == "__meta_kubernetes_pod_name"
        assert "run" not in given, "processes say it themselves"


def documented_overlay(folder: Path) -> str:
    """The documented kustomization, with paths for a user's folder."""
    (example,) = re.findall(r"^```yaml\n(.*?)^```", documented(), re.MULTILINE | re.DOTALL)
    return str(example).replace("../..", os.path.relpath(KUBERNETES, folder))


def test_the_documented_overlay_renders(tmp_path: Path) -> None:
    (tmp_path / "kustomization.yaml").write_text(documented_overlay(tmp_path), "utf-8")
    (tmp_path / "experiment.toml").write_text("[clients]\ncount = 300\n", "utf-8")
    things = render(tmp_path)
    (count,) = [e["value"] for e in container(pods(things)["clients"])["env"] if e["name"] == "COUNT"]
    clients = of_kind(things, "StatefulSet")["clients"]["spec"]
    assert clients["replicas"] * int(count) == 300
    assert {pod["metadata"]["labels"]["app.kubernetes.io/instance"] for pod in pods(things).values()} == {"mine"}
    theirs = of_kind(rendered("cluster"), "StatefulSet")["clients"]["spec"]
    assert clients["volumeClaimTemplates"] == theirs["volumeClaimTemplates"]


def test_modules_beside_the_experiment_are_found_in_every_pod(tmp_path: Path) -> None:
    example = documented_overlay(tmp_path)
    (listed,) = re.findall(r"# and your modules: (\[.*\])", example)
    (tmp_path / "kustomization.yaml").write_text(example.replace("[experiment.toml]", listed), "utf-8")
    for name in ("experiment.toml", "my_policies.py"):
        (tmp_path / name).touch()
    things = render(tmp_path)
    (config,) = [t for t in things if t["kind"] == "ConfigMap" and "my_policies.py" in t["data"]]
    for pod in pods(things).values():
        assert config["metadata"]["name"] in [v.get("configMap", {}).get("name") for v in pod["spec"]["volumes"]]
        (mount,) = [m for m in container(pod)["volumeMounts"] if m["name"] == "experiment"]
        assert f"{mount['mountPath']}/experiment.toml" in container(pod)["command"]


def command(part: str, changes: dict[str, str]) -> list[str]:
    """A pod's command with these replacements, for a model that needs no evaluator."""
    pod = container(pods(rendered("laptop"))[part])
    words = [*pod["command"], *pod["args"], "--set=workload.model=synthetic", "--set=experiment.rounds=20"]
    for old, new in changes.items():
        words = [word.replace(old, new) for word in words]
    place = words.index("pausefl")
    return [*words[:place], sys.executable, "-m", "pausefl", *words[place + 1 :]]


@pytest.mark.slow
def test_the_pods_commands_make_a_run(tmp_path: Path, authority: Authority) -> None:
    """A server and two pods of five clients over TLS, played as processes of this machine."""
    config = next(t["data"] for t in rendered("laptop") if "experiment.toml" in t.get("data", {}))
    (tmp_path / "experiment.toml").write_text(config["experiment.toml"], "utf-8")
    started: list[subprocess.Popen[str]] = []

    def start(part: str, name: str, port: str) -> Path:
        home, tls = tmp_path / name, authority.certify(name, "DNS:localhost,IP:127.0.0.1,DNS:client-*")
        home.mkdir()
        folders = {"/runs/$(RUN)": str(home / "runs"), "/ledgers": str(home / "ledgers")}
        files = {"/experiment/": f"{tmp_path}/", "/scripts/": f"{KUBERNETES}/base/", **folders}
        certificates = {"tls.crt": tls.certificate, "tls.key": tls.key, "ca.crt": tls.ca}
        ports = {f"port={number}": "port=0" for number in (50051, 9464, 9465)}
        client = {"pausefl-server:50051": f"localhost:{port}", "$(SLOT)": name[-1], "$(COUNT)": "5"}
        changes = files | {f"/certs/{pem}": path for pem, path in certificates.items()} | ports | client
        changes |= {"linger_s=60.0": "linger_s=0.1"}
        pod = {**os.environ, "TMPDIR": str(home)}
        started.append(subprocess.Popen(command(part, changes), env=pod, stdout=subprocess.PIPE, text=True))
        return home

    try:
        server = start("server", "server", "")
        assert started[0].stdout is not None
        events = (json.loads(line) for line in started[0].stdout)
        port = next(str(event["port"]) for event in events if event["kind"] == "ready")
        hosts = [start("clients", f"clients-{slot}", port) for slot in range(2)]
        wait_for((server / "over").exists, "the end", running=started[0])
        assert all(process.poll() is None for process in started), "the clients stay"
    finally:
        for process in started:
            process.terminate()
            process.communicate()
    assert json.loads((server / "runs/summary.json").read_text("utf-8"))["rounds"] == 20
    ledgers = [sorted(path.stem for path in (home / "ledgers").glob("*.db")) for home in hosts]
    assert ledgers == [[f"client-{k:03}" for k in slot] for slot in (range(5), range(5, 10))]


def test_a_sweeps_job_has_a_pod_for_each_line_of_its_runs() -> None:
    things = render(KUBERNETES / "sweep")
    job, pod = of_kind(things, "Job")["sweep"]["spec"], of_kind(things, "Job")["sweep"]["spec"]["template"]
    (config,) = of_kind(things, "ConfigMap").values()
    grid = dict(line.split(" ", 1) for line in config["data"]["runs.txt"].splitlines())
    assert (job["completionMode"], job["completions"]) == ("Indexed", len(grid))
    (words,) = re.findall(r"^pausefl sweep \S+ --virtual (.*?) --run-dir", documented(), re.MULTILINE)
    assert words == "--set selection.m=2,5 --seeds 2"
    points = [(m, seed) for seed in (1, 2) for m in (2, 5)]
    assert grid == {f"m={m}-seed{s}": f"--set=selection.m={m} --set=experiment.seed={s}" for m, s in points}
    theirs = pods(rendered("laptop"))["server"]
    assert pod["spec"]["securityContext"] == theirs["spec"]["securityContext"]
    assert container(pod)["securityContext"] == container(theirs)["securityContext"]
    (policy,) = of_kind(things, "NetworkPolicy").values()
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert not of_kind(things, "PersistentVolumeClaim"), "results outlive the Job"


@pytest.mark.slow
def test_runs_of_a_sweeps_pods_are_those_of_pausefl_sweep(tmp_path: Path) -> None:
    """Even if a run's first pod was asked to end."""
    config, kept, shim = synthetic(tmp_path, rounds=1000, clients=6), tmp_path / "kept", tmp_path / "bin/pausefl"
    runs = "".join(f"m={m}-seed1 --set=selection.m={m} --set=experiment.seed=1\n" for m in (2, 5))
    (tmp_path / "runs.txt").write_text(runs, "utf-8")
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nexec {sys.executable} -m pausefl "$@"\n', "utf-8")
    shim.chmod(0o755)
    kept.mkdir()

    def pod(index: int, disk: str) -> subprocess.Popen[bytes]:
        (tmp_path / disk).mkdir()
        own = {"TMPDIR": str(tmp_path / disk), "JOB_COMPLETION_INDEX": str(index)}
        environment = {**os.environ, **own, "PATH": f"{shim.parent}:{os.environ['PATH']}"}
        play: list[str | Path] = ["sh", KUBERNETES / "sweep/play.sh", tmp_path / "runs.txt", kept, config]
        return subprocess.Popen(play, env=environment)

    with pod(0, "a") as first, pod(1, "b") as other:
        wait_for(lambda: rounds_in(tmp_path / "a/run"), "a round", running=first)
        first.terminate()
        assert (first.wait(), other.wait()) == (130, 0)
    assert 0 < rounds_in(kept / "m=2-seed1") < 1000
    with pod(0, "c") as second:
        assert second.wait() == 0
    with pod(2, "d") as beyond:
        assert beyond.wait() == 2
    played = {path: path.stat().st_mtime_ns for path in kept.glob("*/summary.json")}
    assert len(played) == 2
    told = run("sweep", config, "--virtual", "--set", "selection.m=2,5", "--run-dir", kept)
    assert told.returncode == 0, told.stderr
    assert {path: path.stat().st_mtime_ns for path in played} == played
    assert (kept / "sweep.csv").read_text("utf-8").count("\n") == 3


def test_no_run_of_a_sweep_is_lost_whenever_its_pod_is_killed(tmp_path: Path) -> None:
    kept, tools, runs = tmp_path / "kept", tmp_path / "bin", tmp_path / "runs.txt"
    kept.mkdir()
    tools.mkdir()
    runs.write_text("one --set=selection.m=2\n", "utf-8")
    scripts = {"pausefl": 'echo "$@" >> words; mkdir -p run; touch run/run.db'}
    for tool in ("cp", "mv", "rm"):
        scripts[tool] = f'{shutil.which(tool)} "$@"; echo >> calls; [ $(wc -l < calls) != $AFTER ] || kill -KILL $PPID'
    for tool, script in scripts.items():
        (tools / tool).write_text(f"#!/bin/sh\ncd $TMPDIR\n{script}\n", "utf-8")
        (tools / tool).chmod(0o755)
    own = {"PATH": f"{tools}:{os.environ['PATH']}", "JOB_COMPLETION_INDEX": "0"}
    for number, killed_after in enumerate([0, *(after for calls in range(1, 8) for after in (calls, 0))]):
        (disk := tmp_path / str(number)).mkdir()
        pod = {**os.environ, **own, "TMPDIR": str(disk), "AFTER": str(killed_after)}
        subprocess.run(["sh", KUBERNETES / "sweep/play.sh", runs, kept, "one.toml"], env=pod, check=False)
        if number and not killed_after:
            assert (disk / "words").read_text("utf-8") == f"run --resume {disk}/run\n", f"after pod {number - 1}"
            assert [entry.name for entry in kept.iterdir()] == ["one"]


BASE = ROOT / "deploy/kubernetes/base"
PART = ["sh", str(BASE / "part.sh")]


@pytest.fixture
def pod(tmp_path: Path) -> dict[str, str]:
    """The environment of a container with its own temporary folder."""
    return {**os.environ, "TMPDIR": str(tmp_path)}


def test_a_part_that_is_over_is_waited_upon_and_not_played_again(tmp_path: Path, pod: dict[str, str]) -> None:
    """A part that fails ends its container."""
    assert subprocess.run([*PART, "sh", "-c", "exit 3"], env=pod, check=False).returncode == 3
    assert not (tmp_path / "over").exists()
    note = ["sh", "-c", 'echo played >> "$TMPDIR/notes"']
    for _ in range(2):  # Kubernetes restarts the container
        with subprocess.Popen([*PART, *note], env=pod) as waiting:
            wait_for((tmp_path / "over").exists, "the end", running=waiting)
            waiting.terminate()
            # In the second pass, the signal may come before the trap is set.
            assert waiting.wait(10) in (128 + signal.SIGTERM, -signal.SIGTERM)
    assert (tmp_path / "notes").read_text("utf-8") == "played\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_part_is_killed_with_its_pod(tmp_path: Path, pod: dict[str, str], number: signal.Signals) -> None:
    """The part is not asked to end: a server would end its run."""
    play = 'trap "echo asked > \\"$TMPDIR/asked\\"" TERM; mkfifo "$TMPDIR/playing"; read -r _ < "$TMPDIR/playing"'
    with subprocess.Popen([*PART, "sh", "-c", play], env=pod) as playing:
        wait_for((tmp_path / "playing").exists, "the beginning", running=playing)
        playing.send_signal(number)
        assert playing.wait(10) == 128 + signal.SIGTERM
    assert not (tmp_path / "over").exists()
    assert not (tmp_path / "asked").exists()
    wait_until_unread(tmp_path / "playing")


@pytest.fixture
def metrics() -> Iterator[int]:
    """The port of a client process's probes."""
    routes = {"/healthz": lambda _: Response("text/plain", [b"ok\n"])}
    with closing(WebServer("127.0.0.1", 0, routes, key="metrics.client_port")) as server:
        yield int(server.address.rpartition(":")[2])


def is_alive(port: int, pod: dict[str, str]) -> bool:
    probe = ["bash", str(BASE / "alive.sh"), str(port)]
    return subprocess.run(probe, env=pod, capture_output=True, check=False).returncode == 0


def test_alive_is_what_says_so_or_whose_part_is_over(tmp_path: Path, pod: dict[str, str], metrics: int) -> None:
    assert is_alive(metrics, pod)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        assert not is_alive(port, pod)
        (tmp_path / "over").touch()
        assert is_alive(port, pod)
