"""One's own model or data set by name: `workload.model = "package.module:factory"`."""

from collections.abc import Callable
from typing import Any

from pausefl_process.plugins import imported
from pausefl_proto.errors import ConfigError


def is_factory(name: str) -> bool:
    """True for "package.module:factory", False for the name of something built in."""
    return ":" in name


def resolve_factory(key: str, name: str) -> Callable[..., Any]:
    """The callable that `name` ("package.module:factory") means; ConfigError naming the TOML key if there is none."""
    try:
        factory = imported(name)
    except ValueError as error:
        raise ConfigError(f'{key} = "{name}": cannot be imported ({error})') from error
    if not callable(factory):
        raise ConfigError(f'{key} = "{name}": is not callable')
    return factory  # type: ignore[no-any-return]  # a plug-in's type is its own
