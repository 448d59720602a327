"""APPFL's asynchronous server and clients over gRPC, with a frozen heap: FedAsync if K = 1, else FedBuff."""

import gc
from functools import partial
from typing import Any

import torch
from appfl.agent import ServerAgent
from appfl.comm.grpc import GRPCClientCommunicator, GRPCServerCommunicator, serve
from appfl.config import ServerAgentConfig
from omegaconf import OmegaConf

from benchmarks.systems.task import ENDLESS, Task, progress
from benchmarks.systems.work import await_server, first_model, free_port, start_clients


class Model(torch.nn.Module):
    """A model of one parameter vector, which clients and server exchange."""

    def __init__(self) -> None:
        super().__init__()
        self.values = torch.nn.Parameter(torch.from_numpy(first_model(Task.given())))


class ToldServerAgent(ServerAgent):
    """A server agent that reports the number of steps of the global model."""

    def _load_model(self) -> None:
        self.model = Model()

    def global_update(self, client_id: str, local_model: Any, *arguments: Any, **named: Any) -> Any:
        """Returns the global model after this update. FedBuff changes the model with every K-th update."""
        updated = super().global_update(client_id, local_model, *arguments, **named)
        progress().ended(self.aggregator.global_step)
        return updated


def run_client(number: int, port: int, *, collects: bool) -> None:
    """The main function of a client's process: returns each model unchanged. `collects`: see `main`."""
    options = _options(collects)
    await_server(port)
    server = GRPCClientCommunicator(str(number), server_uri=f"127.0.0.1:{port}", **options)
    server.get_configuration()
    model = server.get_global_model(init_model=True)  # returns once all clients have asked
    while True:
        model, _ = server.update_global_model(model)


def main(*, collects: bool = False) -> None:
    """Serve clients that run in their own processes. With `collects`, APPFL keeps its default garbage collection."""
    task, port, options = Task.given(), free_port(), _options(collects)
    settings = {
        "num_clients": task.clients,
        "num_global_epochs": ENDLESS,
        "scheduler": "AsyncScheduler",
        "scheduler_kwargs": options,
        "aggregator": "FedAsyncAggregator" if task.buffer == 1 else "FedBuffAggregator",
        "aggregator_kwargs": {"K": task.buffer, **options},
        **options,
    }
    agent = ToldServerAgent(ServerAgentConfig(server_configs=OmegaConf.create(settings)))
    start_clients(task, partial(run_client, collects=collects), port, ["appfl.comm.grpc"])
    serve(GRPCServerCommunicator(agent, **options), server_uri=f"127.0.0.1:{port}")


def _options(collects: bool) -> dict[str, bool]:
    """Settings with which APPFL collects garbage less often, unless `collects`. Its default is many times an update.

    Its imports create half a million objects. These are frozen here, so that the remaining collections skip them.
    """
    if collects:
        return {}
    gc.freeze()
    return {"optimize_memory": False}


if __name__ == "__main__":
    main()
