"""The values that server and clients must share, and the experiment that a client without CONFIG gets from a server."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from pydantic import ValidationError

from pausefl.experiment.experiment import Experiment, experiment_of
from pausefl.experiment.kind_defaults import fill_workload
from pausefl.experiment.tables import PrivacyTable
from pausefl.experiment.validation import as_json
from pausefl_proto.errors import ConfigError

_OFFERED = {
    "experiment": {"rounds", "seed", "split_seed", "model_seed", "latency_seed"},
    "clients": {"count", "ids", "groups"},
    "latency": None,
    "workload": None,
    "wire": None,
}
"""The keys that a client may take from a server, by table. None: all keys of the table, except those in `_OWN`."""
_OWN = {"workload": {"device"}}
"""The keys of these tables that each client decides itself."""
_SCHEDULE = tuple(key for key in PrivacyTable.model_fields if key not in {"disclose", "delta", "ledger_dir"})
"""The keys of [privacy] that server and clients compare."""


def agreement_of(experiment: Experiment) -> dict[str, str]:
    """Values that must be equal in server and client, by key, as JSON: training, data, and the clients that take part.

    Privacy is compared separately (`PrivacyTable.schedule`).
    """
    workload = asdict(experiment.trained)
    fill_workload(workload, undo=True)  # a resumed run's file states defaults, and 0.1.0 sends what is written
    workload["dataset"] = re.sub("^hf:/[^?]*/", "hf:", workload["dataset"])  # a folder may lie elsewhere on each host
    values = {
        "experiment.seed": experiment.experiment.seed,
        "experiment.split_seed": experiment.experiment.split_seed,
        "experiment.latency_seed": experiment.experiment.latency_seed,
        "clients.count": experiment.clients.count,
        "clients.groups": {name: group.count for name, group in experiment.clients.groups.items()},
        "latency.mode": experiment.latency.mode,
        "latency.time_scale": experiment.latency.time_scale,
        "wire.dtype": experiment.wire.dtype,
        "wire.top_share": experiment.wire.top_share,
        **{f"workload.{key}": value for key, value in workload.items() if key not in _OWN["workload"]},
    }
    return {key: json.dumps(value) for key, value in values.items()}


def offer_of(experiment: Experiment) -> str:
    """A server's answer to a client that asks for the experiment, as JSON: the client's part, and the run's privacy.

    A client never takes the privacy over. It only reports how the run's privacy differs from its own.
    """
    document = experiment.model_dump(mode="json", exclude_none=True, include={*_OFFERED, "privacy"})
    offered = {table: _taken(document, table) for table in _OFFERED}
    privacy = {key: document["privacy"][key] for key in _SCHEDULE if key in document["privacy"]}
    return json.dumps({**offered, "privacy": privacy})


def accepted(offer: str, own: Mapping[str, Any]) -> Experiment:
    """The experiment of a client that received an offer: its own keys, and the server's values for keys it lacks.

    Only `_OFFERED` keys are taken, and neither code nor files. ConfigError if the offer makes no valid experiment, or
    if the run's privacy differs from the client's.
    """
    if not isinstance(document := _parsed(offer), dict):
        raise ConfigError("the server offers no experiment; give the client a CONFIG")
    taken = {table: {**_taken(document, table), **own.get(table, {})} for table in _OFFERED}
    _refuse_foreign(taken, own)
    # Checked first: the next step takes time in proportion to the offered number of clients.
    _check_privacy(document.get("privacy"), experiment_of({"privacy": own.get("privacy", {})}).privacy)
    return experiment_of({**own, **taken, "selection": {"m": 1}})  # required, but clients do not use it


def _parsed(offer: str) -> Any:
    """The content of the offer's JSON; None if it is no JSON, or contains a text that is not printable."""
    try:
        document = json.loads(offer)
        is_plain = all(text.isprintable() for _, text in _texts(document, ""))
    except (ValueError, RecursionError):
        return None
    return document if is_plain else None


def _taken(document: Mapping[str, Any], table: str) -> dict[str, Any]:
    """The part of a table that may be taken from a server; empty if it is no table."""
    keys, values = _OFFERED[table], document.get(table)
    if not isinstance(values, dict):
        return {}
    own = _OWN.get(table, ())
    return {key: value for key, value in values.items() if (keys is None or key in keys) and key not in own}


def _refuse_foreign(taken: Mapping[str, Mapping[str, Any]], own: Mapping[str, Any]) -> None:
    """ConfigError if the server's values would choose code that this client runs, or files that it reads."""
    for table, values in taken.items():
        for key in values.keys() - own.get(table, {}).keys():
            for path, text in _texts(values[key], f"{table}.{key}"):
                if ":" in text or "/" in text or path.rpartition(".")[2] in {"file", "path"}:
                    raise ConfigError(
                        f'{path} = "{text[:100]}": is code or a file, which a client takes from no server; say it'
                        f" yourself with --set {table}.{key}=... or --own, or give the client a CONFIG"
                    )


def _texts(value: object, path: str) -> Iterator[tuple[str, str]]:
    """Yields (path, text) for each text in a TOML value, keys included."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, part in value.items():
            yield path, key
            yield from _texts(part, f"{path}.{key}")
    elif isinstance(value, list):
        for part in value:
            yield from _texts(part, path)


def _check_privacy(offered: object, own: PrivacyTable) -> None:
    """ConfigError if the run's privacy differs from the client's. It names the options with which to agree."""
    try:
        run = PrivacyTable.model_validate_json(as_json(offered if isinstance(offered, dict) else {}))
        if run.schedule == own.schedule:
            return
    except (ValidationError, ConfigError):
        raise ConfigError("the server offers privacy that this client does not understand") from None
    there = {key: getattr(run, key) for key in _SCHEDULE if getattr(run, key) != getattr(own, key)}
    said = ", ".join(f"privacy.{key} is {_toml(getattr(own, key))} here, {_toml(v)} there" for key, v in there.items())
    agree = " ".join(f"--set privacy.{key}={_toml(value)}" for key, value in there.items() if value is not None)
    raise ConfigError(f"privacy is the client's to decide, and the run's differs: {said}; to agree: {agree}")


def _toml(value: object) -> str:
    return "none" if value is None else json.dumps(value)
