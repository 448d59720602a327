"""Carries out `make up`, `down`, `logs`, `images` and `results` with deploy/compose.yaml.

All settings are environment variables, which deploy/README.md lists. It needs only Python's standard library, a Docker
engine, either version of compose, and the openssl command if there are no certificates yet.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from compose_settings import (
    DEPLOY,
    PORTS,
    Refusal,
    check_certificates,
    check_memory,
    check_port,
    check_processors,
    services_of,
    settings,
    standing_settings,
)


def main(arguments: list[str]) -> None:
    """Carry out one command. If it cannot be carried out, prints one line and exits with status 2."""
    commands = {"up": up, "down": down, "logs": logs, "images": images, "results": results}
    if len(arguments) != 1 or arguments[0] not in commands:
        sys.exit(f"usage: compose.py {'|'.join(commands)}")
    try:
        needed = settings if arguments[0] == "up" else standing_settings
        commands[arguments[0]]({**os.environ, **needed(os.environ)})
    except Refusal as refusal:
        print(f"make {arguments[0]}: {refusal}", file=sys.stderr)
        sys.exit(2)
    except subprocess.CalledProcessError as error:  # the failed command has printed the reason
        sys.exit(error.returncode)
    except KeyboardInterrupt:
        sys.exit(130)


def up(environment: Mapping[str, str]) -> None:
    """Build the images, make certificates if there are none, and start the services."""
    services = services_of(environment)
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
    # --no-deps: the services are named here, and the synthetic model needs no evaluator.
    subprocess.run([*compose, "up", "--detach", "--no-deps", *services], env=environment, check=True)
    print(f"run {environment['RUN']}: make logs shows it, make down ends it, make results fetches what it leaves")
    for variable, default, service, what in PORTS:
        if service in services:
            print(f"  http://127.0.0.1:{environment.get(variable) or default}  {what}")


def down(environment: Mapping[str, str]) -> None:
    """Stop the containers, store their output, and remove them. The volumes stay."""
    _call(environment, "stop")
    keep_logs(environment)
    _call(environment, "down", "--remove-orphans")


def keep_logs(environment: Mapping[str, str]) -> None:
    """Write the output of server and clients to server.log and clients.log of their run, among the results.

    Earlier files stay if the engine cannot give the output.
    """
    folder = Path(environment.get("RESULTS") or "runs")
    if (run := _run_of_containers(environment)) is None:
        return
    for services, name in ((("server", "evaluator"), "server.log"), (("client",), "clients.log")):
        command = [*_compose(environment), "logs", "--no-color", "--timestamps", *services]
        kept, fresh = folder / run / name, folder / run / f".{name}.new"
        try:
            fresh.parent.mkdir(parents=True, exist_ok=True)
            # As under `pausefl run`, only their owner may read them: an error may quote a client's data.
            with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                # Not captured: containers may have printed gigabytes.
                done = subprocess.run(command, env=environment, stdout=file, check=False)
            if done.returncode:
                fresh.unlink()
                print(f"{kept}: not written, see above", file=sys.stderr)
                continue
            fresh.replace(kept)
        except OSError as error:
            fresh.unlink(missing_ok=True)
            raise Refusal(f"{kept}: cannot be written ({error.strerror}); RESULTS names another folder") from error
        print(kept)


def _run_of_containers(environment: Mapping[str, str]) -> str | None:
    """The name of the run in the server's container, which exists until `make down`. None without that container."""
    listed = [*_compose(environment), "ps", "--all", "--quiet", "server"]
    if Path(listed[0]).name == "docker-compose":  # it lists all containers without --all
        listed.remove("--all")
    ids = subprocess.run(listed, env=environment, capture_output=True, text=True, check=False).stdout.split()
    command = ["docker", "inspect", "--format", "{{json .Config.Cmd}}", *ids[:1]]
    told = subprocess.run(command, capture_output=True, text=True, check=False).stdout if ids else ""
    words: list[str] = json.loads(told) if told.strip() else []
    return next((word.rpartition("/")[2] for word in words if word.startswith("--run-dir=")), None)


def logs(environment: Mapping[str, str]) -> None:
    """Follow the output of all services."""
    _call(environment, "logs", "--follow", "--tail=100")


def images(environment: Mapping[str, str]) -> None:
    """Build the images, and start nothing."""
    _call(environment, "build")


def results(environment: Mapping[str, str]) -> None:
    """Copy the run directories from their volume to the folder RESULTS (default: runs)."""
    _engine()
    folder = Path(environment.get("RESULTS") or "runs")
    volume, image = _runs_volume(environment), _server_image(environment)
    # Checked here, since the engine would create a missing volume, and look for a missing image in a registry.
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
    keep_logs(environment)
    for path in copied:
        print(path if (path / "summary.json").exists() else f"{path} (not at its end)")


def _copy_out(volume: str, image: str, copy: Path, folder: Path) -> None:
    """Copy a volume's files to the folder `copy`. `folder`, their final place, is only named in messages."""
    read = ["docker", "run", "--rm", "--read-only", f"--volume={volume}:/runs:ro", "--entrypoint=python", image]
    read += ["-c", (DEPLOY / "read_runs.py").read_text("utf-8"), "/runs"]
    with subprocess.Popen(read, stdout=subprocess.PIPE) as reader:
        # -o: the copied files belong to the user who runs the command.
        writer = subprocess.run(["tar", "-x", "-o", "-f", "-", "-C", copy], stdin=reader.stdout, check=False)
    # If one of them ends early, the other ends too.
    if reader.returncode or writer.returncode:
        raise Refusal(f"the volume {volume} cannot be copied into {folder}, see above")


def _has(kind: str, name: str) -> bool:
    """Whether the engine has an image or a volume."""
    return not subprocess.run(["docker", kind, "inspect", name], capture_output=True, check=False).returncode


def _move_into(folder: Path, copy: Path) -> None:
    """Move the copied files over earlier copies of the same runs.

    The files beside the earlier databases are removed first. Otherwise SQLite would write their old write-ahead logs
    into the newer databases.
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


def make_certificates(folder: Path) -> None:
    """Make the certificates with which server, evaluator and clients prove who they are, unless they exist."""
    if (folder / "client.pem").exists():
        return
    if shutil.which("openssl") is None:
        raise Refusal(f"no openssl command here to make certificates with; install it, or put yours into {folder}")
    script = [DEPLOY / "make-certificates.sh", folder]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Refusal(f"{folder}: certificates cannot be made there ({_last_line(done.stderr)})")


def check_experiment(environment: Mapping[str, str]) -> None:
    """Refusal if the containers could not play the experiment with this CLIENTS and this RUN."""
    folder, name, run = (environment[variable] for variable in ("EXPERIMENT_FOLDER", "EXPERIMENT_NAME", "RUN"))
    volume, mounts, stored = _runs_volume(environment), [f"--volume={folder}:/experiment:ro"], list[str]()
    if _has("volume", volume):  # otherwise the engine would create it
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
    """The command line of the installed compose, for this project's files. Refusal if none is installed."""
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
    """The services that have a running container."""
    command = [*compose, "ps", "--services", "--filter", "status=running"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout.split()


def _engine() -> dict[str, Any]:
    """The Docker engine's information about itself and its machine. Refusal if no engine answers."""
    command = ["docker", "info", "--format", "{{json .}}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    engine: dict[str, Any] = json.loads(done.stdout) if done.stdout.startswith("{") else {}
    if done.returncode or engine.get("ServerErrors") or not engine.get("MemTotal"):
        why = _last_line(done.stderr) or "; ".join(engine.get("ServerErrors") or ["it says nothing"])
        raise Refusal(f"no Docker engine answers: {why}")
    return engine


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


if __name__ == "__main__":
    main(sys.argv[1:])
