"""Free ports, and a poll for what other processes do to files and sockets, which send no event."""

import errno
import os
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(
    condition: Callable[[], object],
    what: str,
    timeout_s: float = 120.0,
    *,
    running: "subprocess.Popen[Any] | None" = None,
    every_s: float = 0.02,
) -> None:
    """Return when the condition holds. AssertionError after `timeout_s`, or when the process `running` ends first.

    An expensive condition needs a larger `every_s`, because checking it slows the process it waits for.
    """
    until = time.monotonic() + timeout_s
    while not condition():
        assert running is None or running.poll() is None, f"{running.args!r} ended before {what}"
        assert time.monotonic() < until, f"waited {timeout_s} s for {what}"
        time.sleep(every_s)


def _is_read(fifo: Path) -> bool:
    try:
        os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return False
    return True


def wait_until_unread(fifo: Path) -> None:
    """Wait until the fifo has no reader. A killed process may keep it open for a moment."""
    wait_for(lambda: not _is_read(fifo), f"the last reader of {fifo} to go")
