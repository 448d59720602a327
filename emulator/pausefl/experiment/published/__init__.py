"""Published figures and tables by name: the preset that repeats each, and what is changed in it.

`pausefl_reproduce` reads their series and published values from the same files.
"""

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any


@cache
def published_figures() -> Mapping[str, tuple[str, Mapping[str, Any]]]:
    """By the name of a figure: its preset, and the changes to the preset by dotted key."""
    tables = [item for text in published_texts() for item in tomllib.loads(text).items() if item[0] != "series"]
    return {figure: (t["preset"], t.get("set", {})) for name, t in tables for figure in t.get("figures", [name])}


def published_texts() -> list[str]:
    """The TOML texts that define the figures, in the order of the papers."""
    names = ("pause.toml", "fed_ts.toml", "asynchronous.toml")
    return [resources.files(__package__).joinpath(name).read_text("utf-8") for name in names]
