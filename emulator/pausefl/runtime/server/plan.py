"""The part of an experiment that the server process needs: small records, made by the process that starts it."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from pausefl.experiment.delay_laws.base import known_means
from pausefl.experiment.experiment import Experiment
from pausefl.experiment.links import LinkPlan
from pausefl.experiment.server_records import (
    admission_of,
    aggregation_of,
    asynchronous_of,
    noise_of,
    optimizer_of,
    policy_of,
)
from pausefl.experiment.tables import PrivacyTable
from pausefl.results.summary import SummaryPlan
from pausefl.runtime.client.agreement import offer_of
from pausefl.runtime.client.plan import ClientPlan
from pausefl.runtime.evaluator.plan import EvaluatorPlan, evaluator_plan
from pausefl_proto.wire import Manifest, TensorSpec
from pausefl_server.connections.endpoints import Endpoints
from pausefl_server.model.norm_bound import NormBound
from pausefl_server.selection.base import Oracle, Policy
from pausefl_server.settings import PrivacySettings, RoundSettings, RunInfo, ServerSettings


@dataclass(frozen=True)
class ServerPlan:
    """All that a server process needs of an experiment."""

    settings: ServerSettings
    """Complete except for `manifest`, which the server process gets with the model."""
    policy: Policy
    oracle: Oracle | None
    """The true latency laws, for a policy that needs them; no other policy has access to a drawn value."""
    endpoints: Endpoints
    model: Manifest | EvaluatorPlan
    """The evaluator that makes the model. A manifest: of a synthetic model, a vector of zeros that learns nothing."""
    summary: SummaryPlan
    noise_notice: str = ""
    """What to say before the run of noise that may swamp the model."""


def server_plan(experiment: Experiment, run: str, clients: ClientPlan, farewell: str = "") -> ServerPlan:
    """The server's part of an experiment. `run` is the run directory's name, `farewell` a note to clients at its end.

    ConfigError if other machines could reach a server that admits every client, or has no TLS.
    """
    settings = replace(settings_of(experiment, run, clients), farewell=farewell)
    policy = policy_of(experiment)
    noise, is_too_much = noise_of(experiment)
    synthetic = Manifest((TensorSpec("synthetic", (experiment.workload.model_bytes // 4,)),))
    return ServerPlan(
        settings=settings,
        policy=policy,
        oracle=oracle_of(policy, clients.links, settings.tau_min_s),
        endpoints=endpoints_of(experiment),
        model=synthetic if experiment.workload.model == "synthetic" else evaluator_plan(experiment),
        summary=SummaryPlan(
            clients=experiment.clients.count,
            expected=experiment.expected_ids,
            groups=experiment.groups,
            selection=experiment.selection,
            clock=experiment.experiment.clock,
            privacy=experiment.privacy,
            shows_host_metrics=experiment.metrics.client_port >= 0,
        ),
        noise_notice=noise if is_too_much else "",
    )


def oracle_of(policy: Policy, links: Mapping[str, LinkPlan], tau_min_s: float | None) -> Oracle | None:
    """The true latency laws if the policy needs them, else None. ConfigError if a law has no known mean."""
    if not policy.needs_oracle:
        return None
    return Oracle(*known_means({client_id: link.exchange for client_id, link in links.items()}, tau_min_s))


def endpoints_of(experiment: Experiment) -> Endpoints:
    """Where the server listens, and which clients it admits."""
    server = experiment.server
    return Endpoints(
        host=server.host,
        port=server.port,
        metrics=experiment.metrics if experiment.metrics.enabled else None,
        tls=experiment.tls.in_use(),
        dead_after_s=server.dead_after_s,
        hello_timeout_s=server.hello_timeout_s,
        admission=admission_of(experiment),
        offer=offer_of(experiment),
    )


def settings_of(experiment: Experiment, run: str, clients: ClientPlan) -> ServerSettings:
    """The settings by which the server plays rounds; ConfigError if they are wrong."""
    shared = {field.name: getattr(experiment.server, field.name) for field in fields(RoundSettings)}
    return ServerSettings(
        **shared,
        run_id=run,
        seed=experiment.experiment.seed,
        rounds=experiment.experiment.rounds,
        minimum_clients=experiment.minimum_clients,
        manifest=Manifest(()),
        privacy=_privacy(experiment.privacy, clients),
        signal=experiment.latency.signal,
        time_scale=experiment.latency.time_scale,
        tau_min_s=experiment.tau_min_s,
        examples_max=experiment.clients.examples_max,
        connect_timeout_s=experiment.clients.connect_timeout_s,
        round_timeout_s=experiment.round_timeout_s,
        spare=experiment.selection.asked - experiment.selection.m,
        keeps_late_updates=experiment.server.late == "buffer",
        evaluation_every=experiment.evaluation.every,
        disclosed=clients.disclosed,
        limits=experiment.host,
        aggregation=aggregation_of(experiment.aggregation),
        optimizer=optimizer_of(experiment.aggregation.optimizer),
        is_asynchronous=experiment.is_asynchronous,
        asynchronous=asynchronous_of(experiment.asynchronous),
        expected=clients.presence.at if clients.presence else None,
        clients=experiment.clients.count,
        total_delays=experiment.latency.mode == "total",
        info=RunInfo(run, experiment.selection.policy, experiment.learned_from, experiment.workload.model),
        encoding=clients.encoding,
        agreement=clients.agreement,
        own_code=clients.own_code,
        clock=experiment.experiment.clock,
    )


def _privacy(table: PrivacyTable, clients: ClientPlan) -> PrivacySettings | None:
    if clients.privacy is None:
        return None
    budget, mechanism = clients.privacy.budget, clients.privacy.mechanism
    bound = NormBound(mechanism.unit, mechanism.clip)
    return PrivacySettings(budget, mechanism.unit, clients.schedule, table.reproducible_noise, bound)
