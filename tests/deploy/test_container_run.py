"""`make up` for real: images, one server, its evaluator and ten client containers that stay, over TLS, for two runs.

The first run is played to its end. Its policy and training method are in the experiment's folder, and in no image.
During the second run, containers are killed, paused and disconnected, and the engine is restarted.

`make test-containers` runs it, on an engine that answers or on one of its own. Without a registry, it uses a base image
made by debootstrap and wheels fetched beforehand.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from pausefl_client.privacy.ledger import verified_spend
from rigs import log
from rigs.command import greatest_told, query, summary_of
from rigs.docker import RELEASE
from rigs.places import ROOT
from rigs.waiting import free_port, wait_for

pytestmark = pytest.mark.timeout(7200)

DEPLOY = ROOT / "deploy"
KEPT = ROOT / "build/containers"
PUBLIC_BASE = "python:3.11-slim-bookworm"
OWN_BASE = "localhost/pausefl-base"
PROJECT = "pausefl-test"
IMAGES = {name: f"pausefl-{name}:{RELEASE}" for name in ("server", "evaluator", "client")}
CLIENTS = 10
PATIENCE_S = 1800.0
ROUNDS = 20
# Modules beside the experiment: one for the server, which has no torch, and one for clients and evaluator.
OWN = ("examples/policy/moving_average.py", "examples/training_method/decay.py")
OF_BOTH = """
privacy = { epsilon_budget = 40.0, eta = 0.01, clip = 0.02 }
evaluation.every = 5
[workload]
training = { kind = "decay:DecayedWeights", momentum = 0.5 }
epochs = 5
batch_size = 20
"""
EXPERIMENT = f"""
experiment.rounds = {ROUNDS}
selection.policy = "moving_average:MovingAverage"
selection.m = 4
selection."moving_average:MovingAverage".exploration = 0.5
latency = {{ signal = "communication", tau_min_s = 0.5 }}
{OF_BOTH}"""
# All clients take part in each round, so each pause of a client touches a round.
ROUGH = f"""
experiment.rounds = 100_000
selection = {{ policy = "pause", m = {CLIENTS} }}
clients.minimum = {CLIENTS - 1}
latency = {{ signal = "round_trip", delay = {{ kind = "constant", value_s = 0.4 }} }}
server = {{ dead_after_s = 6.0, rejoin_timeout_s = 30.0, round_timeout_s = 60.0 }}
{OF_BOTH}"""
# The services that are paused together, and for how many seconds.
PAUSES = ((("client",), 2.0), (("client",), 10.0), (("server",), 1.0), (("server",), 30.0), (("server", "client"), 3.0))
# Connects to the evaluator with a certificate (the argument) or none, and prints the first byte of HTTP/2 received.
SHAKE_HANDS = """
import pathlib, socket, ssl, sys
context = ssl.create_default_context(cafile="/run/secrets/ca")
context.set_alpn_protocols(["h2"])
for shown in sys.argv[1:]:
    pathlib.Path("/tmp/shown.pem").write_text(shown)
    context.load_cert_chain("/tmp/shown.pem")
with context.wrap_socket(socket.create_connection(("localhost", 50052)), server_hostname="localhost") as line:
    print(line.version(), line.recv(1))
"""


class Docker:
    """The docker command, on one engine."""

    def __init__(self, **environment: str) -> None:
        self.environment = {**os.environ, **environment}
        self.restart_engine: Callable[[], None] | None = None
        """Ends and restarts the engine; None if it is not this test's own engine."""

    def __call__(self, *arguments: str) -> str:
        """Run a command that must succeed; returns its standard output followed by its standard error."""
        done = self.try_to(*arguments)
        assert done.returncode == 0, f"docker {' '.join(arguments)}: {done.stderr}"
        return (done.stdout + done.stderr).strip()

    def try_to(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command that may fail."""
        command = ["docker", *arguments]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)

    def has_image(self, name: str) -> bool:
        """Whether an image is present or can be pulled."""
        return not (self.try_to("image", "inspect", name).returncode and self.try_to("pull", name).returncode)


class Stack:
    """The containers that `make up` has started."""

    def __init__(self, docker: Docker, environment: dict[str, str]) -> None:
        self.docker = docker
        self.environment = environment
        self.page = ""
        """The server's page, read during the run."""

    def make(self, command: str) -> str:
        """The output of `make COMMAND`."""
        environment = {**self.docker.environment, **self.environment}
        script = [sys.executable, str(DEPLOY / "compose.py"), command]
        done = subprocess.run(script, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout

    def results(self) -> list[Path]:
        """The run directories that `make results` has copied."""
        lines = self.make("results").splitlines()
        return [Path(line.partition(" (")[0]) for line in lines if not line.endswith(".log")]

    def containers(self, service: str) -> list[dict[str, Any]]:
        """The engine's records of a service's containers, including ended ones."""
        labels = {"project": PROJECT, "service": service}
        filters = [f"--filter=label=com.docker.compose.{name}={value}" for name, value in labels.items()]
        ids = self.docker("ps", "--all", "--quiet", *filters).split()
        return list(json.loads(self.docker("inspect", *ids))) if ids else []

    def first(self, service: str) -> str:
        """The first container of a service."""
        return str(self.containers(service)[0]["Id"])

    def are_running(self, service: str) -> bool:
        """Whether any container of the service is running."""
        return any(container["State"]["Running"] for container in self.containers(service))

    def client_in(self, container: str) -> str:
        """The client id that a container printed last; empty for a container without a slot."""
        return next(reversed(re.findall(r"slot \d+: ([\w-]+)", self.docker("logs", container))), "")

    def clients(self) -> list[str]:
        """The client ids of all client containers."""
        return sorted(filter(None, (self.client_in(container["Id"]) for container in self.containers("client"))))

    def rounds(self) -> list[dict[str, Any]]:
        """The events of rounds that the server's containers have printed."""
        lines = [
            line for server in self.containers("server") for line in self.docker("logs", server["Id"]).splitlines()
        ]
        return [json.loads(line) for line in lines if '"kind": "round"' in line]

    def wait_for_rounds(self, more: int) -> None:
        """Wait until `more` further rounds were played."""
        before = len(self.rounds())
        took(f"{more} more rounds", lambda: wait_until(lambda: len(self.rounds()) >= before + more, "rounds"))

    def kill_from_outside(self, container: str) -> None:
        """Kill a container's process by SIGKILL, as the kernel does when memory is short."""
        pid = self.docker("inspect", "--format={{.State.Pid}}", container)
        kill = ("--entrypoint=python", IMAGES["server"], "-c", f"import os; os.kill({pid}, 9)")
        self.docker("run", "--rm", "--pid=host", "--user=0", *kill)

    def freeze(self, container: str) -> None:
        """Pause a container. On a busy machine, the engine may give up; it is then asked again."""
        wait_until(lambda: not self.docker.try_to("pause", container).returncode, f"{container} to be frozen")


@pytest.fixture(scope="module")
def docker() -> Iterator[Docker]:
    """An engine that answers already, or one of this test's own, whose images stay in build/ for the next time."""
    if "PAUSEFL_CONTAINERS" not in os.environ:
        pytest.skip("takes many minutes: make test-containers")
    if shutil.which("docker") is None:
        pytest.skip("no docker command here")
    if not Docker().try_to("version").returncode:
        yield Docker()
        return
    if os.geteuid() or shutil.which("dockerd") is None:
        pytest.skip("no Docker engine answers, and here none can be started (by root, with dockerd)")
    KEPT.mkdir(parents=True, exist_ok=True)
    # Not in build/: the path of a socket must be short.
    with tempfile.TemporaryDirectory(prefix="pausefl-") as folder, (KEPT / "dockerd.log").open("w") as log:
        docker = Docker(DOCKER_HOST=f"unix://{folder}/socket")
        where = [f"--data-root={KEPT}/engine", f"--exec-root={folder}/exec", f"--pidfile={folder}/pid"]
        command = ["dockerd", *where, f"--host=unix://{folder}/socket", "--default-ulimit=nofile=20000:20000"]
        engines = [subprocess.Popen(command, stdout=log, stderr=log)]

        def answers() -> bool:
            return engines[-1].poll() is not None or not docker.try_to("version").returncode

        def restart() -> None:
            engines[-1].terminate()
            engines[-1].wait(120)
            engines.append(subprocess.Popen(command, stdout=log, stderr=log))
            wait_for(answers, "the engine", 120)

        docker.restart_engine = restart
        try:
            wait_for(answers, "the engine", 120)
            if engines[-1].poll() is not None:
                pytest.skip(f"dockerd ends at once: {(KEPT / 'dockerd.log').read_text().splitlines()[-1]}")
            yield docker
        finally:
            engines[-1].terminate()
            engines[-1].wait(120)


@pytest.fixture(scope="module")
def building(docker: Docker) -> dict[str, str]:
    """The settings to build images: the public base and package index, or a base and wheels made here."""
    if base := os.environ.get("BASE"):
        return {"BASE": base}
    if docker.has_image(PUBLIC_BASE):
        return {"BASE": PUBLIC_BASE}
    if docker.try_to("image", "inspect", OWN_BASE).returncode:
        make_base(docker)
    if not list((DEPLOY / "wheelhouse/cpu").glob("torch-*.whl")):
        # If the index cannot be reached, pip gives up at once.
        environment = {**os.environ, "PIP_RETRIES": "0"}
        subprocess.run(["make", "wheelhouse", f"PYTHON={sys.executable}"], cwd=ROOT, env=environment, check=True)
    return {"BASE": OWN_BASE, "PIP_NO_INDEX": "1"}


def make_base(docker: Docker) -> None:
    if os.geteuid() or shutil.which("debootstrap") is None:
        pytest.skip(f"{PUBLIC_BASE} cannot be pulled, and here no other base can be made (by root, with debootstrap)")
    with tempfile.TemporaryDirectory() as folder:
        python = "--include=python3,python3-venv"
        subprocess.run(["debootstrap", "--variant=minbase", python, "bookworm", folder], check=True)
        with subprocess.Popen(["tar", "-C", folder, "-c", "."], stdout=subprocess.PIPE) as tar:
            subprocess.run(["docker", "import", "-", OWN_BASE], env=docker.environment, stdin=tar.stdout, check=True)


@pytest.fixture(scope="module")
def prometheus(docker: Docker, building: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> str:
    """The name of Prometheus's image, or of one made from this machine's Prometheus; empty if there is neither."""
    image = str(yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["prometheus"]["image"])
    public = image.removeprefix("${PROMETHEUS_IMAGE:-").removesuffix("}")
    if docker.has_image(public):
        return public
    binary = shutil.which("prometheus")
    if binary is None:
        return ""
    folder = tmp_path_factory.mktemp("prometheus")
    shutil.copy(binary, folder)
    recipe = f"""
        FROM {building["BASE"]}
        COPY prometheus /bin/prometheus
        RUN install --directory --owner 65534 /prometheus
        USER 65534
        ENTRYPOINT ["/bin/prometheus"]
        CMD ["--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/prometheus"]
    """
    (folder / "Dockerfile").write_text(recipe)
    docker("build", "--tag=localhost/pausefl-prometheus", str(folder))
    return "localhost/pausefl-prometheus"


@pytest.fixture(scope="module")
def stack(
    docker: Docker, building: dict[str, str], prometheus: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    """A run of ten client containers, played to its end; the clients stay. One client was interrupted and came back."""
    folder = tmp_path_factory.mktemp("stack")
    experiment = folder / "experiment/experiment.toml"
    experiment.parent.mkdir()
    experiment.write_text(EXPERIMENT)
    experiment.parent.chmod(0o755)
    for file in (experiment, *(Path(shutil.copy(ROOT / own, experiment.parent)) for own in OWN)):
        file.chmod(0o644)
    services = ["server", "evaluator", "client", *(["prometheus"] if prometheus else [])]
    environment = {
        **building,
        "COMPOSE_PROJECT_NAME": PROJECT,
        "CLIENTS": str(CLIENTS),
        "EXPERIMENT": str(experiment),
        "RUN": "real",
        "SERVICES": " ".join(services),
        "CERTIFICATES": str(folder / "certs"),
        "RESULTS": str(folder / "results"),
        "PROMETHEUS_IMAGE": prometheus,
        "PAGE_PORT": str(free_port()),
        "PROMETHEUS_PORT": str(free_port()),
    }
    stack = Stack(docker, environment)
    try:
        took("make images", lambda: stack.make("images"))
        took("make up", lambda: stack.make("up"))
        wait_until(lambda: len(stack.clients()) == CLIENTS, "every client container to take its slot")
        docker.try_to("exec", stack.first("client"), "python", "-c", "import os; os.kill(1, 2)")
        stack.wait_for_rounds(1)
        stack.page = read(stack, "PAGE_PORT", "/")
        print(docker("stats", "--no-stream", "--format", "{{.Name}} {{.MemUsage}}"))
        took("the rounds", lambda: wait_until(lambda: not stack.are_running("server"), "the end of the run"))
        yield stack
    finally:
        KEPT.mkdir(parents=True, exist_ok=True)
        for service in services:
            for container in stack.containers(service):
                (KEPT / f"{container['Name'].strip('/')}.log").write_text(docker("logs", container["Id"]))
        stack.make("down")
        for volume in docker("volume", "ls", "--quiet", f"--filter=name={PROJECT}_").split():
            docker("volume", "rm", volume)


def test_the_run_had_a_page_and_its_results_are_on_its_volume(stack: Stack) -> None:
    assert "<html" in stack.page
    (server,) = stack.containers("server")
    assert server["State"]["ExitCode"] == 0
    (run_dir,) = stack.results()
    summary = summary_of(run_dir)
    print({key: summary[key] for key in ("final_accuracy", "wall_clock_s", "total_latency_s", "timing_error_s")})
    assert (summary["rounds"], summary["clients"]) == (ROUNDS, CLIENTS)
    assert summary["stopped_because"] == "all rounds done"
    assert (summary["policy"], summary["policy_parameters"]["exploration"]) == ("moving_average:MovingAverage", 0.5)
    assert summary["final_accuracy"] > 0.3, "chance is 0.1"
    assert summary["max_epsilon_spent"] > 0


def test_every_container_was_another_client(stack: Stack) -> None:
    everybody = [f"client-{k:03}" for k in range(CLIENTS)]
    assert stack.clients() == everybody
    containers = stack.containers("client")
    assert [container["State"]["Running"] for container in containers] == [True] * CLIENTS
    assert sorted(container["RestartCount"] for container in containers) == [0] * (CLIENTS - 1) + [1]
    mounted = ("run", "--rm", f"--volume={PROJECT}_ledgers:/ledgers:ro", "--entrypoint=find", IMAGES["server"])
    ledgers = stack.docker(*mounted, "/ledgers", "-name", "*.db", "-printf", "%f %U\\n")
    assert sorted(ledgers.splitlines()) == [f"{client}.db 10001" for client in everybody]


def test_containers_have_little_leave(stack: Stack) -> None:
    for service in ("server", "evaluator", "client"):
        for container in stack.containers(service):
            host = container["HostConfig"]
            assert container["Config"]["User"] == "10001:10001"
            assert host["ReadonlyRootfs"]
            assert host["CapDrop"] == ["ALL"]
            assert host["Memory"] > 0
            assert host["NanoCpus"] > 0 or service != "client"
    (evaluator,) = stack.containers("evaluator")
    assert stack.docker("exec", evaluator["Id"], "id", "--user") == "10001"
    assert "Read-only file system" in stack.docker.try_to("exec", evaluator["Id"], "touch", "/opt/x").stderr

    def is_healthy() -> bool:
        return bool(stack.containers("evaluator")[0]["State"]["Health"]["Status"] == "healthy")

    wait_until(is_healthy, "the health check")


def test_they_speak_tls_with_those_who_show_a_certificate(stack: Stack) -> None:
    (evaluator,) = stack.containers("evaluator")
    shake_hands = ("exec", evaluator["Id"], "python", "-c", SHAKE_HANDS)
    assert stack.docker(*shake_hands) == "TLSv1.3 b''", "closed"
    # The server connects to the evaluator as a client.
    shown = "".join((Path(stack.environment["CERTIFICATES"]) / f"server.{kind}").read_text() for kind in ("pem", "key"))
    assert stack.docker(*shake_hands, shown) == r"TLSv1.3 b'\x00'"


def test_images_say_what_they_are_and_hold_no_more_than_they_need(stack: Stack) -> None:
    for name, image in IMAGES.items():
        (known,) = json.loads(stack.docker("image", "inspect", image))
        print(f"{name}: {known['Size'] / 1e6:.0f} MB")
        assert known["Config"]["Labels"]["org.opencontainers.image.version"] == RELEASE
        assert known["Config"]["Labels"]["org.opencontainers.image.licenses"] == "Apache-2.0"
        left = "ls -d /src /wheel* 2> /dev/null || true"
        assert not stack.docker("run", "--rm", "--entrypoint=sh", image, "-c", left)
    imported = stack.docker.try_to("run", "--rm", "--entrypoint=python", IMAGES["server"], "-c", "import torch")
    assert "No module named 'torch'" in imported.stderr


def test_prometheus_scraped_them(stack: Stack) -> None:
    if not stack.environment["PROMETHEUS_IMAGE"]:
        pytest.skip("no image of Prometheus can be had, and it is not installed")
    assert ask(stack, "max(max_over_time(pausefl_round[1h]))") == ROUNDS
    assert ask(stack, "max(last_over_time(pausefl_finished[1h]))") == 1
    assert ask(stack, 'count(max_over_time(up{job="pausefl-clients"}[1h]) == 1)') >= CLIENTS


def test_a_server_container_compiles_nothing(stack: Stack) -> None:
    """The read-only image contains the compiled searches, for any processor of its architecture."""
    alone = ("server", "demo", "--set=selection.policy=sa-pause", "--set=workload.model=synthetic", "--run-dir=/tmp/x")
    little = ("--read-only", "--tmpfs=/tmp", "--env=NUMBA_DEBUG_CACHE=1")
    done = stack.docker.try_to("run", "--rm", *little, IMAGES["server"], *alone, "--set=clients.connect_timeout_s=10")
    assert "[cache] data loaded" in done.stdout, done.stdout + done.stderr
    assert "[cache] data saved" not in done.stdout


def test_nothing_is_lost_by_kills_pauses_cuts_and_a_new_engine(stack: Stack, tmp_path: Path) -> None:
    Path(stack.environment["EXPERIMENT"]).write_text(ROUGH)
    stack.environment["RUN"] = "rough"
    stack.make("up")
    stack.wait_for_rounds(3)
    kill(stack)
    paused = [(who, seconds, pause(stack, who, seconds)) for who, seconds in PAUSES]
    cut_off(stack)
    if stack.docker.restart_engine:
        took("a new engine", stack.docker.restart_engine)
        stack.wait_for_rounds(3)
        assert all(stack.are_running(service) for service in stack.environment["SERVICES"].split())
    check_books(stack, paused, tmp_path)


def kill(stack: Stack) -> None:
    """Containers killed from outside restart. After `docker kill` they stay down, and `make up` resumes the run."""
    everybody = [stack.first(service) for service in ("client", "evaluator", "server")]
    began = {container: started_at(stack, container) for container in everybody}
    for container in everybody:
        stack.kill_from_outside(container)
    wait_until(lambda: all(started_at(stack, container) != began[container] for container in everybody), "their return")
    stack.wait_for_rounds(3)
    stack.docker("kill", *everybody)
    assert not any(json.loads(stack.docker("inspect", "--format={{.State.Running}}", c)) for c in everybody)
    stack.make("up")
    stack.wait_for_rounds(3)


def started_at(stack: Stack, container: str) -> str:
    return stack.docker("inspect", "--format={{.State.StartedAt}}", container)


def pause(stack: Stack, who: Sequence[str], seconds: float) -> tuple[int, int, str]:
    """Pause services while all clients take part; returns the rounds before and after, and the first client's id."""
    wait_until(lambda: len(stack.rounds()[-1]["chosen"]) == CLIENTS, "everybody to take part")
    containers = [stack.first(service) for service in who]
    before = stack.rounds()[-1]["round"]
    for container in containers:
        stack.freeze(container)
    time.sleep(seconds)
    stack.docker("unpause", *containers)
    stack.wait_for_rounds(3)
    return before, stack.rounds()[-1]["round"], stack.client_in(stack.first("client"))


def cut_off(stack: Stack) -> None:
    """Disconnect a client from the network until the server has noticed."""
    container, network = stack.first("client"), f"{PROJECT}_default"
    about = f'"client": "{stack.client_in(container)}"'

    def told(topic: str) -> int:
        lines = stack.docker("logs", stack.first("server")).splitlines()
        return sum(f'"topic": "{topic}"' in line and about in line for line in lines)

    left, joined = told("left"), told("joined")
    stack.docker("network", "disconnect", network, container)
    wait_until(lambda: told("left") > left, "the server to miss it")
    stack.docker("network", "connect", network, container)
    wait_until(lambda: told("joined") > joined, "its return")
    stack.wait_for_rounds(2)


def check_books(
    stack: Stack, paused: Sequence[tuple[Sequence[str], float, tuple[int, int, str]]], folder: Path
) -> None:
    """Ledgers equal the logs of both runs; all printed rounds are logged; exactly what a pause touched is marked."""
    stack.docker("stop", stack.first("server"), *(container["Id"] for container in stack.containers("client")))
    told = {event["round"]: event["chosen"] for event in stack.rounds()}
    runs = stack.results()
    rough = next(run for run in runs if run.name == "rough")
    logged = {number: json.loads(chosen) for number, chosen in query(rough, "SELECT round, chosen FROM rounds")}
    assert told.items() <= logged.items()
    assert sorted(logged) == list(range(1, len(logged) + 1))
    assert query(rough, "SELECT * FROM events WHERE kind = 'rejected'") == []
    # A slow disk or slow memory may also stop a process for a moment.
    stood_still = "max(observations.stopped_s, rounds.stopped_s)"
    marks = query(
        rough,
        f"SELECT round, client_id, {stood_still}, teaches FROM observations JOIN rounds USING (round)"
        f" WHERE observations.suspect LIKE '%stopped_s%' AND {stood_still} > 0.5",
    )
    print(f"{len(logged)} rounds; paused {paused}; marked {marks}")
    of_pause = []
    for who, seconds, (after, until, client) in paused:
        ours = [mark for mark in marks if after < mark[0] <= until and (client == mark[1] or "server" in who)]
        during = f"round BETWEEN {after + 1} AND {until} AND round_trip_s >= {seconds}"
        touched = query(rough, f"SELECT round, client_id FROM observations WHERE {during}")
        assert ours or not touched, f"a pause of {who} is not marked"  # the server's pause may fall between two rounds
        of_pause += ours
    assert sorted(of_pause) == sorted(marks), "something that no pause touched is marked"
    assert not any(teaches for *_, teaches in marks)
    stack.docker("cp", f"{stack.first('client')}:/ledgers", str(folder))
    for client in stack.clients():
        ledger = folder / f"ledgers/{client}.db"
        heard = [greatest_told(run, client) for run in runs]
        told_of, spent = sum(count for count, _ in heard), sum(spent for _, spent in heard)
        # A client may have released in the round that the server's end interrupted.
        assert verified_spend(ledger).released - told_of in (0, 1), client
        charged = log.query(ledger, f"SELECT epsilon_spent FROM releases WHERE participation = {told_of}")
        assert charged == [(pytest.approx(spent),)], client


def ask(stack: Stack, query: str) -> float:
    """The only value of a PromQL query."""
    answer = read(stack, "PROMETHEUS_PORT", f"/api/v1/query?query={urllib.parse.quote(query)}")
    (sample,) = json.loads(answer)["data"]["result"]
    return float(sample["value"][1])


def read(stack: Stack, port: str, path: str) -> str:
    """The content at a path of a published port."""
    with urllib.request.urlopen(f"http://127.0.0.1:{stack.environment[port]}{path}") as answer:
        return str(answer.read().decode())


def wait_until(condition: Callable[[], object], what: str) -> None:
    """Wait until it holds. Each check runs docker commands, so frequent checks would slow the containers."""
    wait_for(condition, what, PATIENCE_S, every_s=0.5)


def took(what: str, work: Callable[[], object]) -> None:
    since = time.monotonic()
    work()
    print(f"{what}: {time.monotonic() - since:.0f} s")
