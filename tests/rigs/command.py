"""Runs the `pausefl` command in processes of its own, and reads the files of its runs."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil

from rigs import log

PAUSEFL = [sys.executable, "-m", "pausefl"]
Background = Callable[..., "subprocess.Popen[bytes]"]
"""Type of the fixture `background`, which starts a command and does not wait for its end."""


def run(*arguments: object, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    command = [*PAUSEFL, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)


def played(*arguments: object, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    """Run a command and assert that it succeeds."""
    done = run(*arguments, timeout_s=timeout_s)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def sets(*changes: str) -> list[str]:
    """The options that set these keys."""
    return [word for change in changes for word in ("--set", change)]


def toml_of(keys: Mapping[str, object]) -> str:
    """An experiment as TOML. Keys are dotted, such as `clients.count`; keys with value None are left out."""
    return "".join(f"{key} = {_inline(value)}\n" for key, value in keys.items() if value is not None)


def _inline(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_inline(inner)}" for key, inner in value.items()) + "}"
    return f"[{', '.join(map(_inline, value))}]" if isinstance(value, list) else json.dumps(value)


def synthetic(
    folder: Path,
    rounds: int = 10,
    clients: int = 2,
    m: int = 2,
    train_s: float = 0.0,
    more: Mapping[str, object] | None = None,
) -> Path:
    """Write an experiment without torch and without delays. `more` adds keys or replaces values. Return the file."""
    keys: dict[str, object] = {
        "experiment.rounds": rounds,
        "clients.count": clients,
        "clients.connect_timeout_s": 30.0,
        "selection.m": m,
        "latency.delay.kind": "none",
        "workload.model": "synthetic",
        "workload.train_s": train_s,
    }
    path = folder / "synthetic.toml"
    path.write_text(toml_of({**keys, **(more or {})}))
    return path


def summary_of(run_dir: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((run_dir / "summary.json").read_text("utf-8"))
    return summary


def kill_group(process: "subprocess.Popen[Any]") -> None:
    """Kill a process and all processes of its group with SIGKILL."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def query(run_dir: Path, sql: str) -> list[tuple[Any, ...]]:
    return log.query(run_dir / "run.db", sql)


def greatest_told(run_dir: Path, client_id: str) -> tuple[int, float]:
    """A client's most releases and highest ε in a run's log, from updates that were used or not."""
    of = f"WHERE client_id = '{client_id}'"
    told = f"SELECT participation AS i, epsilon_spent AS e FROM observations {of}"
    told += f" UNION ALL SELECT released, epsilon_spent FROM events {of}"
    ((count, epsilon),) = query(run_dir, f"SELECT max(i), max(e) FROM ({told})")
    return int(count or 0), float(epsilon or 0.0)


def rounds_in(run_dir: Path) -> int:
    try:
        return int(str(query(run_dir, "SELECT count(*) FROM rounds")[0][0]))
    except sqlite3.OperationalError:
        return 0


def is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def command_line(process: psutil.Process) -> str:
    """The command line of a process; empty if the process has just ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # raised for a zombie process too
        return ""


def python(*arguments: str, cwd: Path | None = None, **environment: str) -> str:
    """The output of a Python command. AssertionError with all its output if it fails."""
    command, given = [sys.executable, *arguments], {**os.environ, **environment}
    done = subprocess.run(command, cwd=cwd, env=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
