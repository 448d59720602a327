"""Makes processes: forked from a fork server, which has already imported the modules that they need, or spawned."""

from collections.abc import Callable
from multiprocessing.context import SpawnProcess
from typing import Any

from pausefl.runtime.processes.forking import ForkedProcess, can_fork

OF_A_VIRTUAL_RUN = ["pausefl.runtime.virtual.process"]
"""What every run on the virtual clock imports. Torch is left out: not every run trains."""
_OF_A_CAMPAIGN = ["pausefl.runtime.virtual.searches"]
_OF_ITS_TRAINING = ["pausefl.runtime.client.torch_trainers", "pausefl.runtime.evaluator.model"]


def forked_client(name: str, work: Callable[..., None], *arguments: Any, needs_torch: bool) -> ForkedProcess:
    """A client process, not yet started, that calls `work` with these arguments.

    Objects that a module makes on import are copied into every client forked later. So no module may make an object on
    import that clients must not share, such as a generator of noise.
    """
    return ForkedProcess(name, client_imports(needs_torch), work, arguments)


def client_imports(needs_torch: bool) -> list[str]:
    """The modules that client processes import."""
    return ["pausefl.runtime.client.process", *(["pausefl.runtime.client.torch_trainers"] if needs_torch else [])]


def forked_run(
    name: str, work: Callable[..., None], *arguments: Any, needs_torch: bool, is_first_of_many: bool = False
) -> ForkedProcess | SpawnProcess:
    """The process of a run on the virtual clock, not yet started, that calls `work` with these arguments.

    Every run after the first begins some seconds earlier than it would with its own imports.
    """
    imports = [*OF_A_VIRTUAL_RUN, *(_OF_ITS_TRAINING if needs_torch else [])]
    imports += _OF_A_CAMPAIGN if is_first_of_many else []
    return ForkedProcess(name, imports, work, arguments) if can_fork() else spawned(name, work, *arguments)


def spawned(name: str, work: Callable[..., None], *arguments: Any) -> SpawnProcess:
    """A process, not yet started, that calls `work` with these arguments, and imports all modules itself."""
    return SpawnProcess(target=work, args=arguments, name=name)
