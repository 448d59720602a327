"""Flower's simulation engine. Clients have no processes: Ray's workers handle the nodes' messages in turn."""

import os

from flwr.simulation import run_simulation

from benchmarks.systems.flower_apps import client_app, server_app
from benchmarks.systems.task import Task

if __name__ == "__main__":
    run_simulation(
        server_app,
        client_app,
        num_supernodes=Task.given().clients,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},  # a worker for each core
            "init_args": {
                "include_dashboard": False,
                "_node_ip_address": "127.0.0.1",
                "_temp_dir": os.environ["TMPDIR"],
            },
        },
    )
