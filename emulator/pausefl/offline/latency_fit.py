"""A fleet's latencies as an experiment: a law per client, written as TOML that runs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from pausefl.config.experiment import Experiment
from pausefl.config.loading import parse_experiment
from pausefl.config.tables import SelectionTable
from pausefl.offline.fitting import FittedLaw, fit_law
from pausefl.offline.latencies import ClientLatencies, latencies_of
from pausefl.runtime.run_dir import stored_experiment
from pausefl_proto.arrays import FloatArray
from pausefl_proto.draws import generator

_TAU_MIN_LEVEL = 0.01


@dataclass(frozen=True)
class LatencyFit:
    """Laws fitted to a fleet's latencies."""

    source: Path
    """The run directory or the CSV file."""
    latencies: Mapping[str, ClientLatencies]
    """What was measured, by the name the source has for a client."""
    laws: Mapping[str, FittedLaw]
    """The law of each client, by the same name."""
    client_ids: Mapping[str, str]
    """The id of each in the experiment."""
    experiment: Experiment
    """An experiment with these laws."""

    def to_toml(self) -> str:
        """The experiment as TOML, with what was fitted to what in comments."""
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
            more = f", {bounds} lower bounds" if bounds else ""
            missed = f", {latencies.missed} missed jobs left out" if latencies.missed else ""
            doubt = ": few of its exchanges were waited for, so its law is uncertain" if bounds > measured else ""
            yield f"{who}: {fitted.table['kind']} ({fitted.why}; {measured} latencies{more}{missed}){doubt}"


def fit_latency(source: Path) -> LatencyFit:
    """Fit a law to each client of a run directory or a CSV file; ConfigError for what is neither."""
    latencies = latencies_of(source)
    laws = {name: fit_law(of_client) for name, of_client in latencies.items()}
    if source.is_dir():
        client_ids = {name: name for name in latencies}
        document = _run_document(stored_experiment(source), latencies)
    else:
        client_ids = _numbered(latencies)
        document = _fleet_document(latencies)
    document["latency"]["groups"] = [
        {"clients": client_ids[name], "delay": dict(fitted.table)} for name, fitted in laws.items()
    ]
    return LatencyFit(source, latencies, laws, client_ids, parse_experiment(tomli_w.dumps(document)))


def _numbered(latencies: Mapping[str, ClientLatencies]) -> dict[str, str]:
    """client-000, client-001, ... in the order of the file; names that are ids already keep theirs."""
    width = max(3, len(str(len(latencies) - 1)))
    ids = [f"client-{k:0{width}}" for k in range(len(latencies))]
    return {i: i for i in ids} if set(ids) == set(latencies) else dict(zip(latencies, ids, strict=True))


def _fleet_document(latencies: Mapping[str, ClientLatencies]) -> dict[str, Any]:
    """An experiment that trains nothing: its exchanges take what was measured. Few latencies lie below its τ_min."""
    least_s = np.quantile(_together(latencies), _TAU_MIN_LEVEL)
    return {
        "clients": {"count": len(latencies)},
        "selection": {"m": min(SelectionTable().m, len(latencies))},
        "latency": {"mode": "total", "tau_min_s": float(f"{least_s:.6g}")},
        "workload": {"model": "synthetic"},
    }


def _run_document(experiment: Experiment, latencies: Mapping[str, ClientLatencies]) -> dict[str, Any]:
    """The run's experiment; clients that it never chose have the law of all latencies together.

    What policies saw as a whole round trip is one here, training included, and takes as long as it says: time_scale
    is 1. The communication alone is added to the training.
    """
    document = experiment.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    signal = experiment.latency.signal
    kept = {"signal": signal, "time_scale": experiment.latency.time_scale} if signal == "communication" else {}
    tau_min_s = experiment.latency.tau_min_s
    document["latency"] = {**kept, "mode": "additive" if kept else "total", "tau_min_s": tau_min_s}
    if experiment.round_timeout_s is not None and not kept:
        # In real seconds, of which an emulated second of the run took time_scale; here it takes one.
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
