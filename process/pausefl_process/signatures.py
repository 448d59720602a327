"""Checks that the methods of a user's class accept the arguments of its base class's methods.

A call with wrong arguments fails before any of the user's code runs, so its error would not name the user's file.
"""

from functools import cache
from inspect import Parameter, Signature, getattr_static, getmembers_static, iscoroutinefunction, isfunction, signature
from types import FunctionType


@cache
def misfit(found: type, base: type) -> str:
    """What is wrong with the first public method of `found` that does not accept the arguments of `base`'s; or ""."""
    for name, ours in getmembers_static(base, isfunction):
        if name.startswith("_"):
            continue
        if not hasattr(found, name):
            return f"has no method `{name}`"
        given = getattr_static(found, name)
        function = getattr(given, "__func__", given)  # the function in a static method or class method
        if given is ours:
            continue
        if iscoroutinefunction(function) or not (callable(given) or hasattr(given, "__get__")):
            what = "a coroutine" if iscoroutinefunction(function) else f"of type {type(given).__name__}"
            return f"its `{name}` must be a method; is {what}"
        if not isinstance(function, FunctionType):
            continue
        # A decorator's wrapper is what will be called, so its own signature counts (follow_wrapped=False).
        call = given.__get__(object(), found)
        takes, wanted = signature(call, follow_wrapped=False), [*signature(ours).parameters][1:]
        try:
            takes.bind(*wanted)  # by position: a subclass may name its parameters differently
        except TypeError:
            place = f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}"
            untyped = Signature([part.replace(annotation=Parameter.empty) for part in takes.parameters.values()])
            return f"its `{name}` must take ({', '.join(wanted)}); takes {untyped} ({place})"
    return ""
