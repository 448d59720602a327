"""The client app and the server app for current Flower. Its simulation engine and its SuperLink both run them."""

from functools import cache
from typing import Any

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from benchmarks.systems.task import ENDLESS, Task, progress
from benchmarks.systems.work import Work, first_model, rate, work_of

client_app = ClientApp()
server_app = ServerApp()


class ToldFedAvg(FedAvg):
    """FedAvg that reports its progress."""

    def configure_train(self, server_round: int, *arguments: Any, **named: Any) -> Any:
        """Returns the messages to the round's nodes, once enough nodes are connected."""
        messages = super().configure_train(server_round, *arguments, **named)
        if server_round == 1:
            progress().ended(0)
        return messages

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        """Returns the mean of the round's models. RuntimeError if a node failed."""
        replies = list(replies)
        if failed := [reply for reply in replies if reply.has_error()]:
            raise RuntimeError(failed[0].error.reason)
        aggregated = super().aggregate_train(server_round, replies)
        progress().ended(server_round)
        if server_round == Task.given().rated_round:
            progress().accuracy(rate(Task.given(), aggregated[0].to_numpy_ndarrays()[0]))
        return aggregated


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Answer with the model after this node's work, and its number of examples."""
    work = _work(int(context.node_config["partition-id"]))
    model, examples = work(message.content["arrays"].to_numpy_ndarrays()[0])
    content = {"arrays": ArrayRecord([model]), "metrics": MetricRecord({"num-examples": examples})}
    return Message(content=RecordDict(content), reply_to=message)


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Play rounds without end."""
    del context
    task = Task.given()
    strategy = ToldFedAvg(
        fraction_train=1e-9,
        fraction_evaluate=0.0,
        min_train_nodes=task.per_round,
        min_available_nodes=task.clients,
    )
    strategy.start(grid=grid, initial_arrays=ArrayRecord([first_model(task)]), num_rounds=ENDLESS)


@cache
def _work(client: int) -> Work:
    """The work of a client. It is cached for the lifetime of the process that runs the node."""
    return work_of(Task.given(), client)
