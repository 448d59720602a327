"""Python objects as an experiment holds them: classes and functions by "module:name", dataclasses as tables."""

import sys
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np

from pausefl_process.plugins import is_library
from pausefl_proto.errors import ConfigError


def as_toml(value: Any, key: str) -> Any:
    """`value` as TOML has it: a class or a function as its name, a dataclass as the table of its `kind` and its fields.

    Every process of a run imports these by name. ConfigError, which begins with `key`, for what none could import.
    """
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    elif isinstance(value, Path):
        value = str(value)
    if isinstance(value, type | FunctionType):
        return _name_of(value, key)
    if is_dataclass(value) and not isinstance(value, type):
        given = {each.name: getattr(value, each.name) for each in fields(value) if each.init}
        table = {name: as_toml(inner, f"{key}.{name}") for name, inner in given.items()}
        return {
            "kind": _name_of(type(value), key),
            **{name: inner for name, inner in table.items() if inner is not None},
        }
    if isinstance(value, dict):
        return {name: as_toml(inner, f"{key}.{name}") for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [as_toml(inner, f"{key}.{place}") for place, inner in enumerate(value)]
    if isinstance(value, str) and value.startswith("__main__:"):
        raise _of_main(key, value.partition(":")[2])
    if value is None or isinstance(value, str | int | float):
        return value
    raise ConfigError(
        f"{key} = {type(value).__name__} object: other processes cannot be given it; give its class or a function by"
        " which each makes its own, or make it a dataclass of its parameters"
    )


def _name_of(found: type | FunctionType, key: str) -> str:
    """The "module:name" by which other processes import it; ConfigError where they cannot."""
    module, name = found.__module__, found.__qualname__
    if module == "__main__":
        raise _of_main(key, name)
    if "<" in name:
        what = "a lambda" if name.endswith("<lambda>") else "defined inside a function"
        raise ConfigError(
            f"{key} = {name}: is {what}, which other processes cannot import; define it at the top of a module"
        )
    return f"{module}:{name}"


def _of_main(key: str, name: str) -> ConfigError:
    return ConfigError(
        f"{key} = {name}: is defined in __main__, a script or notebook that other processes cannot import; move it"
        " into a file of its own, such as my_code.py, and import it from there"
    )


def folders_of(value: Any) -> list[str]:
    """The folders from which the modules that `value` names, as `as_toml` returns it, were imported here."""
    if isinstance(value, dict):
        return [folder for inner in value.values() for folder in folders_of(inner)]
    if isinstance(value, list):
        return [folder for inner in value for folder in folders_of(inner)]
    package = sys.modules.get(value.partition(":")[0].partition(".")[0]) if isinstance(value, str) else None
    file = getattr(package, "__file__", None)
    if package is None or file is None or is_library(package.__name__, file):
        return []
    path = Path(file).absolute()
    return [str(path.parents[1] if path.name == "__init__.py" else path.parent)]
