"""Imported first by a fork server: the modules that an environment variable names, each of which may be missing."""

import os
from contextlib import suppress
from importlib import import_module

VARIABLE = "PAUSEFL_PRELOADED"

for _name in filter(None, os.environ.get(VARIABLE, "").split(",")):
    with suppress(Exception):  # who needs it meets the error again, and can tell it
        import_module(_name)
