"""Imports users' own code, named "package.module:name", and states its errors in one line."""

import asyncio
import concurrent.futures
import importlib
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from types import FrameType
from typing import Any, TypeVar

from pausefl_proto.errors import PauseflError

Result = TypeVar("Result")

# If a library raises an error, the cause is usually the code that called it, which the user can change.
_OURS = frozenset(
    {"pausefl", "pausefl_client", "pausefl_process", "pausefl_proto", "pausefl_server"}
    | {"pausefl_allocation", "pausefl_audit", "pausefl_hf", "pausefl_offline", "pausefl_reproduce"}
    | {"pausefl_trackers", "pausefl_tune"}
)
_LIBRARIES = frozenset(
    {"PIL", "google", "grpc", "jinja2", "matplotlib", "numba", "numpy"}
    | {"pydantic", "pydantic_core", "rich", "safetensors", "scipy", "torch"}
)
OWN_CODE_ERRORS = (Exception, SystemExit)
"""Errors of users' own code, which must end only that code. sys.exit() in it counts as an error like any other."""
_NOT_HELD = (StopIteration, asyncio.CancelledError, concurrent.futures.CancelledError)

_INSTALLED = tuple(sysconfig.get_paths()[name] + os.sep for name in ("purelib", "platlib"))


def imported(name: str) -> Any:
    """The object that `name` stands for. ValueError, in one line, if the import fails, whatever its module raises."""
    module, _, attribute = name.partition(":")
    try:
        return attrgetter(attribute)(importlib.import_module(module))
    except OWN_CODE_ERRORS as error:
        raise ValueError(with_place(error)) from error


def name_of(part: object) -> str:
    """The "module:name" of the class of a user's own object."""
    return f"{type(part).__module__}:{type(part).__qualname__}"


def is_library(package: str, file: str) -> bool:
    """Whether a top-level package is Python's, ours, or installed, so that every process of a run can import it."""
    return package in _OURS | sys.stdlib_module_names or file.startswith(_INSTALLED)


def for_future(function: Callable[..., Result], *arguments: Any) -> Result:
    """Call a function that may run a user's code. Errors that an asyncio future cannot hold become a RuntimeError.

    A coroutine that awaits a StopIteration waits forever. One that receives a CancelledError believes that it was
    cancelled.
    """
    try:
        return function(*arguments)
    except _NOT_HELD as error:
        raise RuntimeError("not for a future") from error


def in_one_line(error: BaseException) -> str:
    """An error as the last line of its traceback states it, with a message of several lines joined into one."""
    try:
        said = " ".join(str(error).split())
    except OWN_CODE_ERRORS:  # the error's class may be a user's own
        said = "<exception str() failed>"
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def with_place(error: BaseException, names: Iterable[str] = ()) -> str:
    """An error in one line. If it comes from a user's own code, FILE:LINE follows in parentheses (`where_raised`)."""
    error = _first_raised(error)
    place = where_raised(error, names)
    return in_one_line(error) + (f" ({place})" if place else "")


@contextmanager
def errors_of_own_code() -> Iterator[None]:
    """Turn an error from a user's own code into a PauseflError of one line, with its FILE:LINE."""
    try:
        yield
    except PauseflError:
        raise
    except OWN_CODE_ERRORS as error:
        errors: list[BaseException] = [error]
        while isinstance(group := errors[-1], BaseExceptionGroup):
            errors.append(group.exceptions[0])
        # The errors in a group that a user's code has made may never have been raised, and then have no place.
        placed = next((each for each in reversed(errors) if where_raised(_first_raised(each))), None)
        if placed is None or isinstance(errors[-1], PauseflError):
            raise
        raise PauseflError(with_place(placed)) from error


def where_raised(error: BaseException, names: Iterable[str] = ()) -> str:
    """FILE:LINE of the innermost call in code that is neither Python's, nor ours, nor of a library we use.

    If no such code was running (for example in a `torch.nn.Sequential` that a user's function made), the place of the
    first function in `names` ("package.module:attribute"). Empty if there is none.
    """
    brought = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__) if _is_brought(frame)]
    # A real file, if there is one, rather than "<string>", the file name of a dataclass's methods.
    frames = [(frame, line) for frame, line in brought if not frame.f_code.co_filename.startswith("<")] or brought
    # The user's own file, if there is one, rather than an installed package that it calls.
    own = [(frame, line) for frame, line in frames if not frame.f_code.co_filename.startswith(_INSTALLED)]
    for frame, line in reversed(own or frames):
        return f"{frame.f_code.co_filename}:{line}"
    for name in names:
        module, _, attribute = name.partition(":")
        found = getattr(sys.modules.get(module), attribute, None)
        code = getattr(vars(found).get("__init__") if isinstance(found, type) else found, "__code__", None)
        if code is not None:
            return f"{code.co_filename}:{code.co_firstlineno}"
    return ""


def _first_raised(error: BaseException) -> BaseException:
    """The original error, if a coroutine or `for_future` has turned it into a RuntimeError; else the error itself."""
    cause = error.__cause__
    return cause if isinstance(error, RuntimeError) and isinstance(cause, _NOT_HELD) else error


def _is_brought(frame: FrameType) -> bool:
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return package not in _OURS | _LIBRARIES | sys.stdlib_module_names
