"""Everything that an experiment can name, by kind (`pausefl validate --list`)."""

from collections.abc import Iterator

from pausefl.experiment.delays.laws import DELAYS
from pausefl.experiment.population.availability import AVAILABILITIES
from pausefl.experiment.population.behaviours import BEHAVIOURS
from pausefl.experiment.population.simulated_drifts import DRIFTS
from pausefl.experiment.toml_source import preset_names
from pausefl.runtime.observers.loading import OBSERVERS
from pausefl_client.data.datasets import DATASETS
from pausefl_client.data.partition import PARTITIONERS
from pausefl_client.registries import MODELS, OPTIMIZERS, SCHEDULES, TRAINING_METHODS
from pausefl_process.registry import Registry
from pausefl_server.model.aggregation import RULES
from pausefl_server.model.optimizers import SERVER_OPTIMIZERS
from pausefl_server.model.staleness import STALENESS_RULES
from pausefl_server.selection import POLICIES

REGISTRIES: tuple[Registry, ...] = (
    POLICIES,
    DATASETS,
    PARTITIONERS,
    MODELS,
    TRAINING_METHODS,
    OPTIMIZERS,
    SCHEDULES,
    RULES,
    SERVER_OPTIMIZERS,
    STALENESS_RULES,
    DELAYS,
    BEHAVIOURS,
    AVAILABILITIES,
    DRIFTS,
    OBSERVERS,
)


def listed() -> Iterator[str]:
    """Yields lines that name the presets, and the entries of each registry with their origins."""
    yield "presets"
    yield from (f"  {name}" for name in preset_names())
    for registry in REGISTRIES:
        yield registry.kind
        entries = registry.entries()
        width = max(len(name) for name, _ in entries)
        yield from (f"  {name:{width}}  {origin}" for name, origin in entries)
