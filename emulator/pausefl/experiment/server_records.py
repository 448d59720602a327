"""Builds the server's records from an experiment: policy, aggregation, optimizer, asynchronous steps, admission.

This module imports the server, so a client never imports it.
"""

import json
from dataclasses import fields, replace
from typing import Any

from pausefl.experiment.client_records import has_control, method_name
from pausefl.experiment.experiment import Experiment
from pausefl.experiment.groups import presence_of
from pausefl.experiment.kinds import read_kind, read_record
from pausefl.experiment.links import sampled_links
from pausefl.experiment.objects import plain
from pausefl.experiment.tables import AggregationTable, AsynchronousTable, KindTable, SelectionTable
from pausefl.experiment.toml_source import bare_or_quoted
from pausefl.experiment.validation import of_record
from pausefl_proto.addresses import is_loopback
from pausefl_proto.errors import ConfigError
from pausefl_server.model.aggregation import RULES, Aggregation
from pausefl_server.model.optimizers import SERVER_OPTIMIZERS, Optimizer, ServerOptimizer
from pausefl_server.model.staleness import STALENESS_RULES, Asynchronous, AsynchronousSteps
from pausefl_server.monitoring.noise import noise_ahead
from pausefl_server.rounds.admission import Admission
from pausefl_server.selection import Policy, policy_class
from pausefl_server.selection.policies.fedat import FedAt


def selected_policy(selection: SelectionTable, name: str = "") -> Policy:
    """The selected policy, or the policy called `name`. Raises ConfigError for an unknown name or a bad parameter."""
    name = name or selection.policy
    parameters = selection.parameters(name)
    if "m" in parameters:
        raise ConfigError(f"selection.{bare_or_quoted(name)}.m: unknown key; all policies share selection.m")
    table = f"selection.{bare_or_quoted(name)}"
    key = "selection.policy" if name == selection.policy else table
    found = policy_class(name, key)
    if _has_own_init(found):
        raise ConfigError(
            f"{key} = \"{name}\": has an __init__ of its own; a policy's parameters are a dataclass's fields"
        )
    policy: Policy = read_record(found, parameters, table, m=selection.asked)
    return policy


def parameters_of(policy: Policy) -> dict[str, Any]:
    """The policy's parameters by name, as TOML data, without fields that it computes itself."""
    return {field.name: plain(getattr(policy, field.name)) for field in fields(policy) if field.init}


def policy_of(experiment: Experiment) -> Policy:
    """The policy of a run. Its m is how many clients a round asks, or C in an asynchronous run. Raises ConfigError."""
    policy = selected_policy(experiment.selection)
    return replace(policy, m=experiment.asynchronous.concurrency) if experiment.is_asynchronous else policy


def noise_of(experiment: Experiment) -> tuple[str, bool]:
    """What `noise_ahead` says of the experiment, if all its clients are there. Empty in a run without privacy."""
    if (budget := experiment.privacy.budget) is None:
        return "", False
    return noise_ahead(budget, experiment.experiment.rounds, experiment.asked, experiment.clients.count)


def _has_own_init(policy: type[Policy]) -> bool:
    """Whether the policy has a hand-written `__init__`, which is not called when a dataclass is built from TOML."""
    init = next(vars(each)["__init__"] for each in policy.__mro__ if "__init__" in vars(each))
    code = getattr(init, "__code__", None)
    # Dataclasses compile their `__init__` from text, in a file called <string>; cloudpickle renames it.
    return code is None or code.co_filename not in ("<string>", "<dynamic-code>")


def aggregation_of(table: AggregationTable) -> Aggregation:
    """The aggregation that combines updates. Raises ConfigError for a bad rule."""
    rule: Any = str(table.rule.get("kind"))
    if RULES.get(rule) is not Aggregation:
        rule = read_kind(RULES, table.rule, "aggregation.rule")
    elif len(table.rule) > 1:
        raise ConfigError(f'aggregation.rule = "{rule}": has no keys here; its parameters belong in [aggregation]')
    return replace(table, rule=rule)


def asynchronous_of(table: AsynchronousTable) -> Asynchronous:
    """The settings of asynchronous steps, with their staleness rule. Raises ConfigError for a bad rule."""
    keys = {field.name: getattr(table, field.name) for field in fields(AsynchronousSteps)}
    return Asynchronous(**keys, staleness=read_kind(STALENESS_RULES, table.staleness, "asynchronous.staleness"))


def optimizer_of(table: ServerOptimizer | KindTable) -> Optimizer:
    """The server's optimizer, which applies the combined update to the model. Raises ConfigError for a bad one."""
    if isinstance(table, ServerOptimizer):
        return table
    own: Optimizer = read_kind(SERVER_OPTIMIZERS, table.model_dump(), "aggregation.optimizer")
    return own


def admission_of(experiment: Experiment) -> Admission:
    """The admitted clients, with their files. Raises ConfigError if other machines could reach a server open to all."""
    table, server, tls = experiment.admission, experiment.server, experiment.tls.in_use()
    if table.by_certificate and (tls is None or not tls.ca):
        raise ConfigError("admission.by_certificate = true: needs tls.ca, which signs the clients' certificates")
    admission = Admission(
        experiment.admitted_ids,
        by_certificate=table.by_certificate,
        tokens_file=table.tokens,
        clients_file=table.clients_file,
    ).read()
    # With netem, the server listens on a bridge that only this machine can reach.
    is_reachable = not (is_loopback(server.host) or experiment.latency.injection == "netem")
    if is_reachable and not server.insecure and (tls is None or admission.is_open):
        raise ConfigError(
            f'server.host = "{server.host}": other machines can reach it; set [tls] and [admission] (pausefl certs'
            " makes what they need), or say --insecure"
        )
    return admission


def check_policies(experiment: Experiment) -> None:
    """Check that all named policies and the aggregation exist and take their parameters. Raises ConfigError if not."""
    aggregation_of(experiment.aggregation)
    optimizer_of(experiment.aggregation.optimizer)
    _check_feddyn(experiment)
    asynchronous_of(experiment.asynchronous)
    selection = experiment.selection
    for name, parameters in (selection.__pydantic_extra__ or {}).items():
        try:
            selected_policy(selection, name)
        except ConfigError as error:
            # Here the name is the key of a table, not the value of a key.
            hint = "; a name with dots must be quoted" if any(":" in key for key in parameters) else ""
            raise ConfigError(str(error).replace(f' = "{name}"', "", 1) + hint) from error
    policy = policy_of(experiment)
    has_tiers = type(policy).tiers_of is not Policy.tiers_of
    if has_tiers != (experiment.is_asynchronous and experiment.asynchronous.rule == "fedat"):
        here, there = f'selection.policy = "{selection.policy}"', 'asynchronous.rule = "fedat"'
        in_steps = f'{here}: goes with server.mode = "asynchronous" and {there}'
        raise ConfigError(in_steps if has_tiers else f'{there}: goes with selection.policy = "fedat"')
    if experiment.is_asynchronous:
        _check_asynchronous(experiment, policy)
    if policy.needs_oracle:
        seed = experiment.experiment.seed_of("latency")
        for link in sampled_links(experiment.latency, experiment.ids_by_group, seed).values():
            _ = link.exchange.mean_s  # raises ConfigError if the law has no mean
    presence = presence_of(experiment.groups, experiment.experiment.rounds, experiment.experiment.seed)
    at_once = experiment.clients.count if presence is None else int(presence.table.sum(axis=1).max())
    try:
        policy.check_clients(experiment.client_ids, at_once)
    except ValueError as error:
        raise ConfigError(of_record(error, f"selection.{bare_or_quoted(selection.policy)}")) from error
    if experiment.server.late == "buffer" and policy.judges:
        raise ConfigError(
            f'server.late = "buffer": {selection.policy} judges updates in their own round; must be "drop"'
        )
    if missing := sorted({*policy.disclosures} - experiment.disclosed):
        raise ConfigError(
            f'selection.policy = "{selection.policy}" needs clients to disclose their {" and ".join(missing)}:'
            f" add privacy.disclose = {json.dumps(missing)}, or set privacy.enabled = false"
        )


def _check_asynchronous(experiment: Experiment, policy: Policy) -> None:
    """Raise ConfigError if an experiment's settings do not fit asynchronous steps."""
    steps, server, mode = experiment.asynchronous, experiment.server, 'server.mode = "asynchronous"'
    places, buffer = f"asynchronous.concurrency = {steps.concurrency}", f"asynchronous.buffer = {steps.buffer}"
    if steps.buffer > steps.concurrency:
        raise ConfigError(f"{buffer}: must be at most {places}")
    if steps.concurrency > experiment.clients.count:
        raise ConfigError(f"{places}: must be at most clients.count = {experiment.clients.count}")
    if isinstance(policy, FedAt) and steps.concurrency != policy.tiers * steps.buffer:
        raise ConfigError(f"{places}: must be selection.fedat.tiers = {policy.tiers} times {buffer}")
    if steps.rule == "fedat" and experiment.aggregation.optimizer != ServerOptimizer():
        raise ConfigError('aggregation.optimizer: asynchronous.rule = "fedat" stands in its place; leave it out')
    if steps.staleness_max == 0 and steps.buffer > 1:
        raise ConfigError("asynchronous.staleness_max = 0: must be at least 1 unless asynchronous.buffer = 1")
    if policy.needs_rounds or policy.judges:
        raise ConfigError(
            f'selection.policy = "{experiment.selection.policy}": chooses or judges rounds as a whole, which {mode}'
            ' does not have; take another policy, such as "random" or "pause"'
        )
    if has_control(experiment.workload) or experiment.aggregation.optimizer.kind == "feddyn":
        raise ConfigError(
            f'workload.training = "{method_name(experiment.workload)}": its server\'s part needs rounds, which {mode}'
            ' does not have; take another method, such as "plain"'
        )
    of_rounds = {
        "selection.over_selection": (experiment.selection.over_selection, 0.0),
        "server.quorum": (server.quorum, 1.0),
        "server.late": (server.late, "drop"),
        "clients.batched": (experiment.clients.batched, "off"),
    }
    for key, (value, default) in of_rounds.items():
        if value != default:
            raise ConfigError(f"{key} = {json.dumps(value)}: goes with rounds alone; leave it out with {mode}")


def _check_feddyn(experiment: Experiment) -> None:
    """Raise ConfigError if only the clients or only the server take part in FedDyn."""
    on_clients = method_name(experiment.workload) == "feddyn"
    if on_clients != (experiment.aggregation.optimizer.kind == "feddyn"):
        here, there = 'workload.training = "feddyn"', 'aggregation.optimizer = "feddyn"'
        raise ConfigError(f"{here}: goes with {there}" if on_clients else f"{there}: goes with {here}")
