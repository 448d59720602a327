"""The `pausefl` command in processes of its own, and what its runs leave behind."""

import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

from rigs import log

PAUSEFL = [sys.executable, "-m", "pausefl"]
SYNTHETIC = """
[experiment]
rounds = {rounds}
[clients]
count = {clients}
connect_timeout_s = 30.0
[selection]
m = {m}
[latency.delay]
kind = "none"
[workload]
model = "synthetic"
train_s = {train_s}
"""


def run(*arguments: object, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PAUSEFL, *map(str, arguments)], capture_output=True, text=True, timeout=timeout_s, check=False
    )


def synthetic(folder: Path, rounds: int = 10, clients: int = 4, m: int = 2, train_s: float = 0.0) -> Path:
    path = folder / "synthetic.toml"
    path.write_text(SYNTHETIC.format(rounds=rounds, clients=clients, m=m, train_s=train_s))
    return path


def query(run_dir: Path, sql: str) -> list[tuple[Any, ...]]:
    return log.query(run_dir / "run.db", sql)


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
    """What a process was started as, empty for one that has just ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # a process that nobody has waited for yet, too
        return ""
