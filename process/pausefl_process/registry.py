"""Registries of names for experiments: built in, added by an installed package, or "module:name" of a user's code."""

import difflib
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from inspect import isabstract
from pathlib import Path
from typing import Any, Protocol

from pausefl_process.plugins import imported
from pausefl_process.signatures import misfit
from pausefl_proto.errors import ConfigError

_OF_PYTHON = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))


@dataclass(frozen=True, eq=False)
class Registry(Mapping[str, Any]):
    """The objects of one kind, by name. As a mapping, it contains the built-in objects only.

    An installed package adds names by entry points of the group `pausefl.<kind>`. It cannot replace a built-in name.
    """

    kind: str
    """The kind's name in the plural, such as "policies"."""
    built_in: Mapping[str, Any]
    """The built-in objects by name, or "module:name" texts, which are imported when they are used."""
    base: str = ""
    """The class, as "module:name", of which each object must be a subclass. Empty: each must be callable. pausefl calls
    all methods of its own classes: the objects' methods must accept their arguments. A Protocol needs no subclass."""

    def __getitem__(self, name: str) -> Any:
        found = self.built_in[name]
        return imported(found) if isinstance(found, str) else found

    def __iter__(self) -> Iterator[str]:
        return iter(self.built_in)

    def __len__(self) -> int:
        return len(self.built_in)

    def find(self, name: str, key: str) -> Any:
        """The object called `name`. A ConfigError begins with `key`, the place of the name in the experiment."""
        if name in self.built_in:
            return self[name]
        code = self._one_code(name, key)
        try:
            found = imported(code)
        except ValueError as error:
            where = _where_looked(code.partition(":")[0], error.__cause__)
            raise ConfigError(f'{key} = "{name}": cannot be imported ({error}){where}') from error
        if wrong := self._misfit(found):
            raise ConfigError(f'{key} = "{name}": {wrong}')
        return found

    def check_name(self, name: str, key: str) -> None:
        """Raise ConfigError as `find` does if a name stands for nothing. Nothing is imported."""
        if name not in self.built_in:
            self._one_code(name, key)

    def code_of(self, name: str) -> str:
        """The "module:name" that a name which is not built in stands for. Empty if it stands for nothing."""
        if ":" in name:
            return f"pausefl_{name}" if name.startswith("hf:") else name  # plugins/pausefl-hf
        return next((point.value for point in _installed(self.kind) if point.name == name), "")

    def entries(self) -> list[tuple[str, str]]:
        """All names, the built-in ones first, with their origins: "built in", or such as "package pausefl-more 1.0"."""
        points = _installed(self.kind)
        shadowed = {point.name: f" (not replaced by {_origin(point)})" for point in points}
        added = [(point.name, _origin(point)) for point in points if point.name not in self.built_in]
        return [(name, f"built in{shadowed.get(name, '')}") for name in self.built_in] + added

    def _one_code(self, name: str, key: str) -> str:
        """See `code_of`. ConfigError if a name stands for nothing, or for different objects of several packages."""
        points = {point.value: point for point in _installed(self.kind) if point.name == name}
        if len(points) > 1:
            each = " and ".join(f"{value} ({_origin(point)})" for value, point in points.items())
            raise ConfigError(f'{key} = "{name}": stands for {each}: must be one of these, as "package.module:name"')
        if not (code := self.code_of(name)):
            known = [name for name, _ in self.entries()]
            close = difflib.get_close_matches(name.lower(), known, n=3)
            hint = f"did you mean {' or '.join(close)}? It " if close else ""
            raise ConfigError(f'{key} = "{name}": {hint}must be one of {", ".join(known)}, or "package.module:name"')
        return code

    def _misfit(self, found: Any) -> str:
        """What is wrong with an imported object; or ""."""
        base = imported(self.base) if self.base else None
        is_protocol = base is not None and Protocol in base.__bases__
        if base is None or (is_protocol and not isinstance(found, type)):
            return "" if callable(found) else "is not callable"
        if is_protocol:
            return misfit(found, base)
        if not (isinstance(found, type) and issubclass(found, base)):
            return f"must be a subclass of {self.base.replace(':', '.')}"
        if isabstract(found):
            missing = " and ".join(f"`{method}`" for method in sorted(vars(found)["__abstractmethods__"]))
            return f"is abstract; it has no method {missing}"
        return misfit(found, base) if base.__module__.startswith("pausefl") else ""


def _where_looked(module: str, error: BaseException | None) -> str:
    """A hint on a failed import: the imported file, if it lacks the name, or the folders that were searched."""
    if isinstance(error, AttributeError) and module in sys.modules:
        return f"; it is {getattr(sys.modules[module], '__file__', None) or 'built into Python'}"
    if isinstance(error, ModuleNotFoundError) and error.name == "pausefl_hf":
        return '; pip install "pausefl[hf]"; in a checkout: pip install ".[hf]" ./plugins/pausefl-hf'
    if isinstance(error, ModuleNotFoundError):
        paths = [path for path in sys.path if Path(path).is_absolute() and not path.endswith(".zip")]
        folders = [path for path in paths if not any(Path(path).is_relative_to(folder) for folder in _OF_PYTHON)]
        searched = f"; searched besides Python's own folders: {', '.join(folders)}" if folders else ""
        return f"{searched}; experiment.python_path can name others"
    return ""


def _installed(kind: str) -> tuple[EntryPoint, ...]:
    return _installed_on(f"pausefl.{kind}", tuple(sys.path))


@cache
def _installed_on(group: str, path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """The entry points of a group. They are cached, and read anew if Python's import path (`path`) has changed."""
    del path
    return tuple(sorted(entry_points(group=group)))


def _origin(point: EntryPoint) -> str:
    return f"package {point.dist.name} {point.dist.version}" if point.dist is not None else point.value
