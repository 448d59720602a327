"""Check the oldest versions that pyproject.toml allows: a run, a comparison and a report on all of them, with extras.

python check_floors.py ENVIRONMENT: makes a virtual environment there, or uses the existing one. Each requirement is
installed at its lower bound. Before torch 2.5, PyPI has no build without CUDA for Linux: that takes 6 GB.
"""

import os
import shlex
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
NOT_INSTALLED = {"all", "dev", "docs"}
PACKAGES = ("proto", "process", "server", "client", "emulator")
EXPERIMENT = """
[experiment]
rounds = 3
observers = ["tensorboard", "mlflow"]
[clients]
count = 4
[selection]
m = 2
[privacy]
unit = "vector"
sampler = "opendp"
[workload]
examples = 400
"""
COMMANDS = (
    "-m pausefl run experiment.toml --run-dir run",
    "-m pausefl report run --csv",
    "-m pausefl audit run",
    "-m pausefl reproduce --list",
    "-m pausefl compare experiment.toml --policies pause,sa-pause --run-dir compared --virtual",
    "-m pausefl tune experiment.toml --trials 2 --seeds 1 --fresh-seeds 2 --run-dir tuned",
    "-m pausefl fit-latency run",
    "-m pausefl bench selection",
    "-m pausefl completion bash",
    "-c 'import pausefl, pyroute2; pausefl.open(\"run\").observations.describe()'",
)


def main(environment: Path) -> None:
    """Install and run all commands; the first that fails ends the check."""
    if not environment.exists():
        venv.create(environment, with_pip=True)
    python = environment / "bin/python"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = {name: needs for name, needs in project["optional-dependencies"].items() if name not in NOT_INSTALLED}
    declared = [*project["dependencies"], *(need for needs in extras.values() for need in needs)]
    floors = sorted({need.replace(">=", "==") for need in declared if ">=" in need})
    subprocess.run([python, "-m", "pip", "install", "--quiet", *floors], check=True)
    sources = [str(ROOT / name) for name in PACKAGES] + [str(each) for each in (ROOT / "plugins").iterdir()]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "experiment.toml").write_text(EXPERIMENT)
        for command in COMMANDS:
            print(f"python {command}", flush=True)
            played = subprocess.run(
                [python, *shlex.split(command)],
                cwd=folder, env={**os.environ, "PYTHONPATH": os.pathsep.join(sources)}, check=False, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
            print(played.stdout, flush=True)
            if played.returncode or "is told nothing more" in played.stdout:  # an observer failed
                sys.exit(f"status {played.returncode} on {', '.join(floors)}")


main(Path(sys.argv[1]).absolute())
