"""Observers by name, as an experiment has them."""

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pausefl.extras import require
from pausefl.runtime.observers.base import Observer
from pausefl_process.plugins import OWN_CODE_ERRORS, imported, with_place
from pausefl_process.signatures import misfit
from pausefl_proto.errors import ConfigError

OBSERVERS: Mapping[str, str] = {
    "mlflow": "pausefl.runtime.observers.mlflow:MLflow",
    "tensorboard": "pausefl.runtime.observers.tensorboard:TensorBoard",
    "trackio": "pausefl.runtime.observers.wandb:Trackio",
    "wandb": "pausefl.runtime.observers.wandb:WandB",
}
"""The observers built in: each needs the extra of its name."""
_KEY = "experiment.observers"


def load_observers(names: Sequence[str]) -> list[Observer]:
    """A fresh observer for each name: a built-in one, or "module:name" of a class or function without arguments.

    ConfigError when there is no such observer, or its extra is not installed.
    """
    return [_load(name) for name in names]


def check_observers(names: Sequence[str]) -> None:
    """ConfigError for a name that stands for nothing. Makes none of them, and asks for no extra."""
    for name in names:
        if name not in OBSERVERS:
            _find(name)


def check_methods(observer: Observer, named: str) -> None:
    """ConfigError, which begins as it is `named`, where a method takes other arguments than `Observer`'s."""
    kind: type = type(observer)
    if wrong := misfit(kind, Observer):
        raise ConfigError(f"{named}: {wrong}")


def _find(name: str) -> Callable[[], Any]:
    """The class or function that makes the observer."""
    if name not in OBSERVERS and ":" not in name:
        close = difflib.get_close_matches(name, OBSERVERS, 1)
        hint = f"did you mean {close[0]}?" if close else f'must be one of {", ".join(OBSERVERS)}, or "module:name"'
        raise ConfigError(f'{_KEY}: "{name}": {hint}')
    try:
        make: Callable[[], Any] = imported(OBSERVERS.get(name, name))
    except ValueError as error:
        raise ConfigError(f'{_KEY}: "{name}": cannot be imported ({error})') from error
    return make


def _load(name: str) -> Observer:
    if name in OBSERVERS:
        require(name)
    make = _find(name)
    try:
        observer = make()
    except OWN_CODE_ERRORS as error:
        raise ConfigError(f'{_KEY}: "{name}": cannot be made: {with_place(error, [name])}') from error
    if not isinstance(observer, Observer):
        raise ConfigError(f'{_KEY}: "{name}": makes no pausefl.Observer')
    check_methods(observer, f'{_KEY}: "{name}"')
    return observer
