"""The optional packages that commands need, and the errors that say what to install."""

from collections.abc import Callable
from functools import wraps
from importlib.util import find_spec
from typing import ParamSpec, TypeVar

from pausefl_proto.errors import ConfigError

P = ParamSpec("P")
Result = TypeVar("Result")

PACKAGES = {
    "server": ("numba", "prometheus_client", "safetensors"),
    "client": ("prometheus_client", "torch"),
    "evaluator": ("torch",),
    "report": ("jinja2", "matplotlib"),
    "netem": ("pyroute2",),
    "pandas": ("pandas",),
    "privacy": ("dp_accounting", "scipy"),
    "latency": ("scipy",),
    "bench": ("psutil", "scipy"),
    "tune": ("optuna", "pausefl_tune"),
    "reproduce": ("pausefl_reproduce",),
    "audit": ("pausefl_audit", "scipy"),
    "hf": ("pausefl_hf",),
    "opendp": ("opendp",),
    "tensorboard": ("tensorboardX",),
    "mlflow": ("mlflow",),
    "trackio": ("trackio",),
    "wandb": ("wandb",),
    "completion": ("shtab",),
    "notebook": ("cloudpickle",),
    "slurm": ("submitit",),
    "dask": ("distributed",),
}
"""The packages of each extra of pyproject.toml, by import name."""


def is_installed(extra: str) -> bool:
    """Whether every package of an extra is installed."""
    return all(find_spec(package) is not None for package in PACKAGES[extra])


def require(*extras: str) -> None:
    """Raise ConfigError if packages of these extras are missing. It names these packages and what to install."""
    missing = [extra for extra in extras if not is_installed(extra)]
    if missing:
        packages = sorted({name for extra in missing for name in PACKAGES[extra] if find_spec(name) is None})
        raise ConfigError(f'{", ".join(packages)}: not installed; pip install "pausefl[{",".join(missing)}]"')


def needs(*extras: str) -> Callable[[Callable[P, Result]], Callable[P, Result]]:
    """Decorate a function: if an import in it fails, one ConfigError names all missing packages of these extras."""

    def decorated(function: Callable[P, Result]) -> Callable[P, Result]:
        @wraps(function)
        def with_extras(*args: P.args, **kwargs: P.kwargs) -> Result:
            try:
                return function(*args, **kwargs)
            except ModuleNotFoundError as error:
                if missing := missing_package(error):
                    require(*extras)
                    raise missing from error
                raise

        return with_extras

    return decorated


def missing_package(error: ModuleNotFoundError) -> ConfigError | None:
    """The ConfigError for a failed import, which names the extra to install. None if the module belongs to no extra."""
    package = (error.name or "").partition(".")[0]
    extra = next((extra for extra, packages in PACKAGES.items() if package in packages), None)
    return None if extra is None else ConfigError(f'{package}: not installed; pip install "pausefl[{extra}]"')
