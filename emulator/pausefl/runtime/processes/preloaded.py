"""Imported first by a fork server: imports the modules that an environment variable names, if they are installed."""

import atexit
import gc
import os
from contextlib import suppress
from importlib import import_module

VARIABLE = "PAUSEFL_PRELOADED"


def _end_at_once(server: int) -> None:
    """End the fork server, but no process that it forked. Unloading torch takes a second; pipes would wait for it."""
    if os.getpid() == server:
        os._exit(0)


if VARIABLE in os.environ:
    atexit.register(_end_at_once, os.getpid())
gc.disable()  # imports leave no garbage, and looking for it takes a quarter of their time
for _name in filter(None, os.environ.get(VARIABLE, "").split(",")):
    with suppress(Exception):  # the process that needs the module gets the error again, and reports it
        import_module(_name)
gc.freeze()  # so the pages that hold these objects stay shared with the children, which never look through them
gc.enable()
