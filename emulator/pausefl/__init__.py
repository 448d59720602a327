"""Emulates client selection in federated learning on a real network. This is the library; `pausefl` is its command.

    experiment = pausefl.load("demo", {"experiment.rounds": 20})
    run = pausefl.run(experiment)
    run.rounds["total_latency_s"].iloc[-1]

Names are imported when they are first used: `pausefl client` needs no server, `pausefl server` no torch.

May live here: the library, the command, and folders of what they use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pausefl.extras import needs
from pausefl_process.version import __version__ as __version__
from pausefl_proto.errors import ConfigError, PauseflError

if TYPE_CHECKING:
    from pausefl.experiment.delay_laws.base import SampledDelay
    from pausefl.experiment.experiment import Experiment
    from pausefl.experiment.population.behaviours import Behaviour
    from pausefl.library import (
        Simulation,
        compare,
        load,
        open,  # noqa: A004 - as gzip.open
        report,
        run,
        simulate,
        sweep,
        validate,
    )
    from pausefl.results.report.comparison import Comparison
    from pausefl.results.run import Run
    from pausefl.runtime.observers.base import Observer
    from pausefl.studies.sweep import Sweep
    from pausefl_audit.audit import Audit, audit
    from pausefl_offline.latency_fit import LatencyFit
    from pausefl_offline.library import fit_latency, replay
    from pausefl_offline.replay_outputs import Replay
    from pausefl_reproduce.library import Reproduction, reproduce
    from pausefl_tune import tune
    from pausefl_tune.tuning import Tuning

__all__ = [
    "Audit",
    "Behaviour",
    "Comparison",
    "ConfigError",
    "Experiment",
    "LatencyFit",
    "Observer",
    "PauseflError",
    "Replay",
    "Reproduction",
    "Run",
    "SampledDelay",
    "Simulation",
    "Sweep",
    "Tuning",
    "audit",
    "compare",
    "fit_latency",
    "load",
    "open",
    "replay",
    "report",
    "reproduce",
    "run",
    "simulate",
    "sweep",
    "tune",
    "validate",
]

_HOMES = {
    "Audit": "pausefl_audit.audit",
    "Behaviour": "pausefl.experiment.population.behaviours",
    "Comparison": "pausefl.results.report.comparison",
    "Experiment": "pausefl.experiment.experiment",
    "LatencyFit": "pausefl_offline.latency_fit",
    "Observer": "pausefl.runtime.observers.base",
    "Replay": "pausefl_offline.replay_outputs",
    "Reproduction": "pausefl_reproduce.library",
    "Run": "pausefl.results.run",
    "SampledDelay": "pausefl.experiment.delay_laws.base",
    "Sweep": "pausefl.studies.sweep",
    "Tuning": "pausefl_tune.tuning",
    "audit": "pausefl_audit.audit",
    "fit_latency": "pausefl_offline.library",
    "replay": "pausefl_offline.library",
    "reproduce": "pausefl_reproduce.library",
    "tune": "pausefl_tune",
}


_EXTRAS = {"LatencyFit": "latency", "fit_latency": "latency"}
"""The extras of names whose package belongs to others, too."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'pausefl' has no attribute {name!r}")
    with needs(*[_EXTRAS[name]] if name in _EXTRAS else ()):
        return getattr(import_module(_HOMES.get(name, "pausefl.library")), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
