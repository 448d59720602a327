"""Observers by name, as an experiment has them."""

import difflib
from collections.abc import Mapping, Sequence

from pausefl.extras import require
from pausefl.observers.base import Observer
from pausefl_process.plugins import OWN_CODE_ERRORS, imported, with_place
from pausefl_proto.errors import ConfigError

OBSERVERS: Mapping[str, str] = {
    "mlflow": "pausefl.observers.mlflow:MLflow",
    "tensorboard": "pausefl.observers.tensorboard:TensorBoard",
}
"""What is built in: each needs the extra of its name."""
_KEY = "experiment.observers"


def load_observers(names: Sequence[str]) -> list[Observer]:
    """A fresh observer for each name: a built-in one, or "module:name" of a class or function without arguments.

    ConfigError when there is no such observer, or its extra is not installed.
    """
    return [_load(name) for name in names]


def _load(name: str) -> Observer:
    if name in OBSERVERS:
        require(name)
    elif ":" not in name:
        close = difflib.get_close_matches(name, OBSERVERS, 1)
        hint = f"did you mean {close[0]}?" if close else f'must be one of {", ".join(OBSERVERS)}, or "module:name"'
        raise ConfigError(f'{_KEY}: "{name}": {hint}')
    code = OBSERVERS.get(name, name)
    try:
        make = imported(code)
    except ValueError as error:
        raise ConfigError(f'{_KEY}: "{name}": cannot be imported ({error})') from error
    try:
        observer = make()
    except OWN_CODE_ERRORS as error:
        raise ConfigError(f'{_KEY}: "{name}": cannot be made: {with_place(error, [code])}') from error
    if not isinstance(observer, Observer):
        raise ConfigError(f'{_KEY}: "{name}": makes no pausefl.Observer')
    return observer
