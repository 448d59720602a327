"""Turns a fleet's latencies into an experiment with a latency law per client, as TOML that can be run."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tomli_w

from pausefl.experiment.experiment import Experiment, parse_experiment
from pausefl.experiment.measured.reading import Reading
from pausefl.experiment.tables import SelectionTable
from pausefl.results.tables import data_frame
from pausefl.runtime.run_dir import stored_experiment
from pausefl_offline.fitting import FittedLaw, fit_law
from pausefl_offline.latencies import ClientLatencies, latencies_of
from pausefl_proto.arrays import FloatArray
from pausefl_proto.draws import generator

if TYPE_CHECKING:
    import pandas as pd

_TAU_MIN_LEVEL = 0.01


@dataclass(frozen=True, eq=False)
class LatencyFit:
    """Latency laws fitted to a fleet's latencies, and an experiment that uses them."""

    source: Path
    """The run directory or the file with the latencies."""
    latencies: Mapping[str, ClientLatencies]
    """The measured latencies of each client, by its name in the source."""
    laws: Mapping[str, FittedLaw]
    """The fitted law of each client, by its name in the source."""
    client_ids: Mapping[str, str]
    """The id of each client in `experiment`, by its name in the source."""
    experiment: Experiment
    """An experiment with these laws."""

    def to_frame(self) -> "pd.DataFrame":
        """A row per client: its name and id, its kind of law and the reason for it, and the numbers of measurements."""
        rows = [
            {"client": name, "client_id": self.client_ids[name], "kind": law.table["kind"], "why": law.why}
            | {"latencies": len(of.seconds), "lower_bounds": len(of.bounds_s), "missed": of.missed}
            for name, law in self.laws.items()
            for of in [self.latencies[name]]
        ]
        return data_frame(rows)

    def __repr__(self) -> str:
        return f"<LatencyFit of {len(self.laws)} clients: {self.source}>"

    def to_toml(self) -> str:
        """The experiment as TOML. Comments say which law was fitted to each client's latencies, and why."""
        lines = [f"Laws fitted to {self.source} by pausefl fit-latency.", *self._notes()]
        comments = "".join(f"# {line}\n" for line in lines)
        document = self.experiment.model_dump(mode="json", exclude_unset=True, exclude_none=True)
        if not document["experiment"]["python_path"]:
            del document["experiment"]["python_path"]
        return f"{comments}\n{tomli_w.dumps(document)}"

    def _notes(self) -> Iterator[str]:
        for name, fitted in self.laws.items():
            latencies, client_id = self.latencies[name], self.client_ids[name]
            who = client_id if name == client_id else f"{client_id} is {name!r}"
            measured, bounds = len(latencies.seconds), len(latencies.bounds_s)
            counted = "1 latency" if measured == 1 else f"{measured} latencies"
            counted += f", median {np.median(latencies.seconds):.3g} s" if measured else ""
            more = f", {bounds} lower bound{'s' if bounds > 1 else ''}" if bounds else ""
            missed = f", missed jobs left out: {latencies.missed}" if latencies.missed else ""
            doubt = ": few of its exchanges were waited for, so its law is uncertain" if bounds > measured else ""
            yield f"{who}: {fitted.table['kind']} ({fitted.why}; {counted}{more}{missed}){doubt}"


def fit_laws(source: Path, reading: Reading) -> LatencyFit:
    """Fit a law to each client's latencies in a run directory or a file. ConfigError for any other `source`."""
    latencies = latencies_of(source, reading)
    laws = {name: fit_law(of_client) for name, of_client in latencies.items()}
    if source.is_dir():
        client_ids = {name: name for name in latencies}
        document = _run_document(stored_experiment(source), latencies)
    else:
        client_ids = _ids(latencies)
        document = _fleet_document(latencies, list(client_ids.values()))
    document["latency"]["groups"] = [
        {"clients": client_ids[name], "delay": dict(fitted.table)} for name, fitted in laws.items()
    ]
    return LatencyFit(source, latencies, laws, client_ids, parse_experiment(tomli_w.dumps(document)))


def _ids(names: Iterable[str]) -> dict[str, str]:
    """A client id for each name: the name without characters that ids cannot have, numbered if another has this id."""
    plain = {name: re.sub(r"\.\.+|[^A-Za-z0-9._-]+", "-", name).strip(".-") or "client" for name in names}
    taken, ids = {name for name in plain if plain[name] == name}, dict(plain)
    for name in (name for name in plain if name not in taken):
        number = 2
        while ids[name] in taken:
            ids[name], number = f"{plain[name]}-{number}", number + 1
        taken.add(ids[name])
    return ids


def _fleet_document(latencies: Mapping[str, ClientLatencies], ids: list[str]) -> dict[str, Any]:
    """An experiment without training, whose exchanges last as long as measured. Its τ_min is a low quantile of them."""
    least_s = np.quantile(_together(latencies), _TAU_MIN_LEVEL)
    return {
        "clients": {"ids": ids},
        "selection": {"m": max(1, min(SelectionTable().m, len(latencies) // 2))},  # with m = K there would be no choice
        "latency": {"mode": "total", "tau_min_s": float(f"{least_s:.6g}")},
        "workload": {"model": "synthetic"},
    }


def _run_document(experiment: Experiment, latencies: Mapping[str, ClientLatencies]) -> dict[str, Any]:
    """The run's experiment. Clients that the run never chose get a law fitted to the latencies of all clients.

    If the signal was the round trip, a law describes the whole exchange, training included, in real time: time_scale is
    1. If it was the communication, the drawn delay is added to the training.
    """
    document = experiment.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    signal = experiment.latency.signal
    kept = {"signal": signal, "time_scale": experiment.latency.time_scale} if signal == "communication" else {}
    tau_min_s = experiment.latency.tau_min_s
    document["latency"] = {**kept, "mode": "additive" if kept else "total", "tau_min_s": tau_min_s}
    if experiment.round_timeout_s is not None and not kept:
        # The timeout is in real seconds. In the run, an emulated second took time_scale of them; here it takes one.
        timeout_s = experiment.round_timeout_s / experiment.latency.time_scale
        document["server"]["round_timeout_s"] = float(f"{timeout_s:.6g}")
    if set(experiment.client_ids) - set(latencies):
        shuffled = generator(experiment.experiment.seed, "fit-latency").permutation(_together(latencies))
        bounds = np.concatenate([of_client.bounds_s for of_client in latencies.values()])
        of_all = fit_law(ClientLatencies(shuffled, np.arange(1, len(shuffled) + 1), bounds))
        document["latency"]["delay"] = dict(of_all.table)
    return document


def _together(latencies: Mapping[str, ClientLatencies]) -> FloatArray:
    return np.concatenate([of_client.seconds for of_client in latencies.values()])
