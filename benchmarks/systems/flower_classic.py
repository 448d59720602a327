"""Flower 1.17 with its `start_server` and `start_client`, the interface of most published code."""

from typing import Any

import flwr as fl

from benchmarks.systems.task import ENDLESS, Task, progress
from benchmarks.systems.work import await_server, first_model, free_port, rate, start_clients, work_of


class ToldFedAvg(fl.server.strategy.FedAvg):
    """FedAvg that reports its progress."""

    def configure_fit(self, server_round: int, parameters: Any, client_manager: Any) -> Any:
        """Returns the round's clients, once enough are connected."""
        chosen = super().configure_fit(server_round, parameters, client_manager)
        if server_round == 1:
            progress().ended(0)
        return chosen

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
        """Returns the mean of the round's models. Raises the error of a client that failed."""
        if failures:
            raise failures[0]
        aggregated = super().aggregate_fit(server_round, results, failures)
        progress().ended(server_round)
        if server_round == Task.given().rated_round:
            (model,) = fl.common.parameters_to_ndarrays(aggregated[0])
            progress().accuracy(rate(Task.given(), model))
        return aggregated


class Client(fl.client.NumPyClient):
    """A client that answers with the model and its number of examples."""

    def __init__(self, number: int) -> None:
        self._work = work_of(Task.given(), number)

    def fit(self, parameters: Any, config: Any) -> Any:
        """Returns the model after this client's work, and its number of examples."""
        del config
        model, examples = self._work(parameters[0])
        return [model], examples, {}


def run_client(number: int, port: int) -> None:
    """The main function of a client's process."""
    client = Client(number).to_client()
    await_server(port)
    fl.client.start_client(server_address=f"127.0.0.1:{port}", client=client)


def main() -> None:
    """Serve clients that run in their own processes."""
    task, port = Task.given(), free_port()
    strategy = ToldFedAvg(
        fraction_fit=1e-9,
        min_fit_clients=task.per_round,
        min_available_clients=task.clients,
        fraction_evaluate=0.0,
        initial_parameters=fl.common.ndarrays_to_parameters([first_model(task)]),
    )
    start_clients(task, run_client, port, ["flwr"])
    config = fl.server.ServerConfig(num_rounds=ENDLESS)
    fl.server.start_server(server_address=f"127.0.0.1:{port}", config=config, strategy=strategy)


if __name__ == "__main__":
    main()
