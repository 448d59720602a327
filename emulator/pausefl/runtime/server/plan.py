"""What the server process is told of an experiment: small records, made where it is started."""

from dataclasses import dataclass

from pausefl.config.client_records import budget_of, has_control, mechanism_of, schedule_of, tls_of
from pausefl.config.experiment import Experiment
from pausefl.config.groups import presence_of
from pausefl.config.server_records import admission_of, aggregation_of, limits_of, optimizer_of, selected_policy
from pausefl.config.tables import PrivacyTable, SelectionTable
from pausefl.delays import known_means
from pausefl.evaluator.plan import EvaluatorConnection, EvaluatorPlan, evaluator_connection, evaluator_plan
from pausefl.results.summary import SummaryPlan
from pausefl.runtime.client.agreement import agreement_of, offer_of
from pausefl_proto.addresses import is_loopback
from pausefl_proto.encoding import encoding_of
from pausefl_proto.wire import Manifest, TensorSpec
from pausefl_server.model.norm_bound import NormBound
from pausefl_server.selection.base import Oracle
from pausefl_server.service import Endpoints
from pausefl_server.settings import MetricsSettings, PrivacySettings, RunInfo, ServerSettings

_UNKNOWN_MODEL = Manifest(())


@dataclass(frozen=True)
class SyntheticModel:
    """A vector that stands for a model, and learns nothing; θ_0 is all zeros."""

    manifest: Manifest


@dataclass(frozen=True)
class EvaluatedModel:
    """A model that an evaluator makes and evaluates."""

    evaluator: EvaluatorPlan
    connection: EvaluatorConnection
    has_control: bool = False
    """Whether a control variate travels with it, of which the evaluator knows nothing."""


@dataclass(frozen=True)
class ServerPlan:
    """All that a server process needs of an experiment."""

    settings: ServerSettings
    """Complete but for `manifest`, which the process learns with the model."""
    selection: SelectionTable
    """Names the policy, which may be code of the user's own: the process makes it itself."""
    oracle: Oracle | None
    """The true latency laws, for the policies that are told them; no other policy can get at a drawn value."""
    endpoints: Endpoints
    model: SyntheticModel | EvaluatedModel
    summary: SummaryPlan


def server_plan(experiment: Experiment, run: str) -> ServerPlan:
    """The server's part of an experiment; `run` is the run directory's name.

    ConfigError where other machines could reach a server that asks clients to show nothing.
    """
    return ServerPlan(
        settings=settings_of(experiment, run),
        selection=experiment.selection,
        oracle=oracle_of(experiment),
        endpoints=endpoints_of(experiment),
        model=_model(experiment),
        summary=_summary(experiment),
    )


def oracle_of(experiment: Experiment) -> Oracle | None:
    """The true latency laws, where the experiment's policy is one that is told them; ConfigError where it cannot be."""
    if not selected_policy(experiment.selection).needs_oracle:
        return None
    return Oracle(*known_means(experiment.delays(), experiment.tau_min_s))


def endpoints_of(experiment: Experiment) -> Endpoints:
    """Where the server listens, and who may come."""
    server, m = experiment.server, experiment.metrics
    page = m.page == "on" or (m.page == "auto" and is_loopback(m.host))
    metrics = MetricsSettings(m.host, m.port, m.client_series_max, m.client_series_top, page, m.linger_s)
    return Endpoints(
        host=server.host,
        port=server.port,
        metrics=metrics if m.enabled else None,
        tls=tls_of(experiment.tls),
        dead_after_s=server.dead_after_s,
        hello_timeout_s=server.hello_timeout_s,
        admission=admission_of(experiment),
        offer=offer_of(experiment),
    )


def settings_of(experiment: Experiment, run: str) -> ServerSettings:
    """What rounds are played by; ConfigError."""
    presence = presence_of(experiment.groups, experiment.experiment.rounds, experiment.experiment.seed)
    return ServerSettings(
        run_id=run,
        seed=experiment.experiment.seed,
        rounds=experiment.experiment.rounds,
        minimum_clients=experiment.minimum_clients,
        manifest=_UNKNOWN_MODEL,
        privacy=_privacy(experiment.privacy),
        signal=experiment.latency.signal,
        time_scale=experiment.latency.time_scale,
        tau_min_s=experiment.tau_min_s,
        rounds_without_update_max=experiment.server.rounds_without_update_max,
        rest_rounds_max=experiment.server.rest_rounds_max,
        examples_max=experiment.clients.examples_max,
        connect_timeout_s=experiment.clients.connect_timeout_s,
        round_timeout_s=experiment.round_timeout_s,
        rejoin_timeout_s=experiment.server.rejoin_timeout_s,
        quorum=experiment.server.quorum,
        spare=experiment.selection.asked - experiment.selection.m,
        keeps_late_updates=experiment.server.late == "buffer",
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
        info=RunInfo(run, experiment.selection.policy, experiment.learned_from, experiment.workload.model),
        encoding=encoding_of(experiment.wire.dtype, experiment.wire.top_share),
        agreement=agreement_of(experiment),
    )


def _privacy(table: PrivacyTable) -> PrivacySettings | None:
    budget, mechanism = budget_of(table), mechanism_of(table)
    if budget is None or mechanism is None:
        return None
    bound = NormBound(mechanism.unit, mechanism.clip)
    return PrivacySettings(budget, mechanism.unit, schedule_of(table), table.reproducible_noise, bound)


def _model(experiment: Experiment) -> SyntheticModel | EvaluatedModel:
    workload = experiment.workload
    if workload.model == "synthetic":
        return SyntheticModel(Manifest((TensorSpec("synthetic", (workload.model_bytes // 4,)),)))
    return EvaluatedModel(evaluator_plan(experiment), evaluator_connection(experiment), has_control(workload))


def _summary(experiment: Experiment) -> SummaryPlan:
    return SummaryPlan(
        seed=experiment.experiment.seed,
        clients=experiment.clients.count,
        groups=experiment.groups,
        selection=experiment.selection,
        dataset=experiment.workload.dataset,
        clock=experiment.experiment.clock,
        latency=experiment.latency,
        privacy=experiment.privacy,
        shows_host_metrics=experiment.metrics.client_port >= 0,
        limits=limits_of(experiment.host),
    )
