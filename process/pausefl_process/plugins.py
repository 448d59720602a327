"""Code that users bring as "package.module:name": how it is imported, and how its errors are told in one line."""

import asyncio
import concurrent.futures
import importlib
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

from pausefl_proto.errors import PauseflError

Result = TypeVar("Result")

# Errors are seldom made where a library raises them: the code that called it is what a user can change.
_OURS = frozenset({"pausefl", "pausefl_client", "pausefl_process", "pausefl_proto", "pausefl_server"})
_LIBRARIES = frozenset(
    {"PIL", "google", "grpc", "jinja2", "matplotlib", "numba", "numpy"}
    | {"pydantic", "pydantic_core", "rich", "safetensors", "scipy", "torch"}
)
OWN_CODE_ERRORS = (Exception, SystemExit)
"""The errors of code that users bring, which end nothing but that code: sys.exit() in it is an error like any other."""
_NOT_HELD = (StopIteration, asyncio.CancelledError, concurrent.futures.CancelledError)

_INSTALLED = tuple(sysconfig.get_paths()[name] + os.sep for name in ("purelib", "platlib"))


def imported(name: str) -> Any:
    """The object that `name` stands for; ValueError with one line if it cannot be had, whatever its module raises."""
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except OWN_CODE_ERRORS as error:
        raise ValueError(with_place(error)) from error


def is_library(package: str, file: str) -> bool:
    """Whether a top-level package is Python's, ours, or installed: every process of a run can import it."""
    return package in _OURS | sys.stdlib_module_names or file.startswith(_INSTALLED)


def for_future(function: Callable[..., Result], *arguments: Any) -> Result:
    """The result of code that may be a user's. What no future of asyncio's can hold becomes a RuntimeError.

    A coroutine that waits for a StopIteration waits for ever, and one that gets a CancelledError takes itself for
    cancelled.
    """
    try:
        return function(*arguments)
    except _NOT_HELD as error:
        raise RuntimeError("not for a future") from error


def in_one_line(error: BaseException) -> str:
    """An error as the last line of its traceback says it, whose message may have several lines."""
    try:
        said = " ".join(str(error).split())
    except OWN_CODE_ERRORS:  # the error's class may be a user's own
        said = "<exception str() failed>"
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def with_place(error: BaseException, names: Iterable[str] = ()) -> str:
    """An error in one line, and in parentheses FILE:LINE of the code a user brought, where it comes from there."""
    error = _first_raised(error)
    place = where_raised(error, names)
    return in_one_line(error) + (f" ({place})" if place else "")


@contextmanager
def errors_of_own_code() -> Iterator[None]:
    """Turn an error from code that a user brought into a PauseflError of one line, with its FILE:LINE."""
    try:
        yield
    except PauseflError:
        raise
    except OWN_CODE_ERRORS as error:
        errors: list[BaseException] = [error]
        while isinstance(group := errors[-1], BaseExceptionGroup):
            errors.append(group.exceptions[0])
        # Those in a group that a user's code has made were never raised, and have no place.
        placed = next((each for each in reversed(errors) if where_raised(_first_raised(each))), None)
        if placed is None or isinstance(errors[-1], PauseflError):
            raise
        raise PauseflError(with_place(placed)) from error


def where_raised(error: BaseException, names: Iterable[str] = ()) -> str:
    """FILE:LINE of the innermost call in code that is neither Python's, nor ours, nor of a library we use.

    Where no such code was running, as with a `torch.nn.Sequential` that a function made, that of the first of `names`
    ("package.module:attribute") that is a function; empty where there is none.
    """
    brought = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__) if _is_brought(frame)]
    # Not "<string>", as a dataclass's methods have, where a file called it.
    frames = [(frame, line) for frame, line in brought if not frame.f_code.co_filename.startswith("<")] or brought
    # A file beside the experiment, rather than a package that it calls.
    own = [(frame, line) for frame, line in frames if not frame.f_code.co_filename.startswith(_INSTALLED)]
    for frame, line in reversed(own or frames):
        return f"{frame.f_code.co_filename}:{line}"
    for name in names:
        module, _, attribute = name.partition(":")
        code = getattr(getattr(sys.modules.get(module), attribute, None), "__code__", None)
        if code is not None:
            return f"{code.co_filename}:{code.co_firstlineno}"
    return ""


def _first_raised(error: BaseException) -> BaseException:
    """The error that a coroutine or `for_future` has made a RuntimeError of; any other as it is."""
    cause = error.__cause__
    return cause if isinstance(error, RuntimeError) and isinstance(cause, _NOT_HELD) else error


def _is_brought(frame: FrameType) -> bool:
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return package not in _OURS | _LIBRARIES | sys.stdlib_module_names
