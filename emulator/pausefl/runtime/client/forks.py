"""How client processes are forked: by a server that has imported what each of them needs."""

from collections.abc import Callable
from typing import Any

from pausefl_process.forking import ForkedProcess
from pausefl_process.lifetime import begin_to_import


def await_clients(*, needs_torch: bool) -> None:
    """Begin the fork server, so that it imports while there is other work to do until clients are forked."""
    begin_to_import(_imports(needs_torch))


def forked_client(name: str, work: Callable[..., None], *arguments: Any, needs_torch: bool) -> ForkedProcess:
    """A client process, not yet started, that calls `work` with these arguments.

    What a module makes when it is imported exists once, and every client forked later gets a copy of it: nothing that
    clients must not share, such as a generator of noise, may be made there.
    """
    return ForkedProcess(name, _imports(needs_torch), work, arguments)


def _imports(needs_torch: bool) -> list[str]:
    return ["pausefl.runtime.client.process", *(["pausefl.runtime.client.torch_trainers"] if needs_torch else [])]
