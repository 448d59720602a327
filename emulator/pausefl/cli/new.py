"""The subcommand that begins a project: an experiment, a policy, a data set, a model and a test, commented."""

import argparse
import json
import os
import shlex
from collections.abc import Mapping
from dataclasses import fields
from importlib import resources
from pathlib import Path
from typing import Any

from pausefl.experiment.experiment import parse_experiment
from pausefl.experiment.measured.reading import Reading, as_option
from pausefl.terminal_table import plain_console
from pausefl_process.files import write_durably
from pausefl_proto.errors import ConfigError
from pausefl_server.selection import policy_class

_FILES = {"experiment.toml": "experiment.toml", "own.py": "own.txt", "test_own.py": "test_own.txt"}


def new(options: argparse.Namespace) -> None:
    """Write the files of a new project. ConfigError if one of them already exists."""
    folder, policy = Path(options.folder), options.policy or "own:Own"
    disclosed = [] if ":" in policy else sorted(policy_class(policy, "--policy")(m=2).disclosures)
    values = {"policy": policy, "disclose": json.dumps(disclosed), "clients": "count = 6"}
    values["latency"] = 'signal = "communication"\ntime_scale = 0.1                # wait a tenth of each delay'
    asked = {field.name: getattr(options, field.name) for field in fields(Reading)}
    said = {name: value for name, value in asked.items() if value not in (None, [], "csv")}
    if said and not options.fleet:
        raise ConfigError(f"{as_option(next(iter(said)), '').split()[0]}: goes with --fleet")
    if options.fleet:
        fleet = Path(options.fleet)
        values["clients"] = f"ids = {json.dumps(_devices(fleet, said), ensure_ascii=False)}"
        file = {"kind": "empirical", "file": os.path.relpath(fleet.resolve(), folder.resolve())}
        delay = file | ({} if "format" in said else {"client_column": "client"}) | said
        keys = (f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in delay.items())
        values["latency"] = f"delay = {{ {', '.join(keys)} }}"
    if policy == "fedat":
        steps = 'mode = "asynchronous"\n\n[asynchronous]\nrule = "fedat"\nconcurrency = 4\nbuffer = 2'
        values["latency"] += f"\n\n[server]\n{steps}\n\n[selection.fedat]\ntiers = 2"
    if there := next((name for name in _FILES if (folder / name).exists()), ""):
        raise ConfigError(f"{folder / there}: is there; choose another folder")
    folder.mkdir(parents=True, exist_ok=True)
    for name, template in _FILES.items():
        text = resources.files("pausefl").joinpath("templates", template).read_text("utf-8")
        for place, value in values.items():
            text = text.replace(f"@{place}@", value)
        write_durably(folder / name, text)
    run_it = shlex.join(["pausefl", "run", str(folder / "experiment.toml")])
    plain_console().print(f"written: {', '.join(_FILES)}\nrun it: {run_it}", soft_wrap=True)


def _devices(fleet: Path, said: Mapping[str, Any]) -> list[str]:
    """The devices that a file of latencies names. ConfigError if it cannot be read as asked, or they be no clients."""
    try:
        devices = list(Reading(**said).measured(fleet, as_option, by_client=True, above_zero=False))
        return parse_experiment("", {"clients.ids": devices, "selection.m": 2}).client_ids
    except (ValueError, ConfigError) as error:
        raise ConfigError(f"{fleet}: {error}") from error
