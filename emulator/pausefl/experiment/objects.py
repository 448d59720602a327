"""Writes Python objects into experiments: classes and functions as "module:name", dataclasses as tables."""

import atexit
import base64
import copyreg
import filecmp
import hashlib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
from pydantic_core import to_jsonable_python

from pausefl_process.plugins import OWN_CODE_ERRORS, is_library, with_place
from pausefl_proto.errors import ConfigError

_CELL, _WRITTEN = "pausefl_cell_", "WRITTEN"
_MOST_VALUES = 10_000  # of an array; a greater one is data, which each process makes itself
_MOST_BYTES = 20_000_000  # of code and the values that it uses
_IMPORTED = '''"""Code that a script or notebook defined, as cloudpickle wrote it."""

import base64

import cloudpickle

{written} = "{text}"
for _name, _found in cloudpickle.loads(base64.b64decode({written})).items():
    _found.__module__ = "{name}"
    globals()[_name] = _found
'''


def as_toml(value: Any, key: str) -> Any:
    """`value` as TOML data: a class or function as its name, a dataclass as a table of its `kind` and its fields.

    Every process of a run imports these names. Raises ConfigError, which begins with `key`, for any other object.
    """
    if isinstance(value, np.generic | np.ndarray) and value.size <= _MOST_VALUES:
        value = value.tolist()
    elif isinstance(value, Path | Enum):
        value = str(value) if isinstance(value, Path) else value.value
    elif isinstance(value, set | frozenset):
        value = sorted(as_toml(part, key) for part in value)
    if isinstance(value, type | FunctionType):
        return _name_of(value, key)
    if is_dataclass(value) and not isinstance(value, type):
        table = {f: as_toml(getattr(value, f.name), f"{key}.{f.name}") for f in fields(value) if f.init}
        if lost := next((f.name for f, inner in table.items() if inner is None and f.default is not None), ""):
            raise ConfigError(f"{key}.{lost} = None: cannot be said in TOML; must have a value, or None as its default")
        given = {f.name: inner for f, inner in table.items() if inner is not None}
        return {"kind": _name_of(type(value), key), **given}
    if isinstance(value, dict):
        return {name: as_toml(inner, f"{key}.{name}") for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [as_toml(inner, f"{key}.{place}") for place, inner in enumerate(value)]
    if isinstance(value, str) and value.startswith("__main__:"):
        found = getattr(sys.modules["__main__"], value.partition(":")[2], None)
        if not isinstance(found, type | FunctionType):
            raise ConfigError(f"{key} = {value}: is no class and no function of this script or notebook")
        return _name_of(found, key)
    if value is None or isinstance(value, str | int | float):
        return value
    raise ConfigError(
        f"{key} = {type(value).__name__} object: other processes cannot be given it; give its class or a function by"
        " which each makes its own, or make it a dataclass of its parameters"
    )


def plain(value: Any) -> Any:
    """The value as TOML data: an array as a list, a member of an enumeration as its value. None if TOML has no such."""
    if isinstance(value, set | frozenset):
        return sorted(map(plain, value))  # otherwise each process has another order
    return to_jsonable_python(value, fallback=lambda other: getattr(other, "tolist", lambda: None)())


def _name_of(found: type | FunctionType, key: str) -> str:
    """The "module:name" that other processes import: the object's own, or that of a module that carries it by value."""
    module, name = found.__module__, found.__qualname__
    if module == "__main__" or module.startswith(_CELL) or "<" in name:
        return _by_value(found, key)
    return f"{module}:{name}"


def _by_value(found: type | FunctionType, key: str) -> str:
    """Make a module for an object that a script, a notebook or a function defined. Returns its "module:name".

    The object's `__module__` becomes that module, so that its instances can be loaded by processes that import it.
    """
    try:
        import cloudpickle
    except ModuleNotFoundError:
        raise ConfigError(
            f"{key} = {found.__qualname__}: is defined in a script, a notebook or a function; define it at the top of"
            ' a module, or carry it by value with pip install "pausefl[notebook]"'
        ) from None
    copyreg.pickle(type(MISSING), lambda _: "MISSING")  # pickled by name, as dataclasses compare its identity
    name = re.sub(r"\W", "", found.__qualname__.rpartition(".")[2])
    found.__module__, found.__qualname__ = "__main__", name  # makes cloudpickle write it by value, also a second time
    if "__slotnames__" in vars(found):  # a cache of Python's, in a class whose objects were pickled
        delattr(found, "__slotnames__")
    try:
        data = cloudpickle.dumps({name: found})
    except OWN_CODE_ERRORS as error:
        raise ConfigError(f"{key} = {name}: cannot be carried by value ({with_place(error)})") from error
    if len(data) > _MOST_BYTES:
        raise ConfigError(f"{key} = {name}: holds {len(data) // 10**6} MB of values; let it read them from a file")
    # cloudpickle adds random numbers to classes. Without them, the same class always gets the same name.
    digest = hashlib.sha256(re.sub(rb"[0-9a-f]{32}", b"", data)).hexdigest()
    module = ModuleType(f"{_CELL}{digest[:12]}")
    module.__dict__.update({name: found, _WRITTEN: base64.b64encode(data).decode()})
    found.__module__ = module.__name__
    sys.modules[module.__name__] = module
    return f"{module.__name__}:{name}"


def cells_of(value: Any) -> dict[str, str]:
    """The modules carried by value that `value` names, and what they import, as `experiment.by_value` has them."""
    named = [text.partition(":")[0] for text in texts_of(value)]
    found: dict[str, str] = {}
    for module in named:  # which grows
        written = getattr(sys.modules.get(module), _WRITTEN, None) if module.startswith(_CELL) else None
        if written is not None and module not in found:
            found[module] = written
            named += re.findall(f"{_CELL}[0-9a-f]+", base64.b64decode(written).decode("latin-1"))
    return found


def labels_of(names: Iterable[str]) -> dict[str, str]:
    """The label of each name in output: without the module of code carried by value, unless labels would clash."""
    labels = {name: re.sub(f"^{_CELL}[0-9a-f]+:", "", name) for name in names}
    return labels if len({*labels.values()}) == len(labels) else {name: name for name in labels}


@cache
def _new_folder() -> str:
    """A folder for modules carried by value. It is removed when this process ends."""
    folder = tempfile.mkdtemp(prefix="pausefl-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def check_modules(tables: Any, folders: Iterable[str]) -> None:
    """Raise ConfigError if a module of these folders that `tables` names is hidden by another one of its name.

    A module of one file may be hidden by another file with the same text.
    """
    for name in {text.partition(":")[0].partition(".")[0] for text in texts_of(tables) if ":" in text}:
        found = find_spec(name) if (own := PathFinder.find_spec(name, [*folders])) else None
        files = [os.path.realpath(spec.origin) for spec in (own, found) if spec and spec.origin]
        is_file = own is not None and own.submodule_search_locations is None and all(map(os.path.isfile, files))
        if len(set(files)) > 1 and not (is_file and filecmp.cmp(files[0], files[1], shallow=False)):
            raise ConfigError(
                f"experiment.python_path: {files[0]} is hidden by {files[1]}; give it another name, or load this"
                " experiment in a process of its own"
            )


def import_from(folders: Iterable[str], by_value: Mapping[str, str]) -> None:
    """Let this process, and those it starts, import modules from these folders, and modules carried by value."""
    for name, text in by_value.items():
        module = _IMPORTED.format(name=name, written=_WRITTEN, text=text)
        (Path(_new_folder()) / f"{name}.py").write_text(module, "utf-8")
    folders = [*folders, *([_new_folder()] if by_value else [])]
    sys.path.extend(folder for folder in dict.fromkeys(folders) if folder not in sys.path)


def folders_of(value: Any) -> list[str]:
    """The folders from which this process imported the modules that `value`, as `as_toml` returns it, names."""
    names = [text.partition(":")[0].partition(".")[0] for text in texts_of(value)]
    modules = [(name, sys.modules.get(name)) for name in names]
    # A package has folders; one without an __init__.py has no file.
    places = [(name, path) for name, m in modules for path in getattr(m, "__path__", [getattr(m, "__file__", None)])]
    return [str(Path(path).absolute().parent) for name, path in places if path and not is_library(name, path)]


def texts_of(value: Any) -> Iterator[str]:
    """Yields each text in TOML data, without keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from texts_of(part)
