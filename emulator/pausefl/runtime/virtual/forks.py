"""How the processes of runs on the virtual clock are forked: by a server that has imported what each of them needs."""

import multiprocessing
from collections.abc import Callable
from multiprocessing.context import SpawnProcess
from typing import Any

from pausefl_process.forking import ForkedProcess, can_fork

_IMPORTS = [
    "pausefl.runtime.virtual.process",
    "pausefl.results.summary",
    "dp_accounting.pld.privacy_loss_distribution",
]
_IMPORTS_OF_TRAINING = ["pausefl.runtime.client.torch_trainers", "pausefl.evaluator.model"]


def forked_run(
    name: str, work: Callable[..., None], *arguments: Any, needs_torch: bool
) -> ForkedProcess | SpawnProcess:
    """The process of a run, not yet started, that calls `work` with these arguments.

    Another run after the first begins some seconds earlier than it would with imports of its own.
    """
    imports = [*_IMPORTS, *(_IMPORTS_OF_TRAINING if needs_torch else [])]
    if not can_fork():
        return multiprocessing.get_context("spawn").Process(target=work, args=arguments, name=name)
    return ForkedProcess(name, imports, work, arguments)
