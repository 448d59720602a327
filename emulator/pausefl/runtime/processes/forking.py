"""Processes that are forked from a fork server, which has already imported the modules that they need."""

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

from pausefl.runtime.processes.environment import added_to_environment, environment_of_children, one_order_of_sets
from pausefl.runtime.processes.preloaded import VARIABLE
from pausefl_proto.errors import ConfigError

# A Unix socket's address has 108 bytes. multiprocessing adds some to this folder's path, which leaves this many.
_LONGEST_FOLDER_BYTES = 70


class ForkedProcess(ForkServerProcess):
    """A process, not yet started, that calls `work` with these arguments and the present environment variables."""

    def __init__(self, name: str, imports: Sequence[str], work: Callable[..., None], arguments: Sequence[Any]) -> None:
        """`imports` are the modules that this process's fork server imports before it forks.

        There is one fork server, which begins with the first process started: later `imports` change nothing. A module
        that cannot be imported is left out.
        """
        super().__init__(target=_in_environment, args=(environment_of_children(), work, *arguments), name=name)
        self.imports = list(imports)


def begin_fork_server(imports: Sequence[str]) -> None:
    """Start this process's fork server, if there is none. It imports these modules while this process goes on.

    ConfigError if the folder for temporary files cannot hold its socket.
    """
    if not can_fork():
        raise ConfigError(f"TMPDIR = {tempfile.gettempdir()}: for a socket, {_LONGEST_FOLDER_BYTES} bytes at most")
    # PYTHONSAFEPATH: import nothing from the working directory, where Python looks first.
    with added_to_environment(PYTHONSAFEPATH="1", **one_order_of_sets(), **{VARIABLE: ",".join(imports)}):
        forkserver.set_forkserver_preload(["pausefl.runtime.processes.preloaded"])
        try:
            forkserver.ensure_running()
        except ChildProcessError:  # it is the parent's fork server, or other code has already waited for its end
            forget_fork_server()
            forkserver.ensure_running()


def can_fork() -> bool:
    """Whether the folder for temporary files can hold the socket of a fork server."""
    return len(os.fsencode(tempfile.gettempdir())) <= _LONGEST_FOLDER_BYTES


def forget_fork_server() -> None:
    """Give up the fork server, so that the next process is forked from a new one."""
    server: Any = forkserver._forkserver  # multiprocessing has no public function for this
    with suppress(OSError, TypeError):
        os.close(server._forkserver_alive_fd)  # the old server ends with the last process that has this file open
    if server._forkserver_pid is not None:
        threading.Thread(target=_await_end, args=(server._forkserver_pid,), daemon=True).start()
    server._forkserver_address = server._forkserver_alive_fd = server._forkserver_pid = None
    os.makedirs(util.get_temp_dir(), 0o700, exist_ok=True)  # noqa: PTH103  # the folder of the next server's socket


def _await_end(pid: int) -> None:
    """Wait until a child has ended. Otherwise it would stay a zombie."""
    with suppress(ChildProcessError):  # it was the child of the process that forked this one
        os.waitpid(pid, 0)


def _in_environment(environment: Mapping[str, str], work: Callable[..., None], *arguments: Any) -> None:
    """Call `work` in this environment, with a new seed for numpy's shared generator: a fork copies the server's."""
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()
    work(*arguments)
