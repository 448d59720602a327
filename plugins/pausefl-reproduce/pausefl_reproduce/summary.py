"""Writes the results of a reproduction: reproduction.json and the figure."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pausefl.experiment.experiment import Experiment
from pausefl.experiment.server_records import selected_policy
from pausefl.results.reading import RunData
from pausefl.results.report.style import write_picture
from pausefl.results.summary import policy_parameters
from pausefl_process.files import write_durably
from pausefl_reproduce.figure import draw_reproduction
from pausefl_reproduce.played import ClusterTerm, PlayedSeed, SeriesRuns, played_seed, summarise_series
from pausefl_reproduce.request import Request, left_out

REPRODUCTION = "reproduction.json"
"""The file that holds the results of a finished reproduction."""


def write_summary(request: Request, runs: SeriesRuns) -> dict[str, Any]:
    """Write the results of these runs and draw them as in the paper; returns the content of reproduction.json."""
    summary = summary_of(request, runs)
    write_durably(request.folder / REPRODUCTION, as_text(summary))
    write_picture(request.folder / request.reproduction.name, lambda: draw_reproduction(summary))
    return summary


def as_text(summary: Mapping[str, Any]) -> str:
    """The text of reproduction.json for a summary."""
    return json.dumps(summary, indent=1, ensure_ascii=False) + "\n"


def summary_of(request: Request, runs: SeriesRuns) -> dict[str, Any]:
    """The content of reproduction.json for these runs."""
    reproduction, everything = request.reproduction, [run for of_series in runs.values() for run in of_series]
    experiments = [request.experiment(series) for series in request.series]
    private = next((run for run in everything if run.privacy_unit), everything[0])
    return {
        "name": reproduction.name,
        "title": reproduction.title,
        "figures": reproduction.figures,
        "drawing": reproduction.drawing,
        "leakage_over": reproduction.leakage_over,
        "command": request.command,
        "scale": request.scale,
        "left_out": left_out(request),
        "settings": _settings(experiments),
        "policies": {s: policy_parameters(selected_policy(request.experiment(s).selection)) for s in request.series},
        "started": min(run.started for run in everything),
        "software": "; ".join(dict.fromkeys(run.software for run in everything)),
        "hardware": "; ".join(dict.fromkeys(run.hardware for run in everything)),
        "privacy_unit": private.privacy_unit,
        "epsilon_budget": private.epsilon_budget,
        "published": {name: values.model_dump(mode="json") for name, values in reproduction.published.items()},
        **summarise_series(runs, each_seed=request.each_seed),
    }


def _settings(experiments: Sequence[Experiment]) -> dict[str, Any]:
    """The main settings of the runs. If series differ in one, its values are joined in a text, such as "5 or 10"."""
    tables = [
        {
            "rounds": experiment.experiment.rounds,
            "clients": experiment.clients.count,
            "m": experiment.asked,
            "dataset": experiment.workload.dataset,
            "model": experiment.workload.model,
            "time_scale": experiment.latency.time_scale,
            "clock": experiment.experiment.clock,
            "step_s": experiment.workload.step_s,
        }
        for experiment in experiments
    ]
    values = {key: list(dict.fromkeys(table[key] for table in tables)) for key in tables[0]}
    return {key: found[0] if len(found) == 1 else " or ".join(map(str, found)) for key, found in values.items()}


def kept_of(request: Request, run: RunData, hardware: str) -> PlayedSeed:
    """The data to keep of one of the request's runs. ConfigError if the run evaluated no model."""
    return played_seed(run, cluster_term(request), hardware, is_elapsed=request.reproduction.drawing == "elapsed")


def cluster_term(request: Request) -> ClusterTerm | None:
    """The cluster term of the first series whose policy uses R2; None if no series does."""
    policies = (selected_policy(request.experiment(series).selection) for series in request.series)
    under_r2: Any = next((policy for policy in policies if getattr(policy, "reward", "R1") == "R2"), None)
    return None if under_r2 is None else ClusterTerm(under_r2.clusters, under_r2.delta_tau_s)
