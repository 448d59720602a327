"""In which settings runs differ that are compared with each other."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pausefl.results.reading import RunData

# What a comparison varies, and what changes no figure.
_IGNORED = {
    *("selection.policy", "experiment.seed", "experiment.observers", "experiment.python_path"),
    *("server.host", "server.port", "evaluation.address", "evaluation.host", "evaluation.port"),
}
_IGNORED_TABLES = ("metrics.", "tls.", "admission.")


def differing_keys(runs: Sequence[RunData]) -> list[str]:
    """The keys whose values differ between the runs, sorted; a policy's parameters only between runs of that policy."""
    settings = [dict(_flat(run.settings)) for run in runs]
    keys = {key for of_run in settings for key in of_run if not key.startswith(_IGNORED_TABLES)} - _IGNORED
    return sorted(key for key in keys if len({repr(of_run.get(key)) for of_run in _that_use(key, settings)}) > 1)


def _that_use(key: str, settings: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """The runs for which the key has a meaning."""
    is_of_a_policy = key.startswith("selection.") and key.count(".") > 1
    for of_run in settings:
        if not is_of_a_policy or key.startswith(f"selection.{of_run.get('selection.policy')}."):
            yield of_run


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
