"""Whether the methods of a class that a user brings take what those of its base class take.

A call that does not fit fails before any of the user's code runs: its error names no file of theirs.
"""

from functools import cache
from inspect import Parameter, Signature, getattr_static, getmembers_static, iscoroutinefunction, isfunction, signature
from types import FunctionType


@cache
def misfit(found: type, base: type) -> str:
    """The mistake of the first public method of `found` that takes other arguments than that of `base`; or ""."""
    for name, ours in getmembers_static(base, isfunction):
        given = getattr_static(found, name)
        function = getattr(given, "__func__", given)  # of a static method or one of the class
        if name.startswith("_") or given is ours:
            continue
        if iscoroutinefunction(function) or not (callable(given) or hasattr(given, "__get__")):
            what = "a coroutine" if iscoroutinefunction(function) else f"of type {type(given).__name__}"
            return f"its `{name}` must be a method; is {what}"
        if not isinstance(function, FunctionType):
            continue
        # A wrapper is called itself, and may take what it likes.
        call = given.__get__(object(), found)
        takes, wanted = signature(call, follow_wrapped=False), [*signature(ours).parameters][1:]
        try:
            takes.bind(*wanted)  # by place: a subclass may have names of its own
        except TypeError:
            place = f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}"
            return f"its `{name}` must take ({', '.join(wanted)}); takes {_without_types(takes)} ({place})"
    return ""


def _without_types(taken: Signature) -> str:
    return str(Signature([parameter.replace(annotation=Parameter.empty) for parameter in taken.parameters.values()]))
