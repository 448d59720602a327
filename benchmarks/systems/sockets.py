"""The lower limit of time: TCP sockets carry only the model's bytes, and the server averages the answers."""

import random
import socket

import numpy as np

from benchmarks.systems.task import ENDLESS, Task, Vector, progress
from benchmarks.systems.work import first_model, rate, start_clients, work_of


def serve(task: Task, listener: socket.socket) -> None:
    """Play rounds without end, once all clients are connected."""
    model = first_model(task)
    clients = [_connected(listener.accept()[0]) for _ in range(task.clients)]
    answers, weight = np.empty((task.per_round, model.size), np.float32), np.empty(1, np.float32)
    progress().ended(0)
    for played in range(1, ENDLESS):
        chosen = random.sample(clients, task.per_round)
        for client in chosen:
            client.sendall(model.data)
        total = 0.0
        for place, client in enumerate(chosen):
            receive(client, weight)
            receive(client, answers[place])
            answers[place] *= weight
            total += float(weight[0])
        model = answers.sum(0) / np.float32(total)
        progress().ended(played)
        if played == task.rated_round:
            progress().accuracy(rate(task, model))


def answer(client: int, port: int) -> None:
    """The main function of a client's process: answers each model with its number of examples and its own model."""
    task = Task.given()
    work, model = work_of(task, client), first_model(task)
    server = _connected(socket.create_connection(("127.0.0.1", port)))
    while receive(server, model):
        trained, examples = work(model)
        server.sendall(np.float32(examples).tobytes())
        server.sendall(trained.data)


def receive(peer: socket.socket, into: Vector) -> bool:
    """Fill the array with the bytes received. Returns False if the peer has closed the connection."""
    view = into.data.cast("B")
    while view:
        count = peer.recv_into(view)
        if not count:
            return False
        view = view[count:]
    return True


def _connected(peer: socket.socket) -> socket.socket:
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return peer


if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0)) as door:
        start_clients(Task.given(), answer, door.getsockname()[1], ["benchmarks.systems.work"])
        serve(Task.given(), door)
