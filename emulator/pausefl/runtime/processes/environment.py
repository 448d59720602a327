"""The environment in which the processes of a run begin: the caller's, and what gRPC reads there as it begins."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version

# gRPC has threads of its own wait for sockets, and hand what comes to the thread that takes its events. Without these
# two, that thread waits itself, as it did before they came: a small round takes a tenth less time (docs/speed.md).
_WAIT_ITSELF = "-event_engine_client,-event_engine_listener"
_LATEST_KNOWN_TO_HAVE_THEM = (1, 85)

_LOCK = threading.Lock()
"""Held by the thread that changes this process's environment for the start of another."""


def grpc_defaults() -> dict[str, str]:
    """gRPC's variables, as they are to be in every process that imports it, where the user has not set them."""
    # A line for each handshake that fails would be as many as strangers like, and before ours that says why.
    defaults = {"GRPC_VERBOSITY": "ERROR"}
    if tuple(map(int, version("grpcio").split(".")[:2])) <= _LATEST_KNOWN_TO_HAVE_THEM:
        defaults["GRPC_EXPERIMENTS"] = _WAIT_ITSELF  # of a name that it does not know, gRPC prints a line
    return {name: value for name, value in defaults.items() if name not in os.environ}


def environment_of_children() -> dict[str, str]:
    """The environment of a process that is started now."""
    with _LOCK:
        return {**os.environ, **grpc_defaults()}


@contextmanager
def added_to_environment(**variables: str) -> Iterator[None]:
    """Add these variables to what is started in the block. After it they are as before."""
    with _LOCK:
        added = {**grpc_defaults(), **variables}
        before = {name: os.environ.get(name) for name in added}
        os.environ.update(added)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
