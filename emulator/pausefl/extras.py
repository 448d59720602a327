"""The optional packages that commands need, and the errors that say what to install."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from pausefl_proto.errors import ConfigError

PACKAGES = {
    "server": ("numba", "prometheus_client", "safetensors"),
    "client": ("prometheus_client", "torch"),
    "evaluator": ("torch",),
    "report": ("jinja2", "matplotlib"),
    "netem": ("pyroute2",),
    "pandas": ("pandas",),
    "privacy": ("dp_accounting", "scipy"),
    "replay": ("pausefl_offline",),
    "latency": ("pausefl_offline", "scipy"),
    "bench": ("psutil", "scipy"),
    "tune": ("optuna", "pausefl_tune"),
    "reproduce": ("pausefl_reproduce",),
    "audit": ("pausefl_audit", "scipy"),
    "hf": ("pausefl_hf",),
    "allocation": ("pausefl_allocation",),
    "opendp": ("opendp",),
    "tensorboard": ("pausefl_trackers", "tensorboardX"),
    "mlflow": ("pausefl_trackers", "mlflow"),
    "trackio": ("pausefl_trackers", "trackio"),
    "wandb": ("pausefl_trackers", "wandb"),
    "completion": ("shtab",),
    "notebook": ("cloudpickle",),
    "slurm": ("pausefl_allocation", "submitit"),
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
        names, ours = ",".join(missing), [name for name in packages if name.startswith("pausefl_")]
        folders = "".join(f" ./plugins/{name.replace('_', '-')}" for name in ours)
        in_checkout = f'; in a checkout: pip install ".[{names}]"{folders}' if ours else ""
        raise ConfigError(f'{", ".join(packages)}: not installed; pip install "pausefl[{names}]"{in_checkout}')


@contextmanager
def needs(*extras: str) -> Iterator[None]:
    """If an import in the block fails, raise one ConfigError that names all missing packages of these extras.

    It also decorates functions. A ConfigError names the module's own extra if these have all packages. The error stays
    as it is if the module belongs to no extra.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        extra = next((extra for extra, packages in PACKAGES.items() if package in packages), None)
        if extra is not None:
            require(*extras)
            require(extra)
        raise
