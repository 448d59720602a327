"""Reports what a forked process sees. This module imports nothing large, so only the fork server's imports show.

python -m rigs.forked forked_client|forked_run PROCESSES EXPERIMENT      prints the reports as JSON
"""

import os
import sys
from multiprocessing.connection import Connection
from typing import Any

MODULES = ("pausefl.runtime.client.process", "pausefl.runtime.client.torch_trainers", "torch")


def tell_modules_and_noise(results: "Connection[Any, Any]", experiment: str) -> None:
    """Send which of `MODULES` were imported before the fork, and the first noise that a client draws."""
    loaded = [name for name in MODULES if name in sys.modules]

    from pausefl.experiment.experiment import parse_experiment
    from pausefl.runtime.client.plan import client_plan
    from pausefl.runtime.client.privacy import noise_for
    from pausefl_client.privacy.ledger import ReleaseKey

    plan = client_plan(parse_experiment(experiment))
    assert plan.privacy is not None
    source = noise_for(plan.privacy, plan.training, "client-000", ReleaseKey("run", 1, 1, "model"))
    results.send((loaded, source.laplace([0.0] * 4, 1.0).tolist()))


def tell_variable(results: "Connection[Any, Any]", name: str) -> None:
    """Send the value of an environment variable of this process."""
    results.send(os.environ.get(name))


def _main(forked: str, processes: int, experiment: str) -> None:
    import json
    import multiprocessing

    from pausefl.runtime.forks import forked_client, forked_run
    from pausefl.runtime.processes.lifetime import start
    from rigs.forked import tell_modules_and_noise

    fork: Any = {"forked_client": forked_client, "forked_run": forked_run}[forked]
    told = []
    for _ in range(processes):
        ours, theirs = multiprocessing.Pipe(duplex=False)
        process = fork("told", tell_modules_and_noise, theirs, experiment, needs_torch=True)
        start(process)
        told.append(ours.recv())
        process.join()
    print(json.dumps(told))


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
