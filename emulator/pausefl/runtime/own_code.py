"""The versions of users' own code."""

import hashlib
from contextlib import suppress
from functools import cache
from importlib.machinery import ModuleSpec
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

from pausefl.experiment.in_force import Tables
from pausefl.experiment.objects import texts_of
from pausefl_process.plugins import is_library


def own_code(tables: Tables, *of: str) -> str:
    """The user's own modules and packages that an experiment names, each with a digest of its source; "; " between.

    Only the tables `of` count; by default all. Installed packages count if they are plug-ins. Code that is carried by
    value has its digest in its name.
    """
    plugged, versions = _plugged(), set()
    for text in texts_of([tables[name] for name in of or tables]):
        module, is_code, _ = plugged.get(text, text).partition(":")
        name = module.partition(".")[0]
        with suppress(ValueError, OSError):  # it is no name of a module, in memory alone, or cannot be read
            spec = find_spec(name) if is_code and name not in tables["experiment"]["by_value"] else None
            if spec is not None and (text in plugged or not is_library(name, spec.origin or "")):
                versions.add(f"{name} {_digest(spec)}")
    return "; ".join(sorted(versions))


def _digest(spec: ModuleSpec) -> str:
    """A digest of the source of a module, or of all modules of a package."""
    of_package = sorted(file for folder in spec.submodule_search_locations or () for file in Path(folder).rglob("*.py"))
    files = of_package or [Path(spec.origin or "")]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


@cache
def _plugged() -> dict[str, str]:
    """The "module:name" of each installed plug-in, by the plug-in's name."""
    groups = [group for group in entry_points().groups if group.startswith("pausefl.")]
    return {point.name: point.value for group in groups for point in entry_points(group=group)}
