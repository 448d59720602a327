"""Processes that are forked by a server, which has imported what each of them needs."""

import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing import forkserver, util
from multiprocessing.context import ForkServerProcess
from typing import Any

from pausefl.runtime.processes.environment import added_to_environment, environment_of_children
from pausefl.runtime.processes.preloaded import VARIABLE
from pausefl_proto.errors import ConfigError

# Of the 108 bytes that the address of a Unix socket has, what multiprocessing adds to this folder leaves so many.
_LONGEST_FOLDER_BYTES = 70


class ForkedProcess(ForkServerProcess):
    """A process, not yet started, that calls `work` with these arguments, in the environment of now."""

    def __init__(self, name: str, imports: Sequence[str], work: Callable[..., None], arguments: Sequence[Any]) -> None:
        """`imports` are what the fork server of this process imports before it forks.

        There is one, begun when the first of its processes is started: later ones change nothing of it. What cannot be
        imported is left out.
        """
        super().__init__(target=_in_environment, args=(environment_of_children(), work, *arguments), name=name)
        self.imports = list(imports)


def begin_fork_server(imports: Sequence[str]) -> None:
    """Let the fork server of this process import these modules, while this process goes on.

    ConfigError where the folder for temporary files cannot hold its socket.
    """
    if not can_fork():
        raise ConfigError(f"TMPDIR = {tempfile.gettempdir()}: for a socket, {_LONGEST_FOLDER_BYTES} bytes at most")
    # Nothing comes from the working directory, where Python looks first.
    with added_to_environment(PYTHONSAFEPATH="1", **{VARIABLE: ",".join(imports)}):
        forkserver.set_forkserver_preload(["pausefl.runtime.processes.preloaded"])
        try:
            forkserver.ensure_running()
        except ChildProcessError:  # it was begun by the process that forked this one, or another part heard of its end
            forget_fork_server()
            forkserver.ensure_running()


def can_fork() -> bool:
    """Whether the folder for temporary files can hold the socket of a fork server."""
    return len(os.fsencode(tempfile.gettempdir())) <= _LONGEST_FOLDER_BYTES


def forget_fork_server() -> None:
    """Let the next process be forked by a new server."""
    server: Any = forkserver._forkserver  # there is no other way to give one up
    with suppress(OSError, TypeError):
        os.close(server._forkserver_alive_fd)  # the old one ends with the last process that has this open
    if server._forkserver_pid is not None:
        threading.Thread(target=_await_end, args=(server._forkserver_pid,), daemon=True).start()
    server._forkserver_address = server._forkserver_alive_fd = server._forkserver_pid = None
    os.makedirs(util.get_temp_dir(), 0o700, exist_ok=True)  # noqa: PTH103  # where the next one's socket will lie


def _await_end(pid: int) -> None:
    """Wait until a child has ended, or it would stay a zombie."""
    with suppress(ChildProcessError):  # it was the child of the process that forked this one
        os.waitpid(pid, 0)


def _in_environment(environment: Mapping[str, str], work: Callable[..., None], *arguments: Any) -> None:
    """The fork server has the environment of the time when it was begun, and one state of numpy's shared generator."""
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()
    work(*arguments)
