"""Runs the server for an experiment: makes its settings, its evaluator and, at the end, its summary and model files."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from pausefl.config.client_records import budget_of, mechanism_of, schedule_of, tls_of
from pausefl.config.experiment import Experiment
from pausefl.config.groups import presence_of
from pausefl.config.server_records import admission_of, aggregation_of, limits_of, optimizer_of, selected_policy
from pausefl.delays import known_means
from pausefl.results.summary import summarise
from pausefl.runtime.model_files import ModelFiles
from pausefl_process.events import Done, Failed, Notice, ProgressEvent, Ready, Report, to_line
from pausefl_process.files import Lock, write_durably
from pausefl_process.http_server import is_loopback
from pausefl_process.lifetime import (
    allow_many_files,
    die_with_parent,
    first_error,
    keep_freed_memory,
    write_output_to,
)
from pausefl_process.plugins import errors_of_own_code
from pausefl_proto.errors import ConfigError, PauseflError
from pausefl_proto.wire import Manifest, TensorSpec, Vector
from pausefl_server.model.norm_bound import NormBound
from pausefl_server.rounds.evaluation import EvaluateModel
from pausefl_server.selection.base import Oracle, Policy
from pausefl_server.service import Endpoints, RunResult, serve
from pausefl_server.settings import MetricsSettings, PrivacySettings, RunInfo, ServerSettings
from pausefl_server.storage.store import Store

log = logging.getLogger("pausefl.server")


def run_server_process(
    experiment: Experiment,
    run_dir: Path,
    events: "Connection[Any, Any]",
    lock: Lock | None = None,  # noqa: ARG001  # held as long as this process lives
    back_to: int | None = None,
) -> None:
    """The main function of the server process that `fleet` started; tells its parent everything through `events`."""
    die_with_parent()
    allow_many_files()
    keep_freed_memory()
    write_output_to(run_dir / "server.log")
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    try:
        serve_experiment(experiment, run_dir, events.send, back_to)
    except PauseflError as error:
        log.error("%s", error, exc_info=error.__cause__)
        events.send(Failed(str(error), isinstance(error, ConfigError)))
    else:
        events.send(Done())


def serve_experiment(experiment: Experiment, run_dir: Path, report: Report, back_to: int | None = None) -> RunResult:
    """Serve one run to its end and write summary.json and the models. `report` gets the run's progress events.

    `back_to` takes back the rounds after that one first.

    ConfigError for bad input, PauseflError for a run that failed.
    """
    with errors_of_own_code(), first_error():
        return asyncio.run(_serve(experiment, run_dir, report, back_to))


async def _serve(experiment: Experiment, run_dir: Path, report: Report, back_to: int | None) -> RunResult:
    policy, log_and_report = selected_policy(experiment.selection), _logged(report)
    async with _evaluator(experiment, log_and_report) as (manifest, theta_0, evaluate):
        return await serve(
            server_settings(experiment, manifest, run_dir.name),
            policy,
            theta_0,
            evaluate,
            endpoints_of(experiment),
            run_dir,
            log_and_report,
            oracle=_oracle(experiment, policy),
            on_ready=lambda port: report(Ready(port)),
            keep=partial(_keep, experiment, policy, manifest, run_dir),
            back_to=back_to,
            best_model=ModelFiles(run_dir, manifest),
        )


def _keep(experiment: Experiment, policy: Policy, manifest: Manifest, run_dir: Path, result: RunResult) -> None:
    """Write the last model and, last of all, summary.json."""
    ModelFiles(run_dir, manifest).save_last(result.theta)
    with closing(Store(run_dir / "run.db", verify=False)) as store:
        summary = summarise(experiment, policy, store.rounds(), store.late_events(), result)
    write_durably(run_dir / "summary.json", json.dumps(summary, indent=2) + "\n")


def server_settings(experiment: Experiment, manifest: Manifest, run_id: str) -> ServerSettings:
    """The server's part of an experiment."""
    budget, mechanism = budget_of(experiment.privacy), mechanism_of(experiment.privacy)
    privacy = None
    presence = presence_of(experiment.groups, experiment.experiment.rounds, experiment.experiment.seed)
    if budget is not None and mechanism is not None:
        privacy = PrivacySettings(
            budget,
            mechanism.unit,
            schedule_of(experiment.privacy),
            experiment.privacy.reproducible_noise,
            NormBound(mechanism.unit, mechanism.clip),
        )
    return ServerSettings(
        run_id=run_id,
        seed=experiment.experiment.seed,
        rounds=experiment.experiment.rounds,
        minimum_clients=experiment.minimum_clients,
        manifest=manifest,
        privacy=privacy,
        signal=experiment.latency.signal,
        time_scale=experiment.latency.time_scale,
        tau_min_s=experiment.tau_min_s,
        rounds_without_update_max=experiment.server.rounds_without_update_max,
        rest_rounds_max=experiment.server.rest_rounds_max,
        examples_max=experiment.clients.examples_max,
        connect_timeout_s=experiment.clients.connect_timeout_s,
        round_timeout_s=experiment.server.round_timeout_s,
        rejoin_timeout_s=experiment.server.rejoin_timeout_s,
        evaluation_every=experiment.evaluation.every,
        checkpoint_every=experiment.server.checkpoint_every,
        disclosed=experiment.disclosed,
        pings_per_s=experiment.server.pings_per_s,
        limits=limits_of(experiment.host),
        aggregation=aggregation_of(experiment.aggregation),
        optimizer=optimizer_of(experiment.aggregation.optimizer),
        expected=presence.at if presence else None,
        clients=experiment.clients.count,
        total_delays=experiment.latency.mode == "total",
        info=_info(experiment, run_id),
    )


def _info(experiment: Experiment, run_id: str) -> RunInfo:
    workload = experiment.workload
    dataset = "synthetic" if workload.model == "synthetic" else workload.dataset
    return RunInfo(run_id, experiment.selection.policy, dataset, workload.model)


@asynccontextmanager
async def _evaluator(
    experiment: Experiment, report: Report
) -> AsyncIterator[tuple[Manifest, Vector, EvaluateModel | None]]:
    """The model's manifest, θ_0 and the evaluator's function; None for the synthetic model."""
    if experiment.workload.model == "synthetic":
        size = experiment.workload.model_bytes // 4
        yield Manifest((TensorSpec("synthetic", (size,)),)), np.zeros(size, np.float32), None
        return
    from pausefl.evaluator.process import find_evaluator

    async with find_evaluator(experiment, lambda text: report(Notice(text))) as evaluator:
        manifest, theta_0 = await evaluator.initial()
        yield manifest, theta_0, evaluator.evaluate


def endpoints_of(experiment: Experiment) -> Endpoints:
    server, m = experiment.server, experiment.metrics
    page = m.page == "on" or (m.page == "auto" and is_loopback(m.host))
    metrics = MetricsSettings(m.host, m.port, m.client_series_max, m.client_series_top, page, m.linger_s)
    return Endpoints(
        server.host,
        server.port,
        metrics if m.enabled else None,
        tls_of(experiment.tls),
        server.dead_after_s,
        server.hello_timeout_s,
        admission_of(experiment),
    )


def _oracle(experiment: Experiment, policy: Policy) -> Oracle | None:
    """The true latency laws, for the policies that are told them; no other policy can get at a drawn value."""
    return Oracle(*known_means(experiment.delays(), experiment.tau_min_s)) if policy.needs_oracle else None


def _logged(report: Report) -> Report:
    def log_and_report(event: ProgressEvent) -> None:
        log.info("%s", to_line(event))
        report(event)

    return log_and_report
