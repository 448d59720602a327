"""Runs the rules of `make up` and its siblings with a fake docker command."""

import os
import re
import subprocess
import sys
from pathlib import Path

from rigs.waiting import free_port

COMPOSE = Path(__file__).parents[2] / "deploy/compose.py"
RELEASE = re.findall(r"^version: (.+)$", (COMPOSE.parents[1] / "CITATION.cff").read_text("utf-8"), re.MULTILINE)[0]
"""The release that CITATION.cff states. Every image has it as its tag."""
# A fake docker. It answers for the engine, runs `pausefl` in place of the image, and notes every call.
DOCKER = f"""#!{sys.executable}
import os, subprocess, sys
words = sys.argv[1:]
with open(os.environ["NOTES"], "a") as notes:
    print(*words, file=notes)
if words[0] == "info":
    print('{{"MemTotal": 64000000000, "NCPU": 2}}')
if words[0] == os.environ.get("MISSING"):
    sys.exit(1)
if words[0] == "run" and "--entrypoint=python" in words:
    script = [os.environ["VOLUME"] if word == "/runs" else word for word in words[words.index("-c") :]]
    read = subprocess.run([sys.executable, *script])
    sys.exit(read.returncode or int(os.environ.get("STATUS", 0)))
if words[0] == "run":
    mounts = [word.removeprefix("--volume=").split(":")[:2] for word in words if word.startswith("--volume=")]
    command = words[words.index("validate") :]
    for here, there in mounts:
        here = os.environ.get("VOLUME", here) if there == "/runs" else here
        command = [word.replace(there + "/", here + "/", 1) for word in command]
    sys.exit(subprocess.run([sys.executable, "-m", "pausefl", *command]).returncode)
"""


def make(command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run deploy/compose.py with this command, as the rule of `make COMMAND` does."""
    return subprocess.run(
        [sys.executable, str(COMPOSE), command],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def docker_of_ours(folder: Path) -> dict[str, str]:
    """Write the fake docker command. Return the environment in which `make` finds it; its notes lie in `folder`."""
    docker = folder / "bin/docker"
    docker.parent.mkdir()
    docker.write_text(DOCKER)
    docker.chmod(0o755)
    return {
        "PATH": f"{docker.parent}:{os.environ['PATH']}",
        "NOTES": str(folder / "notes"),
        "CERTIFICATES": str(folder / "certs"),
        "SERVICES": "server client",
        "PAGE_PORT": str(free_port()),
    }


def asked(engine: dict[str, str]) -> str:
    """The calls of the fake docker command, one a line."""
    return Path(engine["NOTES"]).read_text()
