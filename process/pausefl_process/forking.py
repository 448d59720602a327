"""Processes that are forked by a server, which has imported what each of them needs."""

import multiprocessing
import os
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import forkserver
from multiprocessing.context import ForkServerProcess
from typing import Any

from pausefl_process.lifetime import interrupts_held_back


def begin_fork_server(imports: Sequence[str]) -> None:
    """Let the fork server of this process import these modules, while this process goes on.

    There is one: where it was begun before, this changes nothing. What cannot be imported is left out.
    """
    forkserver.set_forkserver_preload(list(imports))
    with interrupts_held_back():
        forkserver.ensure_running()


def forked_process(
    name: str, imports: Sequence[str], work: Callable[..., None], arguments: Sequence[Any]
) -> ForkServerProcess:
    """A process, not yet started, that calls `work` with these arguments, in the environment of now.

    `imports` are for the fork server, as of `begin_fork_server`.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(imports))
    return context.Process(target=_in_environment, args=(dict(os.environ), work, *arguments), name=name)


def _in_environment(environment: Mapping[str, str], work: Callable[..., None], *arguments: Any) -> None:
    """The fork server itself has the environment of the time when it was begun."""
    os.environ.clear()
    os.environ.update(environment)
    work(*arguments)
