"""The server's side of an experiment as records: policy, aggregation, optimizer, host limits, admission.

This module imports the server, so a client never imports it.
"""

import json
from typing import Any

from pausefl.config.client_records import method_name, tls_of
from pausefl.config.experiment import Experiment
from pausefl.config.groups import presence_of
from pausefl.config.kinds import made, read_kind
from pausefl.config.tables import AggregationTable, HostTable, KindTable, OptimizerTable, SelectionTable
from pausefl.config.toml_source import bare_or_quoted
from pausefl.config.validation import build, of_record
from pausefl_process.tokens import read_token_digests
from pausefl_proto.addresses import is_loopback
from pausefl_proto.errors import ConfigError
from pausefl_server.host_limits import HostLimits
from pausefl_server.model.aggregation import RULES, Aggregation, AggregationRule
from pausefl_server.model.optimizers import SERVER_OPTIMIZERS, Optimizer, ServerOptimizer
from pausefl_server.rounds.admission import Admission
from pausefl_server.selection import Policy, policy_class


def selected_policy(selection: SelectionTable, name: str = "") -> Policy:
    """The policy that is selected, or the one of this name, with its parameters checked; ConfigError."""
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
    policy: Policy = build(found, table, {"m": selection.asked, **parameters})
    return policy


def _has_own_init(policy: type[Policy]) -> bool:
    """Whether its `__init__` is no dataclass's own: it is not called where a dataclass is built of checked values."""
    init = next(vars(each)["__init__"] for each in policy.__mro__ if "__init__" in vars(each))
    code = getattr(init, "__code__", None)
    return code is None or code.co_filename != "<string>"  # dataclasses make theirs of a text


def aggregation_of(table: AggregationTable) -> Aggregation:
    """How updates are combined; ConfigError."""
    values = table.model_dump(exclude={"optimizer"})
    if not (isinstance(table.rule, str) and table.rule in RULES):
        values["rule"] = _own_rule(table.rule)
    rule: Aggregation = made(Aggregation, values, "aggregation")
    return rule


def _own_rule(rule: str | dict[str, Any]) -> AggregationRule:
    if isinstance(rule, dict) and rule.get("kind") in RULES:
        raise ConfigError(
            f'aggregation.rule.kind = "{rule["kind"]}": is written aggregation.rule = "{rule["kind"]}"; its parameters'
            " belong in [aggregation]"
        )
    own: AggregationRule = read_kind(RULES, rule, "aggregation.rule")
    return own


def optimizer_of(table: OptimizerTable | KindTable) -> Optimizer:
    """How the combined update moves the model; ConfigError."""
    if isinstance(table, KindTable):
        own: Optimizer = read_kind(SERVER_OPTIMIZERS, table.model_dump(), "aggregation.optimizer")
        return own
    optimizer: ServerOptimizer = made(ServerOptimizer, table.model_dump(), "aggregation.optimizer")
    return optimizer


def limits_of(table: HostTable) -> HostLimits:
    """What a host may do to a measurement before it is suspect."""
    return HostLimits(**table.model_dump())


def admission_of(experiment: Experiment) -> Admission:
    """Who may join; ConfigError where other machines could reach a server that asks clients to show nothing."""
    table, server, tls = experiment.admission, experiment.server, tls_of(experiment.tls)
    if table.by_certificate and (tls is None or not tls.ca):
        raise ConfigError("admission.by_certificate = true: needs tls.ca, which signs the clients' certificates")
    tokens = read_token_digests(table.tokens) if table.tokens else {}
    admission = Admission(experiment.admitted_ids, table.by_certificate, tokens)
    if not (is_loopback(server.host) or server.insecure) and (tls is None or admission.is_open):
        raise ConfigError(
            f'server.host = "{server.host}": other machines can reach it; set [tls] and [admission] (pausefl certs'
            " makes what they need), or say --insecure"
        )
    return admission


def check_policies(experiment: Experiment) -> None:
    """That every policy named and the aggregation exist and take their parameters; raises ConfigError."""
    aggregation_of(experiment.aggregation)
    optimizer_of(experiment.aggregation.optimizer)
    _check_feddyn(experiment)
    selection = experiment.selection
    for name, parameters in (selection.__pydantic_extra__ or {}).items():
        try:
            selected_policy(selection, name)
        except ConfigError as error:
            # The name is the table's key, not a value of it.
            hint = "; a name with dots must be quoted" if any(":" in key for key in parameters) else ""
            raise ConfigError(str(error).replace(f' = "{name}"', "", 1) + hint) from error
    policy = selected_policy(selection)
    if policy.needs_oracle:
        for law in experiment.delays().values():
            _ = law.mean_s  # ConfigError where it has none that could be told
    try:
        policy.check_clients(experiment.client_ids, _at_once(experiment))
    except ValueError as error:
        raise ConfigError(of_record(error, f"selection.{bare_or_quoted(selection.policy)}")) from error
    if experiment.server.late == "buffer" and type(policy).inspect is not Policy.inspect:
        raise ConfigError(
            f'server.late = "buffer": {selection.policy} judges updates in their own round; must be "drop"'
        )
    if missing := sorted(policy.disclosures - experiment.disclosed):
        raise ConfigError(
            f'selection.policy = "{selection.policy}" needs clients to disclose their {" and ".join(missing)}:'
            f" add privacy.disclose = {json.dumps(missing)}, or set privacy.enabled = false"
        )


def _check_feddyn(experiment: Experiment) -> None:
    """ConfigError where only one end does its part of FedDyn."""
    on_clients = method_name(experiment.workload) == "feddyn"
    if on_clients != (experiment.aggregation.optimizer.kind == "feddyn"):
        here, there = 'workload.training = "feddyn"', 'aggregation.optimizer = "feddyn"'
        raise ConfigError(f"{here}: goes with {there}" if on_clients else f"{there}: goes with {here}")


def _at_once(experiment: Experiment) -> int:
    """The most clients there are in a round."""
    presence = presence_of(experiment.groups, experiment.experiment.rounds, experiment.experiment.seed)
    return experiment.clients.count if presence is None else int(presence.table.sum(axis=1).max())
