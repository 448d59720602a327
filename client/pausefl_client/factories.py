"""One's own model or data set by name: `workload.model = "package.module:factory"`."""

import pkgutil
from collections.abc import Callable
from typing import Any

from pausefl.errors import ConfigError


def is_factory(name: str) -> bool:
    """True for "package.module:factory", False for the name of something built in."""
    return ":" in name


def resolve_factory(key: str, name: str) -> Callable[..., Any]:
    """The callable that `name` ("package.module:factory") means; ConfigError naming the TOML key if there is none."""
    try:
        factory = pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f'{key} = "{name}": cannot be imported ({error})') from error
    if not callable(factory):
        raise ConfigError(f'{key} = "{name}": is not callable')
    return factory  # type: ignore[no-any-return]  # a plug-in's type is its own
