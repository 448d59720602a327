"""For systems other than pausefl: a client's work in a round, the first model, and the start of client processes."""

import multiprocessing
import socket
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.systems.task import Task, Vector

Work = Callable[[Vector], tuple[Vector, int]]
"""A function from a model, (d,) float32, to the client's trained model and its number of examples."""


def first_model(task: Task) -> Vector:
    """The model of round 1, (d,) float32."""
    if task.data:
        from benchmarks.systems.local_training import first_model as trained

        return trained(task)
    return np.zeros(task.model_bytes // 4, np.float32)


def work_of(task: Task, client: int) -> Work:
    """The client's work on a model: training, or returning the model unchanged if the task has no data."""
    if task.data:
        from benchmarks.systems.local_training import LocalTraining

        return LocalTraining(task, client).train
    return lambda model: (model, 1)


def rate(task: Task, model: Vector) -> float:
    """The share of test examples that the model classifies correctly. 0.0 if nothing is trained."""
    if task.data:
        from benchmarks.systems.local_training import accuracy

        return accuracy(task, model)
    return 0.0


def start_clients(task: Task, client: Callable[[int, int], None], port: int, preload: list[str]) -> None:
    """Start a process for each client that calls client(k, port). All are forked from one that has imported `preload`.

    So clients start as fast as pausefl's do, and share the memory of their imports.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*preload, *(["benchmarks.systems.local_training"] if task.data else [])])
    for k in range(task.clients):
        process: Any = context.Process(target=client, args=(k, port), daemon=True)
        process.start()


def free_port() -> int:
    """A TCP port of this machine on which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def await_server(port: int) -> None:
    """Wait until a server listens on the port. TimeoutError if none does within a minute."""
    ends_s = time.monotonic() + 60.0
    while time.monotonic() < ends_s:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            time.sleep(0.05)
        else:
            return
    raise TimeoutError(f"nothing listens on port {port}")
