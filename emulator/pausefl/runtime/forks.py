"""How processes of runs are forked: by a server that has imported what each of them needs."""

import multiprocessing
from collections.abc import Callable
from multiprocessing.context import SpawnProcess
from typing import Any

from pausefl.runtime.processes.forking import ForkedProcess, can_fork
from pausefl.runtime.processes.lifetime import begin_to_import

_OF_A_VIRTUAL_RUN = [
    "pausefl.runtime.virtual.process",
    "pausefl.results.summary",
    "dp_accounting.pld.privacy_loss_distribution",
]
_OF_A_CAMPAIGN = ["pausefl.runtime.virtual.searches"]
_OF_ITS_TRAINING = ["pausefl.runtime.client.torch_trainers", "pausefl.runtime.evaluator.model"]


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


def forked_run(
    name: str, work: Callable[..., None], *arguments: Any, needs_torch: bool, is_first_of_many: bool = False
) -> ForkedProcess | SpawnProcess:
    """The process of a run on the virtual clock, not yet started, that calls `work` with these arguments.

    Another run after the first begins some seconds earlier than it would with imports of its own.
    """
    imports = [*_OF_A_VIRTUAL_RUN, *(_OF_ITS_TRAINING if needs_torch else [])]
    imports += _OF_A_CAMPAIGN if is_first_of_many else []
    if not can_fork():
        return multiprocessing.get_context("spawn").Process(target=work, args=arguments, name=name)
    return ForkedProcess(name, imports, work, arguments)
