"""What `make up`, `down`, `logs`, `images` and `results` do with deploy/compose.yaml.

Everything is set by variables of the environment, which deploy/README.md lists. Needs nothing but Python's standard
library, a Docker engine, one of the two composes, and the openssl command when there are no certificates yet.
"""

import errno
import json
import os
import re
import runpy
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

DEPLOY = Path(__file__).resolve().parent
PRESETS = DEPLOY.parent / "emulator/pausefl/presets"
SERVICES = ("server", "evaluator", "client", "prometheus", "grafana")
# The ports that are published, on the loopback address: variable, default, service, what is there.
PORTS = (
    ("PAGE_PORT", "9464", "server", "the run's page and metrics"),
    ("PROMETHEUS_PORT", "9090", "prometheus", "Prometheus"),
    ("GRAFANA_PORT", "3000", "grafana", "Grafana"),
)
# How long certificates must last at least, for a run that is begun now.
CERTIFICATES_LAST_S = 24 * 60 * 60
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class Refusal(Exception):
    """Why a command cannot be carried out, in one line."""


def main(arguments: list[str]) -> None:
    """Carry out one command; exit status 2 with one line where it cannot be."""
    commands = {"up": up, "down": down, "logs": logs, "images": images, "results": results}
    if len(arguments) != 1 or arguments[0] not in commands:
        sys.exit(f"usage: compose.py {'|'.join(commands)}")
    try:
        needed = settings if arguments[0] == "up" else standing_settings
        commands[arguments[0]]({**os.environ, **needed(os.environ)})
    except Refusal as refusal:
        print(f"make {arguments[0]}: {refusal}", file=sys.stderr)
        sys.exit(2)
    except subprocess.CalledProcessError as error:  # it has said why itself
        sys.exit(error.returncode)
    except KeyboardInterrupt:
        sys.exit(130)


def settings(given: Mapping[str, str]) -> dict[str, str]:
    """The variables of compose.yaml that follow from those given, or are checked here."""
    clients, per_container = _count(given, "CLIENTS", 10), _count(given, "PER_CONTAINER", 1)
    experiment = _experiment_file(given.get("EXPERIMENT") or "demo")
    run = given.get("RUN") or f"{experiment.stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    if "/" in run or run in (".", ".."):
        raise Refusal(f"RUN={run}: must be a name, not a path")
    return {
        **standing_settings(given),
        "CLIENTS": str(clients),
        "PER_CONTAINER": str(per_container),
        "REPLICAS": str(-(-clients // per_container)),
        "EXPERIMENT_FOLDER": str(experiment.parent),
        "EXPERIMENT_NAME": experiment.name,
        "RUN": run,
        "PAUSEFL_DATA": _data_folder(given.get("PAUSEFL_DATA", "")),
    }


def standing_settings(given: Mapping[str, str]) -> dict[str, str]:
    """Those of them that do not depend on what is played: it can be ended where its files are gone."""
    project = given.get("COMPOSE_PROJECT_NAME") or "pausefl"
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", project):
        raise Refusal(f"COMPOSE_PROJECT_NAME={project}: must be small letters, digits, - and _")
    return {
        "VERSION": runpy.run_path(str(DEPLOY.parent / "emulator/pausefl/version.py"))["__version__"],
        "REVISION": _revision(),
        # Absolute: compose takes relative ones from its file's folder, and a bare name for a volume's.
        "CERTIFICATES": _mountable("CERTIFICATES", given.get("CERTIFICATES") or str(DEPLOY / "certs")),
        "PAUSEFL_DATA": "",
        "COMPOSE_PROJECT_NAME": project,
    }


def up(environment: Mapping[str, str]) -> None:
    """Build the images, make certificates where there are none, and start everything."""
    services = _services(environment)
    compose, engine = _compose(environment), _engine()
    running = _running(compose, environment)
    if "server" in running:
        raise Refusal("a run is going on: make logs shows it, make down ends it")
    check_memory(environment, int(engine["MemTotal"]))
    check_processors(environment, int(engine["NCPU"]))
    for variable, default, service, _ in PORTS:
        if service in services and service not in running:
            check_port(variable, environment.get(variable) or default)
    make_certificates(Path(environment["CERTIFICATES"]))
    check_certificates(Path(environment["CERTIFICATES"]))
    if not (environment.get("TORCH_INDEX_URL") or environment.get("PIP_NO_INDEX") or environment.get("GPU")):
        print("TORCH_INDEX_URL is not set: torch is built with CUDA, images take several GB (deploy/README.md)")
    subprocess.run([*compose, "build", *services], env=environment, check=True)
    if "server" in services:
        check_experiment(environment)
    # Without dependencies: who is to be started is said, and the synthetic model needs no evaluator.
    subprocess.run([*compose, "up", "--detach", "--no-deps", *services], env=environment, check=True)
    print(f"run {environment['RUN']}: make logs shows it, make down ends it, make results fetches what it leaves")
    for variable, default, service, what in PORTS:
        if service in services:
            print(f"  http://127.0.0.1:{environment.get(variable) or default}  {what}")


def down(environment: Mapping[str, str]) -> None:
    """End and remove the containers; the volumes stay."""
    _call(environment, "down", "--remove-orphans")


def logs(environment: Mapping[str, str]) -> None:
    """Follow what everybody says."""
    _call(environment, "logs", "--follow", "--tail=100")


def images(environment: Mapping[str, str]) -> None:
    """Build the images alone."""
    _call(environment, "build")


def results(environment: Mapping[str, str]) -> None:
    """Copy the run directories out of their volume, into runs/."""
    _engine()
    folder = Path(environment.get("RESULTS") or "runs")
    volume, image = _runs_volume(environment), _server_image(environment)
    # The engine would make the one, and look for the other in a registry.
    if not _has("volume", volume):
        raise Refusal(f"no volume {volume} here: nothing was run under this COMPOSE_PROJECT_NAME")
    if not _has("image", image):
        raise Refusal(f"no image {image} here to read the volume {volume}: make images builds it")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refusal(f"RESULTS={folder}: cannot be made a folder ({error.strerror})") from error
    with tempfile.TemporaryDirectory(prefix=".copy-", dir=folder) as copy:
        _copy_out(volume, image, Path(copy), folder)
        copied = sorted(folder / path.name for path in Path(copy).iterdir() if path.is_dir())
        try:
            _move_into(folder, Path(copy))
        except OSError as error:
            where = error.filename2 or error.filename
            raise Refusal(f"the volume {volume} cannot be copied into {folder} ({where}: {error.strerror})") from error
    if not copied:
        raise Refusal(f"the volume {volume} holds no run")
    for path in copied:
        print(path if (path / "summary.json").exists() else f"{path} (not at its end)")


def _copy_out(volume: str, image: str, copy: Path, folder: Path) -> None:
    """Copy what a volume holds into a folder; the other folder is where it is to go."""
    read = ["docker", "run", "--rm", "--read-only", f"--volume={volume}:/runs:ro", "--entrypoint=python", image]
    read += ["-c", (DEPLOY / "read_runs.py").read_text("utf-8"), "/runs"]
    with subprocess.Popen(read, stdout=subprocess.PIPE) as reader:
        # -o: what is copied belongs to whoever copies it.
        writer = subprocess.run(["tar", "-x", "-o", "-f", "-", "-C", copy], stdin=reader.stdout, check=False)
    # One that ends early ends the other.
    if reader.returncode or writer.returncode:
        raise Refusal(f"the volume {volume} cannot be copied into {folder}, see above")


def _has(kind: str, name: str) -> bool:
    """Whether the engine has an image or a volume."""
    return not subprocess.run(["docker", kind, "inspect", name], capture_output=True, check=False).returncode


def _move_into(folder: Path, copy: Path) -> None:
    """Move what was copied over earlier copies of the same runs.

    What lies beside the databases of those goes first: SQLite would write the log of a run that was played then over
    the newer database.
    """
    for run_dir in copy.iterdir():
        for stale in (folder / run_dir.name).glob("**/*.db-*"):
            stale.unlink()
    for path in sorted(copy.rglob("*")):
        target = folder / path.relative_to(copy)
        if path.is_dir():
            target.mkdir(exist_ok=True)
        else:
            path.replace(target)


def check_memory(environment: Mapping[str, str], memory_bytes: int) -> None:
    """Refusal where the containers' limits add up to more memory than the engine's machine has."""
    replicas = int(environment["REPLICAS"])
    defaults = {
        "CLIENT_MEMORY": "4G" if environment.get("GPU") else "384M",
        "SERVER_MEMORY": "1G",
        "EVALUATOR_MEMORY": "1G",
    }
    each, server, evaluator = (_bytes(environment, variable, default) for variable, default in defaults.items())
    needed = replicas * each + server + evaluator
    if needed > memory_bytes:
        raise Refusal(
            f"CLIENTS={environment['CLIENTS']}: {replicas} containers of {each / 1e9:.2g} GB, the server and the"
            f" evaluator may take {needed / 1e9:.1f} GB, the engine's machine has {memory_bytes / 1e9:.1f} GB; take"
            " fewer CLIENTS, more of them PER_CONTAINER, or less CLIENT_MEMORY"
        )


def check_processors(environment: Mapping[str, str], processors: int) -> None:
    """Refusal where a client container is to have more processors than the engine's machine has."""
    value = environment.get("CLIENT_CPUS") or "1.5"
    if not re.fullmatch(r"\d+(\.\d+)?", value) or not 0.01 <= float(value) <= processors:
        raise Refusal(f"CLIENT_CPUS={value}: must be from 0.01 to {processors}, what the engine's machine has")


def check_port(variable: str, value: str) -> None:
    """Refusal where the port is none, or somebody listens there."""
    if not value.isdecimal() or not 0 < int(value) < 1 << 16:
        raise Refusal(f"{variable}={value}: must be a port, from 1 to 65535")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", int(value)))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise Refusal(f"{variable}={value}: cannot be had ({error.strerror})") from error
            raise Refusal(f"{variable}={value}: the port is taken; name another one") from error


def make_certificates(folder: Path) -> None:
    """What server, evaluator and clients show each other, unless it is there."""
    if (folder / "client.pem").exists():
        return
    if shutil.which("openssl") is None:
        raise Refusal(f"no openssl command here to make certificates with; install it, or put yours into {folder}")
    script = [DEPLOY / "make-certificates.sh", folder]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Refusal(f"{folder}: certificates cannot be made there ({_last_line(done.stderr)})")


def check_certificates(folder: Path) -> None:
    """Refusal where a file is missing, or containers could not read it, or a certificate ends within a day.

    The last is told only with openssl.
    """
    pairs = [f"{name}.{kind}" for name in ("server", "evaluator", "client") for kind in ("pem", "key")]
    for path in (folder / name for name in ("ca.pem", *pairs)):
        if not path.is_file():
            raise Refusal(f"{path}: is missing; put it there, or take the folder away and new ones are made")
        _check_readable("CERTIFICATES", path, 0o004)
    if shutil.which("openssl") is None:
        return
    for name in ("server", "evaluator", "client"):
        path = folder / f"{name}.pem"
        command = ["openssl", "x509", "-noout", "-checkend", str(CERTIFICATES_LAST_S), "-in", str(path)]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            raise Refusal(
                f"{path}: cannot be read, or ends within a day; put another one there, or take the folder"
                " away and new ones are made"
            )


def check_experiment(environment: Mapping[str, str]) -> None:
    """Refusal where no container would play the experiment, with so many clients and under this RUN."""
    folder, name, run = (environment[variable] for variable in ("EXPERIMENT_FOLDER", "EXPERIMENT_NAME", "RUN"))
    volume, mounts, stored = _runs_volume(environment), [f"--volume={folder}:/experiment:ro"], list[str]()
    if _has("volume", volume):  # which the engine would make
        mounts, stored = [*mounts, f"--volume={volume}:/runs:ro"], [f"--run-dir=/runs/{run}"]
    command = ["docker", "run", "--rm", "--read-only", "--tmpfs=/tmp", "--network=none", *mounts]
    command += [_server_image(environment), "validate", f"/experiment/{name}"]
    command += [f"--set=clients.count={environment['CLIENTS']}", "--set=admission.by_certificate=true", *stored]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        why = _last_line(done.stderr).removeprefix("pausefl: ")
        raise Refusal(f"EXPERIMENT={folder}/{name} CLIENTS={environment['CLIENTS']} RUN={run}: {why}")


def _runs_volume(environment: Mapping[str, str]) -> str:
    return f"{environment['COMPOSE_PROJECT_NAME']}_runs"


def _server_image(environment: Mapping[str, str]) -> str:
    return f"{environment.get('IMAGE') or 'pausefl'}-server:{environment['VERSION']}"


def _call(environment: Mapping[str, str], *arguments: str) -> None:
    compose = _compose(environment)
    _engine()
    subprocess.run([*compose, *arguments], env=environment, check=True)


def _compose(environment: Mapping[str, str]) -> list[str]:
    """The command of whichever compose there is, for this project's files."""
    if shutil.which("docker") is None:
        raise Refusal("no docker command here; install Docker")
    if not subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode:
        command = ["docker", "compose"]
    elif shutil.which("docker-compose"):
        command = ["docker-compose", "--compatibility"]
    else:
        raise Refusal("neither `docker compose` nor docker-compose here; install one of them")
    files = ["compose.yaml", *(["compose.gpu.yaml"] if environment.get("GPU") else [])]
    return [*command, *(f"--file={DEPLOY / name}" for name in files)]


def _running(compose: list[str], environment: Mapping[str, str]) -> list[str]:
    """The services of which a container runs."""
    command = [*compose, "ps", "--services", "--filter", "status=running"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout.split()


def _engine() -> dict[str, Any]:
    """What the engine says of itself and its machine; Refusal where none answers."""
    command = ["docker", "info", "--format", "{{json .}}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    engine: dict[str, Any] = json.loads(done.stdout) if done.stdout.startswith("{") else {}
    if done.returncode or engine.get("ServerErrors") or not engine.get("MemTotal"):
        why = _last_line(done.stderr) or "; ".join(engine.get("ServerErrors") or ["it says nothing"])
        raise Refusal(f"no Docker engine answers: {why}")
    return engine


def _services(given: Mapping[str, str]) -> list[str]:
    """The services to be started; Refusal where one is none of compose.yaml's."""
    services = given.get("SERVICES", "").split() or list(SERVICES)
    if unknown := [name for name in services if name not in SERVICES]:
        raise Refusal(f"SERVICES={given['SERVICES']}: {unknown[0]} is none of {', '.join(SERVICES)}")
    return services


def _experiment_file(name: str) -> Path:
    """A preset's file, or one of the user's, in a folder that the containers can read."""
    presets = {path.stem: path for path in sorted(PRESETS.glob("*.toml"))}
    if name in presets:
        return presets[name]
    path = Path(name).resolve()
    if not path.is_file():
        raise Refusal(f"EXPERIMENT={name}: is neither a file nor a preset ({', '.join(presets)})")
    for file, mode in ((path, 0o004), (path.parent, 0o005), *((module, 0o004) for module in path.parent.glob("*.py"))):
        _check_readable(f"EXPERIMENT={name}", file, mode)
    _mountable("EXPERIMENT", str(path.parent))
    return path


def _check_readable(variable: str, path: Path, mode: int) -> None:
    if path.stat().st_mode & mode != mode:
        raise Refusal(f"{variable}: {path} must be readable by all, the containers run as a user of their own")


def _data_folder(name: str) -> str:
    """The folder's path; empty, for which compose.yaml has a volume, where none is named."""
    if name and not Path(name).is_dir():
        raise Refusal(f"PAUSEFL_DATA={name}: is no folder")
    return name and _mountable("PAUSEFL_DATA", name)


def _mountable(variable: str, name: str) -> str:
    """The absolute path; Refusal where the engine would read it as two."""
    path = str(Path(name).resolve())
    if ":" in path:
        raise Refusal(f"{variable}: {path} cannot be mounted, its name must be without a colon")
    return path


def _count(given: Mapping[str, str], variable: str, default: int) -> int:
    value = given.get(variable) or str(default)
    if not value.isdecimal() or int(value) < 1:
        raise Refusal(f"{variable}={value}: must be a number from 1")
    return int(value)


def _bytes(given: Mapping[str, str], variable: str, default: str) -> int:
    value = given.get(variable) or default
    match = re.fullmatch(r"(\d+)([KMG]?)B?", value.upper())
    if match is None:
        raise Refusal(f"{variable}={value}: must be a size like 512M or 2G")
    return int(match[1]) * UNITS[match[2]]


def _revision() -> str:
    """The commit the images are made of, for their labels; empty outside a checkout."""
    try:
        command = ["git", "-C", str(DEPLOY), "rev-parse", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


if __name__ == "__main__":
    main(sys.argv[1:])
