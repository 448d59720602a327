"""The compared systems, and the virtual environment in which each runs."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build/benchmarks"
RESULTS = ROOT / "docs/results"


@dataclass(frozen=True)
class System:
    """One of the compared systems."""

    name: str
    module: str
    """Its script in `benchmarks.systems`."""
    shown: str
    """Its name in the tables."""
    requirements: str = ""
    """The requirements file of its packages. Empty: it runs in the environment of pausefl."""
    distributions: tuple[str, ...] = ()
    """Packages whose versions the results state."""


SYSTEMS = {
    system.name: system
    for system in (
        System("pausefl", "pausefl_itself", "pausefl", "", ("grpcio", "numpy", "torch")),
        System("flower-1.17", "flower_classic", "Flower 1.17", "flower-1.17.txt", ("flwr", "grpcio", "torch")),
        System(
            "simulation",
            "flower_simulation",
            "Flower's simulation",
            "flower-simulation.txt",
            ("flwr", "ray", "torch"),
        ),
        System("superlink", "flower_superlink", "Flower's SuperLink", "flower-superlink.txt", ("flwr", "grpcio")),
        System("virtual", "pausefl_virtual", "pausefl, virtual clock", "", ("numpy", "torch")),
        System("appfl", "appfl_grpc", "APPFL, heap frozen", "appfl.txt", ("appfl", "grpcio", "torch")),
        System("appfl-default", "appfl_default", "APPFL", "appfl.txt", ("appfl", "grpcio", "torch")),
        System("pfl", "pfl_research", "pfl-research", "pfl-research.txt", ("pfl", "numpy", "torch")),
        System("sockets", "sockets", "raw sockets", "", ("numpy", "torch")),
    )
}
"""The systems by name, in the order of the tables."""


def python_of(system: System) -> Path:
    """The interpreter that runs a system. Makes its virtual environment if none exists or its requirements changed."""
    if not system.requirements:
        return Path(sys.executable)
    wanted = Path(__file__).parent / "requirements" / system.requirements
    folder = BUILD / wanted.stem
    made_of = folder / "made-of.txt"
    if not made_of.exists() or made_of.read_bytes() != wanted.read_bytes():
        print(f"{system.shown}: installing {wanted.name}", flush=True)
        index = os.environ.get("TORCH_INDEX_URL")
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        # Each requirements file lists all packages, so none is resolved.
        options = ["--quiet", "--no-deps", *(["--extra-index-url", index] if index else [])]
        subprocess.run([str(folder / "bin/pip"), "install", *options, "--requirement", str(wanted)], check=True)
        shutil.copy(wanted, made_of)
    return folder / "bin/python"


def versions_of(system: System) -> dict[str, str]:
    """The versions of Python and of the system's packages, in the environment that runs it."""
    code = (
        "import sys, platform, importlib.metadata as m; print(platform.python_version(), *map(m.version, sys.argv[1:]))"
    )
    asked = [str(python_of(system)), "-c", code, *system.distributions]
    python, *found = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()
    return {"python": python, **dict(zip(system.distributions, found, strict=True))}
