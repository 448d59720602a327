"""Images, compose file and `make up`, as far as they can be tested without an engine (see test_container_run)."""

import importlib.metadata
import os
import random
import re
import shutil
import socket
import sqlite3
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from pausefl.experiment.experiment import load_experiment
from pausefl.experiment.in_force import in_force
from pausefl.runtime.run_dir import made_run_dir
from rigs.docker import RELEASE, asked, make
from rigs.places import ROOT, script
from rigs.waiting import wait_for

DEPLOY = ROOT / "deploy"
SERVICES = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))["services"]
BASE_BYTES = 130_010_000
"""Size on disk of python:3.11-slim-bookworm for amd64, as stated in docker-library/repo-info on 2026-08-13."""
PROJECT_BYTES = 6_000_000
"""Size of the installed wheel."""
needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")


@pytest.fixture(scope="module")
def compose_py() -> Iterator[ModuleType]:
    """deploy/compose.py, with its folder on the path, as for a script."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(DEPLOY)
        yield script(DEPLOY / "compose.py")


def refusal(done: subprocess.CompletedProcess[str]) -> str:
    """The only line printed when `make up` is refused."""
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("make up: ")
    return line.removeprefix("make up: ")


def test_every_image_is_a_stage_of_the_dockerfile_and_those_of_others_are_named_by_digest() -> None:
    stages = re.findall(r"^FROM \S+ AS (\S+)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    targets = {
        service["build"]["target"]: service["image"]
        for name in ("compose.yaml", "compose.gpu.yaml")
        for service in yaml.safe_load((DEPLOY / name).read_text())["services"].values()
        if "build" in service
    }
    assert set(targets) == {"server", "evaluator", "client", "client-cuda"} <= set(stages)
    for target, image in targets.items():
        assert image == f"${{IMAGE:-pausefl}}-{target}:${{VERSION:-{RELEASE}}}"
    (base,) = re.findall(r"^ARG BASE=(.+)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    ours = SERVICES["server"]["build"]["args"]["BASE"]
    assert ours == f"${{BASE:-{base}}}"
    others = [ours, *(SERVICES[name]["image"] for name in ("prometheus", "grafana"))]
    assert all(re.fullmatch(r"\$\{\w+:-[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}\}", image) for image in others)


def test_containers_can_neither_write_nor_become_more_and_nobody_can_log_in_to_grafana() -> None:
    """Grafana shows its dashboards to every visitor, and its administrator's default password is public."""
    for name in ("server", "evaluator", "client"):
        assert SERVICES[name]["read_only"]
    for service in SERVICES.values():
        assert (service["cap_drop"], service["security_opt"]) == (["ALL"], ["no-new-privileges:true"])
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    settings = SERVICES["grafana"]["environment"]
    for wanted in ("AUTH_ANONYMOUS_ENABLED", "AUTH_DISABLE_LOGIN_FORM", "SECURITY_DISABLE_INITIAL_ADMIN_CREATION"):
        assert settings[f"GF_{wanted}"] == "true"
    assert settings["GF_AUTH_BASIC_ENABLED"] == "false"
    assert "GF_AUTH_ANONYMOUS_ORG_ROLE" not in settings


@pytest.mark.slow
@needs_openssl
def test_make_up_starts_those_named_and_nobody_else(engine: dict[str, str]) -> None:
    done = make("up", **engine)
    assert done.returncode == 0, done.stderr
    built, validated, started = [line for line in asked(engine).splitlines() if "server" in line]
    assert built.endswith(" build server client")
    assert " validate /experiment/demo.toml --set=clients.count=10 " in validated
    assert started.endswith(" up --detach --no-deps server client")


@needs_openssl
def test_an_experiment_that_nobody_can_play_is_said_before_anything_starts(
    engine: dict[str, str], tmp_path: Path
) -> None:
    experiment = tmp_path / "mine.toml"
    experiment.touch(0o644)
    tmp_path.chmod(0o755)
    too_many = "selection.m = 5: must be at most clients.count = 4"
    for text, message in (("[selection]\nm = 5\n", too_many), ("[selection\n", "not valid TOML")):
        experiment.write_text(text)
        line = refusal(make("up", **engine, EXPERIMENT=str(experiment), CLIENTS="4"))
        assert line.startswith(f"EXPERIMENT={experiment} ")
        assert message in line
    assert " up " not in asked(engine)


@needs_openssl
@pytest.mark.parametrize(
    ("clients", "rounds", "message"),
    [
        (4, 3, "holds the run of another experiment: clients.count is 3 there, 4 here"),
        (3, 3, "holds a run that has played its 3 rounds; choose another directory, or give it more"),
        (3, 4, ""),
    ],
)
def test_a_run_of_this_name_that_cannot_go_on_is_said(
    engine: dict[str, str], tmp_path: Path, clients: int, rounds: int, message: str
) -> None:
    """The server's own settings decide: the run in the volume was begun with all options of compose.yaml."""
    options = SERVICES["server"]["command"]
    for name, file in {"ca": "ca.pem", "server-certificate": "server.pem", "server-key": "server.key"}.items():
        options = [word.replace(f"/run/secrets/{name}", f"{tmp_path}/certs/{file}") for word in options]
    overrides = [word.removeprefix("--set=") for word in options if word.startswith("--set=")]
    begun = [*(o for o in overrides if "${" not in o), "clients.count=3", "selection.m=2", "experiment.rounds=3"]
    with made_run_dir(in_force(load_experiment("demo", begun)), tmp_path / "volume/mine"):
        (tmp_path / "volume/mine/summary.json").write_text('{"rounds": 3}')
    experiment = tmp_path / "experiment/mine.toml"
    experiment.parent.mkdir(mode=0o755)
    listed = load_experiment("demo", ["clients.count=3", "selection.m=2", f"experiment.rounds={rounds}"]).to_toml()
    experiment.write_text(listed)
    experiment.chmod(0o644)
    places = {"VOLUME": str(tmp_path / "volume"), "EXPERIMENT": str(experiment), "RUN": "mine"}
    done = make("up", **engine, **places, CLIENTS=str(clients))
    if message:
        line = refusal(done)
        assert line.startswith(f"EXPERIMENT={experiment} CLIENTS={clients} RUN=mine: --run-dir ")
        assert message in line
    else:
        assert done.returncode == 0, done.stderr


@needs_openssl
def test_modules_beside_the_experiment_are_found_in_containers(engine: dict[str, str]) -> None:
    """The check that runs in the image imports the policy that the experiment names."""
    experiment = ROOT / "examples/policy/experiment.toml"
    done = make("up", **engine, EXPERIMENT=str(experiment))
    assert done.returncode == 0, done.stderr
    (validated,) = [line for line in asked(engine).splitlines() if " validate " in line]
    assert f"--volume={experiment.parent}:/experiment:ro" in validated


def test_every_part_of_a_run_has_the_experiments_folder(compose_py: ModuleType) -> None:
    text = (DEPLOY / "compose.yaml").read_text("utf-8")
    values = {name: value for name, value in compose_py.settings({"EXPERIMENT": "small_mnist"}).items() if value}
    filled = re.sub(r"\$\{(\w+):-([^}]*)\}", lambda found: str(values.get(found[1], found[2])), text)
    services = yaml.safe_load(filled)["services"]
    for name in ("server", "evaluator", "client"):
        assert services[name]["volumes"][0] == f"{ROOT}/emulator/pausefl/experiment/presets:/experiment:ro"
        assert services[name]["command"][1] == "/experiment/small_mnist.toml"


@pytest.mark.parametrize("command", ["down", "logs", "images"])
def test_a_run_is_ended_where_its_files_are_gone(engine: dict[str, str], command: str) -> None:
    done = make(command, **engine, EXPERIMENT="gone.toml", PAUSEFL_DATA="gone", CLIENTS="many")
    assert done.returncode == 0, done.stderr


def test_output_that_the_engine_cannot_give_replaces_no_earlier_output(
    compose_py: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compose_py, "_run_of_containers", lambda _: "run")
    for program in ("print('all')", "import sys; print('half'); sys.exit(1)"):
        monkeypatch.setattr(compose_py, "_compose", lambda _, program=program: [sys.executable, "-c", program])
        compose_py.keep_logs({**os.environ, "RESULTS": str(tmp_path)})
        files = {path.name: (path.read_text(), path.stat().st_mode & 0o077) for path in (tmp_path / "run").iterdir()}
        assert files == dict.fromkeys(("server.log", "clients.log"), ("all\n", 0))


@pytest.mark.parametrize("kept", ["mine.toml", "my_policies.py", "."])
def test_a_folder_that_containers_could_not_read_is_said(compose_py: ModuleType, tmp_path: Path, kept: str) -> None:
    for path in (tmp_path / "mine.toml", tmp_path / "my_policies.py"):
        path.touch(mode=0o644)
    tmp_path.chmod(0o755)
    assert compose_py.settings({"EXPERIMENT": str(tmp_path / "mine.toml")})["EXPERIMENT_FOLDER"] == str(tmp_path)
    (tmp_path / kept).chmod(0o700)
    with pytest.raises(compose_py.Refusal, match="must be readable by all"):
        compose_py.settings({"EXPERIMENT": str(tmp_path / "mine.toml")})


def needs(*extras: str) -> set[str]:
    """The requirements that a stage of the Dockerfile gives to pip."""
    script = [sys.executable, str(DEPLOY / "requirements.py"), str(ROOT / "pyproject.toml"), *extras]
    return set(subprocess.run(script, capture_output=True, text=True, check=True).stdout.splitlines())


def test_the_servers_image_is_below_450_mb_and_lacks_nothing(tmp_path: Path) -> None:
    """The stage's packages, as links to this environment's, without the files it removes. Other images have torch."""
    for extra in ("evaluator", "client"):
        assert {"torch", "grpcio"} <= {Requirement(need).name for need in needs(extra)}
    missing, installed = needs("server"), set[str]()
    while missing:
        need = Requirement(missing.pop())
        if (need.marker is None or need.marker.evaluate({"extra": ""})) and need.name not in installed:
            installed.add(need.name)
            missing.update(importlib.metadata.requires(need.name) or ())
            for file in importlib.metadata.files(need.name) or ():
                if ".." not in file.parts:
                    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
                    (tmp_path / file).symlink_to(file.locate())
    stage = (DEPLOY / "Dockerfile").read_text("utf-8").partition(" AS server-libraries")[2].partition("FROM ")[0]
    subprocess.run(["sh", "-ec", stage.rpartition("site-packages \\\n && ")[2]], cwd=tmp_path, check=True)
    libraries = sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file())
    assert BASE_BYTES + PROJECT_BYTES + libraries < 450e6
    sources = [str(ROOT / name) for name in ("proto", "process", "server", "client", "emulator")]
    alone = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sources])}
    code = "import pausefl_server.service, pausefl.__main__; from pausefl_server import search; search.warm_up()"
    subprocess.run([sys.executable, "-S", "-c", code], env=alone, check=True)


@pytest.mark.skipif(shutil.which("docker-compose") is None, reason="docker-compose is not installed")
def test_the_older_compose_takes_the_files() -> None:
    files = [f"--file={DEPLOY / name}" for name in ("compose.yaml", "compose.gpu.yaml")]
    command = ["docker-compose", "--compatibility", *files, "config"]
    environment = {**os.environ, "REPLICAS": "7", "CLIENT_MEMORY": "300M"}
    read = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    deploy = yaml.safe_load(read)["services"]["client"]["deploy"]
    assert (deploy["replicas"], deploy["resources"]["limits"]["memory"]) == (7, "300M")
    assert deploy["resources"]["reservations"]["devices"][0]["capabilities"] == ["gpu"]


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"CLIENTS": "many"}, "CLIENTS=many: must be a number from 1"),
        ({"PER_CONTAINER": "0"}, "PER_CONTAINER=0: must be a number from 1"),
        ({"SERVICES": "server clients"}, "SERVICES=server clients: clients is none of server, evaluator, client, "),
        ({"RUN": "a/b"}, "RUN=a/b: must be a name, not a path"),
        ({"COMPOSE_PROJECT_NAME": "Mine"}, "COMPOSE_PROJECT_NAME=Mine: must be small letters, digits, - and _"),
        ({"CERTIFICATES": "/tmp/a:b"}, "CERTIFICATES: /tmp/a:b cannot be mounted, its name must be without a colon"),
        ({"EXPERIMENT": "no-such"}, "EXPERIMENT=no-such: is neither a file nor a preset (demo, "),
        ({"PAUSEFL_DATA": "nowhere"}, "PAUSEFL_DATA=nowhere: is no folder"),
        ({"DOCKER_HOST": "unix:///nowhere/docker.sock"}, "no Docker engine answers: "),
        ({"PATH": "/nowhere"}, "no docker command here; install Docker"),
    ],
)
def test_make_up_says_in_one_line_why_it_cannot(environment: dict[str, str], message: str) -> None:
    if "DOCKER_HOST" in environment and not (shutil.which("docker") and shutil.which("docker-compose")):
        pytest.skip("docker and docker-compose are not installed")
    assert message in refusal(make("up", **environment))


def test_too_little_memory_is_said(compose_py: ModuleType) -> None:
    settings = compose_py.settings({"CLIENTS": "30"})
    own = {**settings, "CLIENT_MEMORY": "1K", "SERVER_MEMORY": "2M", "EVALUATOR_MEMORY": "3G"}
    needed = ((settings, (30 * 384 << 20) + (2 << 30), 14.2), (own, (30 << 10) + (2 << 20) + (3 << 30), 3.2))
    for given, bytes_, gigabytes in needed:
        compose_py.check_memory(given, bytes_)
        with pytest.raises(compose_py.Refusal, match=f"evaluator may take {gigabytes} GB"):
            compose_py.check_memory(given, bytes_ - 1)
    with pytest.raises(compose_py.Refusal, match=r"CLIENTS=30: 30 containers of 0.4 GB, .* has 8.0 GB; take fewer"):
        compose_py.check_memory(settings, 8_000_000_000)
    shared = compose_py.settings({"CLIENTS": "30", "PER_CONTAINER": "4"})
    assert shared["REPLICAS"] == "8"
    compose_py.check_memory(shared, 8_000_000_000)
    with pytest.raises(compose_py.Refusal, match="CLIENT_MEMORY=lots: must be a size"):
        compose_py.check_memory({**settings, "CLIENT_MEMORY": "lots"}, 8_000_000_000)


def test_too_few_processors_and_a_taken_port_are_said(compose_py: ModuleType) -> None:
    compose_py.check_processors({}, 2)
    with pytest.raises(compose_py.Refusal, match=r"CLIENT_CPUS=1\.5: must be from 0\.01 to 1, what the engine's"):
        compose_py.check_processors({}, 1)
    for value in ("0", "many", "nan", "2.01"):
        with pytest.raises(compose_py.Refusal, match=f"CLIENT_CPUS={value}: must be from"):
            compose_py.check_processors({"CLIENT_CPUS": value}, 2)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with pytest.raises(compose_py.Refusal, match=f"GRAFANA_PORT={port}: the port is taken"):
            compose_py.check_port("GRAFANA_PORT", port)
    compose_py.check_port("GRAFANA_PORT", port)
    with pytest.raises(compose_py.Refusal, match="GRAFANA_PORT=x: must be a port"):
        compose_py.check_port("GRAFANA_PORT", "x")


@pytest.fixture
def folder(compose_py: ModuleType, tmp_path: Path) -> Path:
    """A folder of certificates."""
    compose_py.make_certificates(tmp_path / "certs")
    return tmp_path / "certs"


@needs_openssl
def test_certificates_are_made_once_and_trusted(compose_py: ModuleType, folder: Path) -> None:
    made = {path.name: path.read_bytes() for path in folder.iterdir()}
    compose_py.make_certificates(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == made
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "ca.key").stat().st_mode & 0o777 == 0o600
    assert shake_hands(folder, "server", "client", "server") == "pausefl server"
    assert shake_hands(folder, "evaluator", "server", "evaluator") == "pausefl evaluator"
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(folder, "evaluator", "client", "server")


@needs_openssl
@pytest.mark.parametrize("name", ["server", "evaluator", "client"])
def test_certificates_about_to_end_are_said(compose_py: ModuleType, folder: Path, name: str) -> None:
    compose_py.check_certificates(folder)
    key, certificate = str(folder / f"{name}.key"), str(folder / f"{name}.pem")
    sign = ["openssl", "req", "-x509", "-new", "-subj", "/CN=x", "-days", "1", "-key", key, "-out", certificate]
    subprocess.run(sign, check=True)
    soon = ["openssl", "x509", "-checkend", "86400", "-noout", "-in", certificate]
    wait_for(lambda: subprocess.run(soon, check=False).returncode, "the last day, as certificates know whole seconds")
    compose_py.make_certificates(folder)
    with pytest.raises(compose_py.Refusal, match=rf"/{name}\.pem: cannot be read, or ends within a day"):
        compose_py.check_certificates(folder)


@needs_openssl
def test_certificates_that_containers_could_not_read_are_said(compose_py: ModuleType, folder: Path) -> None:
    (folder / "client.key").chmod(0o600)
    with pytest.raises(compose_py.Refusal, match=r"CERTIFICATES: .*/client\.key must be readable by all"):
        compose_py.check_certificates(folder)
    (folder / "client.key").unlink()
    with pytest.raises(compose_py.Refusal, match=r"/client\.key: is missing; put it there"):
        compose_py.check_certificates(folder)


def shake_hands(folder: Path, server: str, client: str, name: str) -> str:
    """Mutual TLS in memory; returns the common name that the client sees."""

    def context(side: int, whose: str) -> ssl.SSLContext:
        made = ssl.SSLContext(side)
        made.load_cert_chain(folder / f"{whose}.pem", folder / f"{whose}.key")
        made.load_verify_locations(folder / "ca.pem")
        made.verify_mode = ssl.CERT_REQUIRED
        return made

    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    listens = context(ssl.PROTOCOL_TLS_SERVER, server).wrap_bio(up, down, server_side=True)
    calls = context(ssl.PROTOCOL_TLS_CLIENT, client).wrap_bio(down, up, server_hostname=name)
    for side in (calls, listens, calls, listens):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    certificate: Any = calls.getpeercert()
    return next(str(value) for part in certificate["subject"] for key, value in part if key == "commonName")


# -- `make results` copies run directories out of their volume

ROWS = 2_000


@pytest.fixture
def volumes(engine: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """The engine's environment with the paths of a volume and of results."""
    return engine | {"VOLUME": str(tmp_path / "volume"), "RESULTS": str(tmp_path / "results")}


def test_runs_that_are_copied_are_named_and_no_others(volumes: dict[str, str], tmp_path: Path) -> None:
    """A run in progress has no summary yet. The folder may also hold runs of this machine, which are not named."""
    (tmp_path / "volume/second").mkdir(parents=True)
    (tmp_path / "results/of-this-machine").mkdir(parents=True)
    (tmp_path / "results/of-this-machine/summary.json").touch()
    done = make("results", **volumes)
    assert (done.returncode, done.stdout) == (0, f"{tmp_path}/results/second (not at its end)\n")


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("volume", "no volume pausefl_runs here: nothing was run under this COMPOSE_PROJECT_NAME"),
        ("image", f"no image pausefl-server:{RELEASE} here to read the volume pausefl_runs: make images builds it"),
        ("nothing", "the volume pausefl_runs holds no run"),
    ],
)
def test_results_that_are_missing_are_said(volumes: dict[str, str], tmp_path: Path, missing: str, message: str) -> None:
    (tmp_path / "volume").mkdir()
    done = make("results", **volumes, MISSING=missing)
    assert (done.returncode, done.stderr) == (2, f"make results: {message}\n")


@pytest.mark.parametrize(("in_the_way", "status"), [("first/kept", "0"), ("second", "2")])
def test_results_not_copied_are_said(volumes: dict[str, str], tmp_path: Path, in_the_way: str, status: str) -> None:
    """Results that cannot be written, and results that could not all be read."""
    (tmp_path / "volume").mkdir()
    (tmp_path / "volume/first").touch()
    (tmp_path / "results" / in_the_way).mkdir(parents=True)
    done = make("results", **volumes, STATUS=status)
    assert done.returncode == 2
    line = done.stderr.splitlines()[-1]
    assert line.startswith(f"make results: the volume pausefl_runs cannot be copied into {tmp_path}/results")
    assert not [*tmp_path.glob("results/.copy-*")]


def test_a_run_that_was_copied_while_it_was_played_is_copied_anew(volumes: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "volume/first").mkdir(parents=True)
    (tmp_path / "results/other").mkdir(parents=True)
    (tmp_path / "results/other/run.db-wal").touch()
    with closing(sqlite3.connect(tmp_path / "volume/first/run.db", isolation_level=None)) as log:
        log.execute("PRAGMA journal_mode = WAL")
        log.execute("CREATE TABLE rounds AS SELECT 1 AS round")
        assert make("results", **volumes).returncode == 0
        log.execute("INSERT INTO rounds VALUES (2)")
    (tmp_path / "results/first/report.html").touch()
    assert make("results", **volumes).returncode == 0
    with closing(sqlite3.connect(tmp_path / "results/first/run.db")) as copied:
        assert copied.execute("SELECT round FROM rounds").fetchall() == [(1,), (2,)]
    assert (tmp_path / "results/first/report.html").exists(), "drawn here"
    assert (tmp_path / "results/other/run.db-wal").exists(), "of a run that is not the volume's"


def test_results_are_whole_while_the_run_goes_on(volumes: dict[str, str], tmp_path: Path) -> None:
    """The log is written and checkpointed all the time while it is copied."""
    (tmp_path / "volume/first").mkdir(parents=True)
    with written_all_the_time(tmp_path / "volume/first/run.db"):
        for _ in range(3):
            done = make("results", **volumes)
            assert done.returncode == 0, done.stderr
            with closing(sqlite3.connect(tmp_path / "results/first/run.db")) as copied:
                assert copied.execute("PRAGMA integrity_check").fetchone() == ("ok",)
                assert copied.execute("SELECT count(*), sum(gain) FROM rounds").fetchone() == (ROWS, 0)


@contextmanager
def written_all_the_time(path: Path) -> Iterator[None]:
    """Writes to a database of 8 MB until the block ends: each commit adds 1 to one row and takes 1 from another."""
    stop, draws = threading.Event(), random.Random(1)

    def write() -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as log:
            log.execute("PRAGMA synchronous = OFF")
            while not stop.is_set():
                pair = draws.sample(range(1, ROWS + 1), 2)
                log.execute("UPDATE rounds SET gain = gain + 2 * (rowid = ?1) - 1 WHERE rowid IN (?1, ?2)", pair)

    with closing(sqlite3.connect(path, isolation_level=None)) as log:
        log.execute("PRAGMA journal_mode = WAL")
        log.execute("CREATE TABLE rounds (gain INTEGER, padding BLOB)")
        log.execute("BEGIN")
        log.executemany("INSERT INTO rounds VALUES (0, zeroblob(4000))", [()] * ROWS)
        log.execute("COMMIT")
        writer = threading.Thread(target=write)
        writer.start()
        try:
            yield
        finally:
            stop.set()
            writer.join()
