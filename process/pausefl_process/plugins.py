"""What an experiment names as "package.module:attribute": policies, set functions, models, data sets of one's own."""

import importlib
import sys
import traceback
from collections.abc import Iterable
from typing import Any


def imported(name: str) -> Any:
    """What `name` stands for; ValueError with one line if it cannot be had, whatever its module raises."""
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:  # the module is the user's: its first line may raise anything
        raise ValueError(in_one_line(error)) from error


def in_one_line(error: BaseException) -> str:
    """An error as the last line of its traceback says it, whose message may have several lines."""
    said = " ".join(str(error).split())
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def where_raised(error: BaseException, names: Iterable[str]) -> str:
    """FILE:LINE of the innermost call in a package of `names`, each "package.module:attribute".

    Where no such code was running, as with a `torch.nn.Sequential` that an attribute made, that of the first attribute
    that is a function; empty where there is none.
    """
    modules = [(name.partition(":")[0], name.partition(":")[2]) for name in names]
    packages = {module.partition(".")[0] for module, _ in modules}
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] in packages:
            return f"{frame.f_code.co_filename}:{line}"
    for module, attribute in modules:
        code = getattr(getattr(sys.modules.get(module), attribute, None), "__code__", None)
        if code is not None:
            return f"{code.co_filename}:{code.co_firstlineno}"
    return ""
