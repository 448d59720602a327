"""Emulates client selection in federated learning on a real network. This is the library; `pausefl` is its command.

    experiment = pausefl.load("demo", {"experiment.rounds": 20})
    run = pausefl.run(experiment)
    run.rounds["total_latency_s"].iloc[-1]

Names are imported when they are first used: `pausefl client` needs no server, `pausefl server` no torch.

May live here: the library, the command, and folders of what they use. `presets/` holds the experiments shipped with it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pausefl.version import __version__ as __version__
from pausefl_proto.errors import ConfigError, PauseflError

if TYPE_CHECKING:
    from pausefl.campaigns.sweep import Sweep
    from pausefl.campaigns.tuning import Tuning
    from pausefl.config.experiment import Experiment
    from pausefl.library import (
        Simulation,
        compare,
        fit_latency,
        load,
        open,  # noqa: A004 - as gzip.open
        replay,
        run,
        simulate,
        sweep,
        tune,
    )
    from pausefl.observers.base import Observer
    from pausefl.offline.latency_fit import LatencyFit
    from pausefl.offline.replay_outputs import Replay
    from pausefl.report.comparison import Comparison
    from pausefl.results.run import Run

__all__ = [
    "Comparison",
    "ConfigError",
    "Experiment",
    "LatencyFit",
    "Observer",
    "PauseflError",
    "Replay",
    "Run",
    "Simulation",
    "Sweep",
    "Tuning",
    "compare",
    "fit_latency",
    "load",
    "open",
    "replay",
    "run",
    "simulate",
    "sweep",
    "tune",
]

_HOMES = {
    "Comparison": "pausefl.report.comparison",
    "Experiment": "pausefl.config.experiment",
    "LatencyFit": "pausefl.offline.latency_fit",
    "Observer": "pausefl.observers.base",
    "Replay": "pausefl.offline.replay_outputs",
    "Run": "pausefl.results.run",
    "Sweep": "pausefl.campaigns.sweep",
    "Tuning": "pausefl.campaigns.tuning",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'pausefl' has no attribute {name!r}")
    return getattr(import_module(_HOMES.get(name, "pausefl.library")), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
