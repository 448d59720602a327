"""Flower's SuperLink with a SuperNode for each client, started by its commands as in its documentation."""

import os
import subprocess
import sys
from pathlib import Path

from benchmarks.systems.task import Task
from benchmarks.systems.work import await_server, free_port

_APP = Path(__file__).parent / "superlink_app"
_BIN = Path(sys.executable).parent
_CONFIG = """[superlink]
default = "here"

[superlink.here]
address = "127.0.0.1:{port}"
insecure = true
"""


def main() -> None:
    """Start SuperLink and SuperNodes, submit the app, and wait until the SuperLink ends."""
    task, port = Task.given(), free_port()
    home = Path(os.environ["TMPDIR"]) / "flwr"
    home.mkdir()
    (home / "config.toml").write_text(_CONFIG.format(port=port), "utf-8")
    os.environ["FLWR_HOME"] = str(home)
    superlink = _start("flower-superlink", "--insecure", "--port", port, "--disable-runtime-dependency-installation")
    await_server(port)
    for k in range(task.clients):
        node = f"partition-id={k} num-partitions={task.clients}"
        links = ("--superlink", f"127.0.0.1:{port}", "--port", free_port())
        _start("flower-supernode", "--insecure", *links, "--node-config", node)
    _start("flwr", "run", _APP, "here").wait()
    superlink.wait()


def _start(command: str, *arguments: object) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([_BIN / command, *map(str, arguments)])


if __name__ == "__main__":
    main()
