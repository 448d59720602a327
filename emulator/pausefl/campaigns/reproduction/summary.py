"""What a reproduction found: reproduction.json and its figure."""

import json
from collections.abc import Sequence
from typing import Any

from pausefl.campaigns.reproduction.figure import draw_reproduction
from pausefl.campaigns.reproduction.request import Request, left_out, most_chosen
from pausefl.config.experiment import Experiment
from pausefl.config.server_records import selected_policy
from pausefl.report.style import save_pdf, save_png
from pausefl.results.reading import RunData
from pausefl.results.reproduction import ClusterTerm, summarise_series
from pausefl_process.files import write_durably
from pausefl_process.machine import machine_in_words

SUMMARY = "reproduction.json"


def write_summary(request: Request, runs: dict[str, list[RunData]]) -> dict[str, Any]:
    """Write what these runs found, by series, and draw it like the paper; returns what reproduction.json holds."""
    reproduction, first = request.reproduction, next(iter(runs.values()))[0]
    experiments = [request.experiment(series) for series in request.series]
    private = next((of_series[0] for of_series in runs.values() if of_series[0].privacy), first)
    start: dict[str, str] = next(iter(first.summary.get("starts", [])), {})
    summary = {
        "name": reproduction.name,
        "title": reproduction.title,
        "figures": reproduction.figures,
        "drawing": reproduction.drawing,
        "leakage_over": reproduction.leakage_over,
        "command": request.command,
        "scale": request.scale,
        "left_out": left_out(request),
        "settings": _settings(experiments),
        "started": start.get("started", ""),
        "software": " ".join(start.get(name, "") for name in ("version", "commit")).strip(),
        "hardware": machine_in_words(),
        "privacy_unit": private.summary["privacy_unit"],
        "epsilon_budget": private.summary["epsilon_budget"] if private.privacy else None,
        "published": {name: values.model_dump(mode="json") for name, values in reproduction.published.items()},
        **summarise_series(runs, _cluster_term(experiments)),
    }
    write_durably(request.folder / SUMMARY, json.dumps(summary, indent=1, ensure_ascii=False) + "\n")
    figure = draw_reproduction(summary)
    save_png(figure, request.folder / f"{reproduction.name}.png")
    save_pdf(figure, request.folder / f"{reproduction.name}.pdf")
    return summary


def _settings(experiments: Sequence[Experiment]) -> dict[str, Any]:
    """What a reader asks first of the runs; all values in words where the series differ."""
    tables = [
        {
            "rounds": experiment.experiment.rounds,
            "clients": experiment.clients.count,
            "m": most_chosen(experiment),
            "dataset": experiment.workload.dataset,
            "model": experiment.workload.model,
            "time_scale": experiment.latency.time_scale,
            "clock": experiment.experiment.clock,
        }
        for experiment in experiments
    ]
    values = {key: list(dict.fromkeys(table[key] for table in tables)) for key in tables[0]}
    return {key: found[0] if len(found) == 1 else " or ".join(map(str, found)) for key, found in values.items()}


def _cluster_term(experiments: Sequence[Experiment]) -> ClusterTerm | None:
    """That of the first policy that is played under R2; None where none is."""
    policies = (selected_policy(experiment.selection) for experiment in experiments)
    under_r2: Any = next((policy for policy in policies if getattr(policy, "reward", "R1") == "R2"), None)
    return None if under_r2 is None else ClusterTerm(under_r2.clusters, under_r2.delta_tau_s)
