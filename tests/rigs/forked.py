"""What a test asks a forked client process. Imports nothing itself, so that it sees what the fork server had."""

import sys
from multiprocessing.connection import Connection
from typing import Any

MODULES = ("pausefl.runtime.client.process", "pausefl.runtime.client.torch_trainers", "torch")


def tell_modules_and_noise(results: "Connection[Any, Any]", experiment: str) -> None:
    """Send which of `MODULES` were imported before the fork, and the first noise that a client draws."""
    loaded = {name for name in MODULES if name in sys.modules}

    from pausefl.config.experiment import parse_experiment
    from pausefl.runtime.client.plan import noise_plan
    from pausefl.runtime.client.privacy import noise_for
    from pausefl_client.privacy.ledger import ReleaseKey

    source = noise_for(noise_plan(parse_experiment(experiment)), "client-000", ReleaseKey("run", 1, 1, "model"))
    results.send((loaded, source.laplace([0.0] * 4, 1.0).tolist()))
