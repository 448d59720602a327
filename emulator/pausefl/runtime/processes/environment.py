"""The environment variables of a run's processes: the caller's, and those that gRPC reads when it starts."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version

# With these two features, gRPC's own threads wait for sockets, and hand events to the thread that takes them. Without
# them, that thread waits itself, as in older versions: a small round takes a tenth less time (docs/speed.md).
_WAIT_ITSELF = "-event_engine_client,-event_engine_listener"
_LATEST_KNOWN_TO_HAVE_THEM = (1, 85)

_LOCK = threading.Lock()
"""Held by the thread that changes this process's environment to start another process."""


def grpc_defaults() -> dict[str, str]:
    """gRPC's variables for every process that imports it, without those that the user has set."""
    # Otherwise gRPC logs each failed handshake: strangers could cause any number of lines, before ours with the reason.
    # Its own resolver knows neither mDNS (server.local) nor what else nsswitch.conf names.
    defaults = {"GRPC_VERBOSITY": "ERROR", "GRPC_DNS_RESOLVER": "native"}
    if tuple(map(int, version("grpcio").split(".")[:2])) <= _LATEST_KNOWN_TO_HAVE_THEM:
        defaults["GRPC_EXPERIMENTS"] = _WAIT_ITSELF  # gRPC prints a line for a name that it does not know
    return {name: value for name, value in defaults.items() if name not in os.environ}


def one_order_of_sets() -> dict[str, str]:
    """Makes processes with data walk sets of texts in one order. Strangers who know it could slow a server's tables."""
    return {"PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0")}


def environment_of_children() -> dict[str, str]:
    """The environment of a process that is started now."""
    with _LOCK:
        return {**os.environ, **grpc_defaults()}


@contextmanager
def added_to_environment(**variables: str) -> Iterator[None]:
    """Add these variables, and gRPC's, for processes started in the block. After it, the environment is as before."""
    with _LOCK:
        added = {**grpc_defaults(), **variables}
        before = {name: os.environ[name] for name in added if name in os.environ}
        os.environ.update(added)
        try:
            yield
        finally:
            os.environ.update(before)
            for name in added.keys() - before.keys():
                del os.environ[name]
