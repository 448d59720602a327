"""The version of this software: that of the git tag it was installed from, or 0.0.0 if it is not installed."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("pausefl")
except PackageNotFoundError:
    __version__ = "0.0.0"
