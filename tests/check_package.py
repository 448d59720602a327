"""Wheel and sdist in fresh environments outside the repository: `check_package.py PYTHON...` (`make test-package`).

The first and the last of these Pythons install the wheel with the exact versions of constraints.txt, and the sdist with
the newest versions. Each is first installed without extras: every command must work, or name the missing extra in one
line. Then it is installed with extras: every command must work. TORCH_INDEX_URL names an index of torch's CPU builds.
"""

import os
import re
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

from rigs.places import ROOT, copied_sources, pip

PATIENCE_S = 300
SMALL = ("--set=experiment.rounds=2", "--set=clients.count=3", "--set=selection.m=2", "--set=latency.time_scale=0.05")
ALONE = ("--set=clients.connect_timeout_s=0.5", "--set=clients.count=3", "--set=selection.m=2")
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("--version",),
    ("validate", "--list"),
    ("validate", "demo"),
    ("data", "digits"),
    ("simulate", "demo", "--rounds", "20", "--run-dir", "simulated"),
    ("run", "demo", *SMALL, "--run-dir", "played"),
    ("report", "played"),
    ("replay", "played"),
    ("fit-latency", "played"),
    ("reproduce", "--list"),
    ("audit", "demo", "--uploads", "2000"),
    ("compare", "demo", *SMALL, "--policies", "pause,random", "--run-dir", "compared"),
    ("sweep", "demo", *SMALL, "--set=selection.pause.alpha=1,10", "--run-dir", "swept"),
    ("bench", "scale", "--json", "--clients", "5"),
    ("certs", "certificates", "localhost"),
    ("completion", "bash"),
    ("evaluator", "demo"),
    ("server", "demo", *ALONE),
    ("client", "demo", "--server", "127.0.0.1:1", "--client-id", "client-000", *ALONE),
)
MISSING = re.compile(r'pausefl: .*not installed; pip install "pausefl\[[a-z,]+\]"(; in a checkout: .*)?\n')
# Alone, these reach no peer. They must say so in one line.
LONELY = {"server", "client"}
NOT_IN_ALL = {"audit", "completion", "fit-latency", "replay", "reproduce"}


@dataclass(frozen=True)
class Environment:
    """A fresh virtual environment, and a working folder."""

    folder: Path
    pins: Path | None

    @property
    def python(self) -> Path:
        """The environment's interpreter."""
        return self.folder / "venv/bin/python"

    def install(self, archive: Path, extras: str) -> None:
        """Install an archive with extras, such as "[all]" or none."""
        pinned = () if self.pins is None else ("--constraint", self.pins)
        index = os.environ.get("TORCH_INDEX_URL")
        more = ("--extra-index-url", index) if index else ()
        pip(self.python, "install", "--quiet", *pinned, *more, f"{archive}{extras}")

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command. The evaluator, which would never end, is asked to end after its first line."""
        work = self.folder / "work"
        work.mkdir(exist_ok=True)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        command = [str(self.folder / "venv/bin/pausefl"), *arguments]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(command, cwd=work, env=environment, text=True, **pipes) as process:  # type: ignore[call-overload]  # of several types
            end = threading.Timer(PATIENCE_S, process.kill)
            end.start()
            first = process.stdout.readline() if arguments[0] == "evaluator" else ""
            if first:
                process.terminate()
            out, err = process.communicate()
            end.cancel()
        return subprocess.CompletedProcess(command, process.returncode, first + out, err)


def wrong(done: subprocess.CompletedProcess[str], name: str, extras: str) -> str:
    """The fault in how a command ended; empty if there is none."""
    for sign in ("Traceback", "nanobind"):
        if sign in done.stdout + done.stderr:
            return f"{sign} in what it prints"
    if done.returncode == 2 and MISSING.fullmatch(done.stderr):
        return "an extra is missing" if extras and name not in NOT_IN_ALL else ""
    if name in LONELY and done.returncode == 1:
        return "" if done.stderr.splitlines()[-1].startswith("pausefl: ") else "no line that says why"
    return "" if done.returncode == 0 else f"exit status {done.returncode}"


def check(environment: Environment, extras: str) -> list[str]:
    """Run every command; returns a line for each that failed."""
    found = []
    for arguments in COMMANDS:
        if arguments[0] == "report" and not (environment.folder / "work/played").exists():
            continue  # without the extras there is no run to report on
        done = environment.run(*arguments)
        fault = wrong(done, arguments[0], extras)
        print(f"    pausefl {' '.join(arguments[:2])}: {fault or 'as it should'}", flush=True)
        if fault:
            found.append(f"pausefl {' '.join(arguments)}: {fault}\n{done.stdout}{done.stderr}")
    return found


def build(python: str, folder: Path) -> tuple[Path, Path]:
    """The sdist of the sources, and the wheel that is built from that sdist."""
    source = copied_sources(folder / "source")
    subprocess.run([python, "-m", "venv", folder / "build"], check=True)
    builder = folder / "build/bin/python"
    pip(builder, "install", "--quiet", "--constraint", ROOT / "constraints.txt", "build")
    subprocess.run([builder, "-m", "build", "--outdir", folder / "dist", source], stdout=subprocess.DEVNULL, check=True)
    (sdist,), (wheel,) = (folder / "dist").glob("*.tar.gz"), (folder / "dist").glob("*.whl")
    return sdist, wheel


def main(pythons: list[str]) -> None:
    """Check all installations; exit with status 1 and the faults if there are any."""
    if not pythons:
        sys.exit("no Python was named")
    found = []
    with tempfile.TemporaryDirectory() as base:
        sdist, wheel = build(pythons[0], Path(base))
        for python in dict.fromkeys((pythons[0], pythons[-1])):
            for archive, pins in ((wheel, ROOT / "constraints.txt"), (sdist, None)):
                with tempfile.TemporaryDirectory(dir=base) as folder:
                    environment = Environment(Path(folder), pins)
                    subprocess.run([python, "-m", "venv", environment.folder / "venv"], check=True)
                    for extras in ("", "[all]"):
                        where = f"{python}, {archive.name}{extras}, {'exact' if pins else 'newest'} versions"
                        print(where, flush=True)
                        environment.install(archive, extras)
                        found += [f"{where}: {fault}" for fault in check(environment, extras)]
    if found:
        sys.exit("\n".join(found))


if __name__ == "__main__":
    main(sys.argv[1:])
