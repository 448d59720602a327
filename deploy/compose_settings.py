"""Computes the settings of compose.yaml from environment variables, and refuses invalid ones."""

import errno
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

DEPLOY = Path(__file__).resolve().parent
PRESETS = DEPLOY.parent / "emulator/pausefl/experiment/presets"
SERVICES = ("server", "evaluator", "client", "prometheus", "grafana")
# The ports that are published on the loopback address: variable, default, service, and what answers there.
PORTS = (
    ("PAGE_PORT", "9464", "server", "the run's page and metrics"),
    ("PROMETHEUS_PORT", "9090", "prometheus", "Prometheus"),
    ("GRAFANA_PORT", "3000", "grafana", "Grafana"),
)
# The least remaining lifetime of certificates for a run that begins now.
CERTIFICATES_LAST_S = 24 * 60 * 60
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class Refusal(Exception):
    """The reason, in one line, why a command cannot be carried out."""


def settings(given: Mapping[str, str]) -> dict[str, str]:
    """The variables of compose.yaml that are computed from the given ones or checked here. Refusal for invalid ones."""
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
    """The variables that do not depend on the experiment. So a run can be ended even if its files are gone."""
    project = given.get("COMPOSE_PROJECT_NAME") or "pausefl"
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", project):
        raise Refusal(f"COMPOSE_PROJECT_NAME={project}: must be small letters, digits, - and _")
    return {
        "VERSION": last_release(),
        "REVISION": _revision(),
        # Absolute: for compose, relative paths begin at its file's folder, and a bare name is a volume.
        "CERTIFICATES": _mountable("CERTIFICATES", given.get("CERTIFICATES") or str(DEPLOY / "certs")),
        "PAUSEFL_DATA": "",
        "COMPOSE_PROJECT_NAME": project,
    }


def services_of(given: Mapping[str, str]) -> list[str]:
    """The services to start. Refusal if one of them is not in compose.yaml."""
    services = given.get("SERVICES", "").split() or list(SERVICES)
    if unknown := [name for name in services if name not in SERVICES]:
        raise Refusal(f"SERVICES={given['SERVICES']}: {unknown[0]} is none of {', '.join(SERVICES)}")
    return services


def check_memory(environment: Mapping[str, str], memory_bytes: int) -> None:
    """Refusal if the memory limits of the containers add up to more than the engine's machine has."""
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
    """Refusal if a client container would have more processors than the engine's machine."""
    value = environment.get("CLIENT_CPUS") or "1.5"
    if not re.fullmatch(r"\d+(\.\d+)?", value) or not 0.01 <= float(value) <= processors:
        raise Refusal(f"CLIENT_CPUS={value}: must be from 0.01 to {processors}, what the engine's machine has")


def check_port(variable: str, value: str) -> None:
    """Refusal if the value is not a port, or the port is in use."""
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


def check_certificates(folder: Path) -> None:
    """Refusal if a file is missing, containers could not read it, or a certificate expires within a day.

    Expiry is checked only if the openssl command is installed.
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


def _experiment_file(name: str) -> Path:
    """The file of a preset or of the user. Refusal if it does not exist, or containers could not read it."""
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
    """The folder's absolute path. Empty if no folder is named: compose.yaml then uses a volume."""
    if name and not Path(name).is_dir():
        raise Refusal(f"PAUSEFL_DATA={name}: is no folder")
    return name and _mountable("PAUSEFL_DATA", name)


def _mountable(variable: str, name: str) -> str:
    """The absolute path. Refusal if it has a colon, at which the engine would split it."""
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


def last_release() -> str:
    """The release that CITATION.cff states. It is the tag of images that are built here."""
    cited = (DEPLOY.parent / "CITATION.cff").read_text("utf-8")
    (version,) = re.findall(r"^version: (\S+)$", cited, re.MULTILINE)
    return str(version)


def _revision() -> str:
    """The commit from which the images are built, for their labels. Empty outside a git checkout."""
    try:
        command = ["git", "-C", str(DEPLOY), "rev-parse", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
