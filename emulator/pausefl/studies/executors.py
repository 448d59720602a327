"""Chooses where a campaign's runs are played: on this machine, or on a cluster by Slurm (submitit) or Dask."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from pausefl.experiment.toml_source import value_of_text
from pausefl.extras import require
from pausefl.studies.playing import OneByOne, OnExecutor, Player, Show
from pausefl_process.plugins import in_one_line
from pausefl_proto.errors import ConfigError

_ANSWERS_WITHIN_S = 10


def player_on(on: str, options: Sequence[str], jobs: int, show: Show, say: Callable[[str], object]) -> Player:
    """The player for the place `on` with its `options` (`--on`, `--on-option`); `jobs`: how many runs at once here.

    ConfigError if the place is unknown or cannot be used from this machine.
    """
    kind, _, address = on.partition("=")
    typed = ["--on", on, *(word for option in options for word in ("--on-option", option))]
    if jobs < 1:
        raise ConfigError(f"--jobs {jobs}: must be at least 1")
    if on == "local":
        if options:
            raise ConfigError(f"--on-option {options[0]}: goes with --on slurm or --on dask=ADDRESS")
        return OneByOne(show, say=say) if jobs == 1 else side_by_side(jobs, say)
    if jobs != 1:
        raise ConfigError(f"--jobs {jobs}: how many runs are played at a time, --on {on} decides itself")
    if on == "slurm":
        require("slurm")
        if shutil.which("sbatch") is None:
            raise ConfigError("--on slurm: there is no sbatch here; start it where jobs are handed to Slurm")
        from pausefl_allocation.jobs import slurm

        return OnExecutor(partial(slurm, _valued(options)), say, typed, is_elsewhere=True, has_whole_nodes=True)
    if kind == "dask" and address:
        require("dask")
        return OnExecutor(partial(_dask, _dask_client(address), _valued(options)), say, typed, is_elsewhere=True)
    raise ConfigError(f"--on {on}: must be local, slurm or dask=ADDRESS")


def side_by_side(jobs: int, say: Callable[[str], object]) -> OnExecutor:
    """A player that plays `jobs` runs at a time on this machine, each in its own process."""
    return OnExecutor(lambda *_: ThreadPoolExecutor(jobs), say, ("--jobs", str(jobs)))


def _valued(options: Sequence[str]) -> dict[str, Any]:
    """The values of KEY=VALUE options by key."""
    found = {}
    for option in options:
        key, separator, text = option.partition("=")
        if not (separator and key.strip()):
            raise ConfigError(f"--on-option {option}: must be KEY=VALUE")
        found[key.strip().replace("-", "_")] = value_of_text(text)
    return found


def _dask_client(address: str) -> Any:
    """The Dask client for an address. ConfigError if no scheduler answers there."""
    from distributed import Client

    try:
        return Client(address, timeout=_ANSWERS_WITHIN_S)  # type: ignore[no-untyped-call]  # Dask has none
    except (OSError, ValueError) as error:
        raise ConfigError(f"--on dask={address}: no Dask scheduler answers there ({in_one_line(error)})") from error


def _dask(client: Any, options: Mapping[str, Any], _folder: Path, _whole_nodes: bool) -> Executor:
    """Dask's own executor. `options` are keyword arguments of Dask's `submit`. The client stays for later ones."""
    try:
        executor: Executor = client.get_executor(pure=False, **options)
    except TypeError as error:
        raise ConfigError(f"--on-option: {error}") from error
    return executor
