"""Imported first by a fork server: the modules that an environment variable names, each of which may be missing."""

import atexit
import gc
import os
from contextlib import suppress
from importlib import import_module

VARIABLE = "PAUSEFL_PRELOADED"


def _end_at_once(server: int) -> None:
    """End the fork server, but none that it forked: taking torch apart takes a second, for which pipes would wait."""
    if os.getpid() == server:
        os._exit(0)


if VARIABLE in os.environ:
    atexit.register(_end_at_once, os.getpid())
gc.disable()  # looking for garbage, of which imports leave none, takes a quarter of their time
for _name in filter(None, os.environ.get(VARIABLE, "").split(",")):
    with suppress(Exception):  # who needs it meets the error again, and can tell it
        import_module(_name)
gc.freeze()  # so the pages that hold these objects stay shared with the children, which never look through them
gc.enable()
