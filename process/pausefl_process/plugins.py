"""What an experiment names as "package.module:attribute": policies, set functions, models, data sets of one's own."""

import importlib
from typing import Any


def imported(name: str) -> Any:
    """What `name` stands for; ValueError with one line if it cannot be had, whatever its module raises."""
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:  # the module is the user's: its first line may raise anything
        said = " ".join(str(error).split())  # a message may have several lines
        raise ValueError(f"{type(error).__name__}: {said}" if said else type(error).__name__) from error
