"""Finds and makes observers by the names that an experiment gives."""

from collections.abc import Callable, Sequence
from typing import Any

from pausefl.extras import require
from pausefl.runtime.observers.base import Observer
from pausefl_process.plugins import OWN_CODE_ERRORS, with_place
from pausefl_process.registry import Registry
from pausefl_process.signatures import misfit
from pausefl_proto.errors import ConfigError

OBSERVERS = Registry(
    "observers",
    {
        "mlflow": "pausefl_trackers.mlflow:MLflow",
        "tensorboard": "pausefl_trackers.tensorboard:TensorBoard",
        "trackio": "pausefl_trackers.wandb:Trackio",
        "wandb": "pausefl_trackers.wandb:WandB",
    },
)
"""Classes and functions without arguments that make observers. Each built-in one needs the extra of its name."""
_KEY = "experiment.observers"


def load_observers(names: Sequence[str]) -> list[Observer]:
    """A fresh observer for each name: a built-in one, or "module:name" of a class or function without arguments.

    ConfigError if there is no such observer, or its extra is not installed.
    """
    return [_load(name) for name in names]


def check_observers(names: Sequence[str]) -> None:
    """ConfigError for a name that is not found. Makes no observer, and requires no extra."""
    for name in names:
        if name not in OBSERVERS.built_in:
            OBSERVERS.find(name, _KEY)


def check_methods(observer: Observer, named: str) -> None:
    """ConfigError if a method takes other arguments than `Observer`'s. Its text begins with `named`."""
    kind: type = type(observer)
    if wrong := misfit(kind, Observer):
        raise ConfigError(f"{named}: {wrong}")


def _load(name: str) -> Observer:
    if name in OBSERVERS.built_in:
        require(name)
    make: Callable[[], Any] = OBSERVERS.find(name, _KEY)
    try:
        observer = make()
    except OWN_CODE_ERRORS as error:
        raise ConfigError(f'{_KEY} = "{name}": cannot be made: {with_place(error, [name])}') from error
    if not isinstance(observer, Observer):
        raise ConfigError(f'{_KEY} = "{name}": makes no pausefl.Observer')
    check_methods(observer, f'{_KEY} = "{name}"')
    return observer
