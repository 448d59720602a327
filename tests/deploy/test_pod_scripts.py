"""deploy/kubernetes/base: the two scripts of its pods do what they say."""

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pausefl_process.http_server import Response, WebServer
from rigs.places import ROOT
from rigs.waiting import wait_for, wait_until_unread

BASE = ROOT / "deploy/kubernetes/base"
PART = ["sh", str(BASE / "part.sh")]


@pytest.fixture
def pod(tmp_path: Path) -> dict[str, str]:
    """The environment of a container, with a temporary folder of its own."""
    return {**os.environ, "TMPDIR": str(tmp_path)}


def test_a_part_that_is_over_is_waited_upon_and_not_played_again(tmp_path: Path, pod: dict[str, str]) -> None:
    note = ["sh", "-c", 'echo played >> "$TMPDIR/notes"']
    for _ in range(2):  # Kubernetes starts the container again
        with subprocess.Popen([*PART, *note], env=pod) as waiting:
            wait_for((tmp_path / "over").exists, "the end", running=waiting)
            waiting.terminate()
            # The second time it may come before the trap is set.
            assert waiting.wait(10) in (128 + signal.SIGTERM, -signal.SIGTERM)
    assert (tmp_path / "notes").read_text("utf-8") == "played\n"


def test_a_part_that_fails_ends_its_container(tmp_path: Path, pod: dict[str, str]) -> None:
    assert subprocess.run([*PART, "sh", "-c", "exit 3"], env=pod, check=False).returncode == 3
    assert not (tmp_path / "over").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_part_is_killed_with_its_pod(tmp_path: Path, pod: dict[str, str], number: signal.Signals) -> None:
    """It is not asked to end: a server would take that for the end of its run."""
    play = 'trap "echo asked > \\"$TMPDIR/asked\\"" TERM; mkfifo "$TMPDIR/playing"; read -r _ < "$TMPDIR/playing"'
    with subprocess.Popen([*PART, "sh", "-c", play], env=pod) as playing:
        wait_for((tmp_path / "playing").exists, "the beginning", running=playing)
        playing.send_signal(number)
        assert playing.wait(10) == 128 + signal.SIGTERM
    assert not (tmp_path / "over").exists()
    assert not (tmp_path / "asked").exists()
    wait_until_unread(tmp_path / "playing")


@pytest.fixture
def metrics() -> Iterator[int]:
    """The port of a client process's probes."""
    routes = {"/healthz": lambda _: Response("text/plain", [b"ok\n"])}
    with closing(WebServer("127.0.0.1", 0, routes, key="metrics.client_port")) as server:
        yield int(server.address.rpartition(":")[2])


def is_alive(port: int, pod: dict[str, str]) -> bool:
    probe = ["bash", str(BASE / "alive.sh"), str(port)]
    return subprocess.run(probe, env=pod, capture_output=True, check=False).returncode == 0


def test_alive_is_what_says_so_or_whose_part_is_over(tmp_path: Path, pod: dict[str, str], metrics: int) -> None:
    assert is_alive(metrics, pod)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        assert not is_alive(port, pod)
        (tmp_path / "over").touch()
        assert is_alive(port, pod)
