"""The optional packages that commands need, and what to install where one is missing."""

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
    "latency": ("scipy",),
    "bench": ("psutil", "scipy"),
    "tune": ("optuna",),
    "opendp": ("opendp",),
    "tensorboard": ("tensorboardX",),
    "mlflow": ("mlflow",),
    "completion": ("shtab",),
}
"""The packages of each extra of pyproject.toml, by the names they are imported by."""


def is_installed(extra: str) -> bool:
    """Whether every package of an extra is there."""
    return all(find_spec(package) is not None for package in PACKAGES[extra])


def require(*extras: str) -> None:
    """Do nothing if every package of these extras is installed; ConfigError that names the rest and what to install."""
    missing = [extra for extra in extras if not is_installed(extra)]
    if missing:
        packages = sorted({name for extra in missing for name in PACKAGES[extra] if find_spec(name) is None})
        raise ConfigError(f'{", ".join(packages)}: not installed; pip install "pausefl[{",".join(missing)}]"')


def missing_package(error: ModuleNotFoundError) -> ConfigError | None:
    """What to install, for an import that failed for want of an extra; None where the module belongs to none."""
    package = (error.name or "").partition(".")[0]
    extra = next((extra for extra, packages in PACKAGES.items() if package in packages), None)
    return None if extra is None else ConfigError(f'{package}: not installed; pip install "pausefl[{extra}]"')
