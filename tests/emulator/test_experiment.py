"""An experiment's file: each mistake is one line with the key and the allowed values; what is valid is kept."""

import inspect
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import Parameter

from pausefl.experiment.client_records import method_of, partitioner_of
from pausefl.experiment.delays.laws import DELAYS, EXCHANGE_DELAYS
from pausefl.experiment.experiment import Experiment, load_experiment, parse_experiment
from pausefl.experiment.groups import behaviours_of, drift_laws_of, presence_of
from pausefl.experiment.in_force import config_toml, in_force
from pausefl.experiment.population.availability import AVAILABILITIES
from pausefl.experiment.population.behaviours import BEHAVIOURS
from pausefl.experiment.population.simulated_drifts import DRIFTS
from pausefl.experiment.server_records import aggregation_of, check_policies, optimizer_of, selected_policy
from pausefl.experiment.toml_source import preset_names
from pausefl.runtime.client.plan import client_plan
from pausefl.runtime.plan import plan_of
from pausefl.runtime.virtual.process import play_virtually
from pausefl_client.data.partition import PARTITIONERS
from pausefl_client.registries import (
    OPTIMIZER_DEFAULTS,
    OPTIMIZERS,
    SCHEDULE_DEFAULTS,
    SCHEDULES,
    TRAINING_DEFAULTS,
    TRAINING_METHODS,
)
from pausefl_client.training.optimizers import LearningRates, make_optimizer
from pausefl_proto.budget import Budget
from pausefl_proto.errors import ConfigError
from pausefl_server.model.aggregation import RULES
from pausefl_server.model.optimizers import SERVER_OPTIMIZERS
from pausefl_server.selection import POLICIES
from pausefl_server.selection.policies.baselines import Random
from rigs.experiments import small


def parse(*overrides: str, text: str = "") -> Experiment:
    """An experiment whose policy and training method are checked too, as every command does."""
    experiment = parse_experiment(text, overrides)
    check_policies(experiment)
    method_of(experiment.workload)
    return experiment


NETEM = "latency.delay.kind=none\nclients.per_process=1\nlatency.injection=netem\n"
# (overrides, how the message begins, which allowed values it must name)
MISTAKES = [
    # the asynchronous mode
    ("asynchronous.staleness={kind='hinge', slope=0.0}", "asynchronous.staleness.slope = 0.0", "above 0"),
    ("asynchronous.staleness=linear", 'asynchronous.staleness.kind = "linear"', "polynomial, constant, hinge"),
    # unknown keys; a close name is suggested
    ("clint.count=4", "clint: unknown key", "did you mean clients?"),
    ("a.b=4", "a: unknown key", "clients, evaluation, experiment, host, latency, metrics, privacy, selection"),
    ("privacy.epsilon=3", "privacy.epsilon: unknown key", "did you mean epsilon_budget or epsilon_floor?"),
    ("clients.zzz=3", "clients.zzz: unknown key", "count, examples_max, groups, ids, minimum, per_process"),
    ("latency.delay.flor_s=1.0", "latency.delay.flor_s: unknown key", "did you mean floor_s?"),
    ("selection.mm=3", "selection.mm: unknown key", "did you mean m?"),
    ("selection.pause=3", "selection.pause: unknown key", "m, over_selection, policy"),
    ("selection.pause.gama=1.0", "selection.pause.gama: unknown key", "did you mean gamma?"),
    ("selection.pause.m=3", "selection.pause.m: unknown key", "selection.m"),
    ("selection.pause.deep={x=1}", "selection.pause.deep: unknown key", "known keys: alpha, gamma, beta, zeta"),
    # types are strict
    ("experiment.rounds=2.5", "experiment.rounds = 2.5", "valid integer"),
    ("experiment.rounds=2026-01-01", "experiment.rounds = '2026-01-01'", "valid integer"),
    ("experiment.rounds.x=3", "experiment.rounds = {'x': 3}", "valid integer"),
    ("selection.m=true", "selection.m = True", "valid integer"),
    ("selection.policy=3", "selection.policy = 3", "valid string"),
    ("metrics.enabled=1", "metrics.enabled = 1", "true or false"),
    ("latency.delay=3", "latency.delay = 3", "a table"),
    ("privacy.disclose=loss", "privacy.disclose = 'loss'", "a list"),
    ("selection.pause.alpha=x", "selection.pause.alpha = 'x'", "valid number"),
    ("selection.pause.alpha=true", "selection.pause.alpha = True", "valid number"),
    ("selection.pause.window=2.0", "selection.pause.window = 2.0", "valid integer"),
    ("selection.pause.reward=r1", "selection.pause.reward = 'r1'", "'R1' or 'R2'"),
    ("selection.sa-pause.phi_g=3", "selection.sa-pause.phi_g = 3", "valid string"),
    ("tls.ca=3", "tls.ca = 3", "valid string"),
    ("admission.clients=3", "admission.clients = 3", "a list or a valid string"),
    # keys that depend on each other
    ("evaluation.address=evaluator", 'evaluation.address = "evaluator"', "HOST:PORT"),
    ("tls.key=a.key", 'tls.key = "a.key"', "needs tls.certificate as well"),
    ("privacy.enabled=false\nprivacy.ledger_dir=x", "privacy.enabled = false", "goes without privacy.ledger_dir only"),
    ("privacy.reproducible_noise=true\nprivacy.ledger_dir=x", "privacy.reproducible_noise", "goes without privacy.led"),
    # ranges
    ("experiment.rounds=0", "experiment.rounds = 0", "at least 1"),
    ("clients.minimum=31", "clients.minimum = 31", "at most clients.count = 30"),
    ("selection.m=31", "selection.m = 31", "at most clients.count = 30"),
    ("selection.m=-1", "selection.m = -1", "at least 1"),
    ("server.dead_after_s=1e9", "server.dead_after_s = 1000000000.0", "at most 1000000"),  # gRPC counts 32 bits of ms
    ("selection.over_selection=1e308", "selection.over_selection = 1e+308", "at most 1000000"),
    ("selection.pause.beta=0.5", "selection.pause.beta = 0.5", "above 1"),
    ("privacy.epsilon_budget=nan", "privacy.epsilon_budget = nan", "above 0"),
    ("privacy.epsilon_budget=inf", "privacy.epsilon_budget = inf", "finite number"),
    ("privacy.clip=0.0", "privacy.clip = 0.0", "at least 1e-20"),
    ("privacy.clip=1e38", "privacy.clip = 1e+38", "at most 1e+20"),
    ("privacy.epsilon_floor=99.0", "privacy.epsilon_floor = 99", "at most epsilon_1 = 3.92106"),
    ("privacy.noise_to_clip_max=0.1", "privacy.noise_to_clip_max = 0.1", "at least 2/epsilon_1 = 0.510067"),
    ("latency.time_scale=0.0", "latency.time_scale = 0.0", "at least 1e-06"),
    ("latency.access_points=[{clients='a', up_bytes_per_s=inf}]", "latency.access_points.0.up_bytes", "finite number"),
    ("latency.tau_min_s=0.0", "latency.tau_min_s = 0.0", "above 0 or 'auto'"),
    ("latency.tau_min_s=least", "latency.tau_min_s = 'least'", "valid number or 'auto'"),
    ("latency.delay.floor_s=nan", "latency.delay.floor_s = nan", "finite number"),
    ("workload.learning_rate=nan", "workload.learning_rate = nan", "above 0"),
    ("workload.model_bytes=5", "workload.model_bytes = 5", "multiple of 4"),
    ("server.port=65536", "server.port = 65536", "at most 65535"),
    ("workload.optimizer_options={weight_decay=inf}", "workload.optimizer_options.weight_decay = inf", "finite number"),
    ("workload.optimizer_options={betas=[0.9, nan]}", "workload.optimizer_options.betas.1 = nan", "finite number"),
    ('workload.training={kind="moon", mu=-inf}', "workload.training.mu = -inf", "finite number"),
    # choices
    ("privacy.unit=scalar", "privacy.unit = 'scalar'", "'coordinate' or 'vector'"),
    ('privacy.disclose=["lossy"]', "privacy.disclose.0 = 'lossy'", "'loss'"),
    ("latency.signal=rtt", "latency.signal = 'rtt'", "'round_trip' or 'communication'"),
    ("latency.delay.kind=some", 'latency.delay.kind = "some"', "one of none, constant, normal"),
    ("workload.optimizer=x", 'workload.optimizer = "x"', "must be one of adam, sgd, adamw"),
    ("workload.device=gpu", "workload.device = 'gpu'", "'auto', 'cpu' or 'cuda' or 'cuda:N'"),
    ("selection.policy=zzz", 'selection.policy = "zzz"', "pause, pause-brute, sa-pause, genie"),
    ("selection.puase.alpha=1.0", "selection.puase", "did you mean pause"),
    ("selection.policy=no.such:Policy", 'selection.policy = "no.such:Policy"', "No module named"),
    ("selection.pause.clusters={client-zzz=1}", "selection.pause.clusters.client-zzz", "the id of a client, such as"),
    ("selection.pause.clusters={client-000=-2}", "selection.pause.clusters.client-000 = -2", "must be at least 0"),
    ("selection.sa-pause={reward='R2', phi_g='json:loads'}", "selection.sa-pause.phi_g = 'json:loads'", "must be"),
    ("selection.policy=json:JSONDecoder", 'selection.policy = "json:JSONDecoder"', "must be a subclass"),
    ("selection.package.mine:Policy.alpha=2", "selection.package: must be one of ", "a name with dots must be quoted"),
    ("selection.policy=oort", 'selection.policy = "oort"', 'to disclose their loss: add privacy.disclose = ["loss'),
    ("selection.policy=pause-brute\nselection.m=15", 'selection.policy = "pause-brute"', "155,117,520 sets of 15 of"),
    # checked even if nothing is learned
    ("workload.dataset=mnst\nworkload.model=synthetic", 'workload.dataset = "mnst"', "did you mean mnist"),
    ("workload.partition=sorted", 'workload.partition.kind = "sorted"', "must be one of iid, dominant-label"),
    ("workload.partition=dirichlet", 'workload.partition = "dirichlet"', 'is ambiguous; "dominant-label"'),
    ('workload.partition={kind="label-dirichlet", concentration=1e308}', "workload.partition.concentration", "1e+100"),
    ('workload.partition={kind="dominant-label", dominant_share=1.5}', "workload.partition.dominant_share", "= 1.5"),
    ('workload.partition={kind="label-dirichlet", alpha=1.0}', "workload.partition.alpha", "unknown key"),
    ("workload.training=plane", 'workload.training.kind = "plane"', "did you mean plain"),
    ("workload.training={mu=1.0}", "workload.training.kind", "must be one of plain"),
    ('workload.training={kind="fedprox"}', "workload.training.mu", "is missing"),
    ('workload.training={kind="fedprox", mu=-1.0}', "workload.training.mu = -1.0", "must be"),
    ('workload.training={kind="fedprox", nu=1.0}', "workload.training.nu", "unknown key"),
    ("workload.training=torch.nn:Linear", "workload.training", "a subclass of pausefl_client.training.method.Training"),
    ("workload.training=fedprox\nworkload.proximal_mu=1.0", "workload.proximal_mu", "goes with"),
    ("aggregation.rule=mode", 'aggregation.rule.kind = "mode"', "must be one of fedavg, norm-clip"),
    ("aggregation.rule={kind=[1]}", "aggregation.rule.kind = [1]", "must be one of fedavg, norm-clip"),
    ("aggregation.optimizer=lion", 'aggregation.optimizer.kind = "lion"', "must be one of sgd, fedavgm"),
    ("aggregation.optimizer.tau=nan", "aggregation.optimizer.tau = nan", "must be above 0"),
    # methods of two keys, of which one is missing
    ('workload.training={kind="feddyn", alpha=0.1}', "workload.training", 'with aggregation.optimizer = "feddyn"'),
    ("aggregation.optimizer=feddyn", "aggregation.optimizer", '"feddyn": goes with workload.training = "feddyn"'),
    ('aggregation.optimizer={kind="feddyn", tau=0.1}', "aggregation.optimizer.tau", "unknown key"),
    ("selection.policy=pns\nselection.pns.beta=2.0", "selection.pns.beta = 2.0", "must be at most 1"),
    ("selection.policy=pns\nserver.late=buffer", 'server.late = "buffer"', "pns judges updates"),
    ("workload.statistics=average", 'workload.statistics = "average"', 'add privacy.disclose = ["statistics"], or set'),
    (
        "workload.statistics=average\nworkload.training=fedbn\nprivacy.enabled=false",
        "workload.statistics",
        "goes withou",
    ),
    (NETEM + "metrics.client_port=0", "metrics.client_port = 0", "clients in network namespaces"),
    # more than memory can hold
    ("clients.count=1_000_001", "clients.count = 1000001", "must be at most 1000000"),
    ("workload.model_bytes=4294967300", "workload.model_bytes = 4294967300", "must be at most"),
    # no override at all
    ("experiment=3", "--set experiment=3", "must be table.key=value"),
    ("experiment.rounds", "--set experiment.rounds", "must be table.key=value"),
    ("=3", "--set =3", "must be table.key=value"),
    (".rounds=3", "--set .rounds=3", "must be table.key=value"),
    ("experiment.=3", "--set experiment.=3", "must be table.key=value"),
]


@pytest.mark.parametrize(("overrides", "names", "allows"), MISTAKES)
def test_a_mistake_is_one_line_that_names_the_key_and_what_is_allowed(overrides: str, names: str, allows: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(names)}.*{re.escape(allows)}") as caught:
        parse(*overrides.splitlines())
    assert "\n" not in str(caught.value)


def test_what_would_be_a_mistake_elsewhere_is_none() -> None:
    assert parse("selection.policy=oort", 'privacy.disclose=["loss"]').selection.policy == "oort"
    assert parse("selection.policy=oort", "privacy.enabled=false").selection.policy == "oort"
    assert selected_policy(parse("selection.policy=pause-brute").selection).m == 5
    asked = parse("selection.m=25", "selection.over_selection=0.12").asked
    assert asked == 28, "25 times 1.12 is more than that by rounding"
    few = ("clients.count=4", "asynchronous.concurrency=4", "asynchronous.buffer=2")
    assert parse("server.mode=asynchronous", *few).selection.m == 5
    assert parse("selection.policy=random", "workload.model=synthetic").title == "random on synthetic"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("experiment = 3", "experiment = 3: must be a table"),
        ("rounds = 3", "rounds: unknown key; known keys: admission, aggregation, asynchronous, clients,"),
        ("[[clients]]\ncount = 1", "clients = "),
        ("[experiment]\nrounds = 3\nrounds = 4", "not valid TOML"),
        ("[experiment", "not valid TOML: "),
        (f"rounds = {'9' * 5000}", "not valid TOML: Exceeds the limit"),
        (f"rounds = {'[' * 2000}", "not valid TOML: maximum recursion depth"),
        ("[selection]\nm = 31\n", "selection.m = 31: must be at most clients.count = 30"),
    ],
)
def test_a_mistake_of_a_file_is_told_with_its_name(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"^(the experiment: )?{re.escape(message)}"):
        parse(text=text)
    (file := tmp_path / "mine.toml").write_text(text)
    with pytest.raises(ConfigError, match=f"^{re.escape(f'{file}: {message}')}"):
        load_experiment(str(file))


def test_brute_force_is_bounded_by_how_many_clients_there_are_at_once() -> None:
    """Thirty clients in all, but ten of them leave before twenty others join."""
    groups = "[clients.groups.early]\ncount = 10\nleave_round = 5\n[clients.groups.late]\ncount = 20\njoin_round = {}\n"
    chosen = "selection.policy=pause-brute", "selection.m=10"
    assert selected_policy(parse(*chosen, text=groups.format(5)).selection).m == 10
    with pytest.raises(ConfigError, match="30,045,015 sets of 10 of 30"):
        parse(*chosen, text=groups.format(4))


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["asynchronous.buffer=11"], "asynchronous.buffer = 11: must be at most asynchronous.concurrency = 10"),
        (["asynchronous.concurrency=31"], "asynchronous.concurrency = 31: must be at most clients.count = 30"),
        (["asynchronous.staleness_max=0"], "asynchronous.staleness_max = 0: must be at least 1 unless"),
        (["selection.policy=fed-ts"], 'selection.policy = "fed-ts": chooses or judges rounds as a whole'),
        (["selection.policy=clustered"], 'selection.policy = "clustered": chooses or judges rounds as a whole'),
        (["selection.policy=pow-d", "privacy.enabled=false"], 'selection.policy = "pow-d": chooses or judges rounds'),
        (["workload.training=scaffold"], 'workload.training = "scaffold": its server\'s part needs rounds'),
        (["asynchronous.rule=fedat"], 'asynchronous.rule = "fedat": goes with selection.policy = "fedat"'),
        (["server.quorum=0.5"], "server.quorum = 0.5: goes with rounds alone"),
        (["server.late=buffer"], 'server.late = "buffer": goes with rounds alone'),
    ],
)
def test_what_needs_rounds_is_refused_in_an_asynchronous_run(overrides: list[str], says: str) -> None:
    assert not parse(*overrides).is_asynchronous
    with pytest.raises(ConfigError, match=re.escape(says)):
        parse("server.mode=asynchronous", *overrides)


@pytest.mark.parametrize("of_steps", [(), ("server.mode=asynchronous",), ("asynchronous.rule=fedat",)])
def test_fedat_is_a_policy_and_a_rule_of_steps(of_steps: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match=r'^selection.policy = "fedat": goes with server.mode = "asynchronous" and'):
        parse("selection.policy=fedat", *of_steps)
    both = ("selection.policy=fedat", "server.mode=asynchronous", "asynchronous.rule=fedat")
    with pytest.raises(ConfigError, match=r"^asynchronous.concurrency = 10: must be selection.fedat.tiers = 5 times "):
        parse(*both)
    assert parse(*both, "selection.fedat.tiers=2").is_asynchronous
    with pytest.raises(ConfigError, match=r"^aggregation.optimizer: asynchronous.rule"):
        parse(*both, "selection.fedat.tiers=2", "aggregation.optimizer=fedadam")


def test_overrides_come_after_the_file_and_the_last_one_wins(tmp_path: Path) -> None:
    """The file may begin with a byte order mark."""
    (tmp_path / "mine.toml").write_text("[experiment]\nrounds = 3\n", encoding="utf-8-sig")
    assert load_experiment(str(tmp_path / "mine.toml")).experiment.rounds == 3
    with pytest.raises(ConfigError, match=r"^--set rounds: must be table\.key=value"):  # no key of the file
        load_experiment(str(tmp_path / "mine.toml"), ["rounds"])
    text = "[experiment]\nrounds = 3\nseed = 9\n[selection.pause]\nalpha = 2.0"
    experiment = parse("experiment.rounds=4", "experiment.rounds=5", "selection.pause.gamma=7.0", text=text)
    assert (experiment.experiment.rounds, experiment.experiment.seed) == (5, 9)
    assert experiment.selection.parameters("pause") == {"alpha": 2.0, "gamma": 7.0}


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("selection.policy=random", "random"),
        ('selection.policy="random"', "random"),
        (" selection.policy = random ", "random"),
        ("workload.dataset=package.module:factory", "package.module:factory"),
        ("server.host=a=b", "a=b"),
        ("latency.tau_min_s=auto", "auto"),
        ("latency.tau_min_s=1", 1.0),
        ("latency.tau_min_s=1e-3", 0.001),
        ("privacy.enabled=false", False),
        ('privacy.disclose=["loss"]', ("loss",)),
    ],
)
def test_an_override_is_a_toml_value_or_plain_text(override: str, value: Any) -> None:
    table, _, key = override.partition("=")[0].strip().partition(".")
    found = getattr(getattr(parse_experiment("", [override]), table), key)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("key", "policy"),
    [
        ("selection.pause.alpha", "pause"),
        ("selection.mine:Policy.alpha", "mine:Policy"),
        ('selection."mine:Policy".alpha', "mine:Policy"),
        ('selection."package.mine:Policy".alpha', "package.mine:Policy"),
        ("selection.'package.mine:Policy'.\"alpha\"", "package.mine:Policy"),
    ],
)
def test_a_part_of_a_key_may_be_quoted(key: str, policy: str) -> None:
    """A name with dots must be quoted."""
    of_texts, of_values = parse_experiment("", [f"{key}=2"]), parse_experiment("", {key: 2})
    assert of_texts.selection.parameters(policy) == of_values.selection.parameters(policy) == {"alpha": 2}


@pytest.mark.parametrize("key", ["selection", "selection.", 'selection."pause', '"selection.m"', 'selection."a"b.c'])
@pytest.mark.parametrize("of", [lambda key: [f"{key}=2"], lambda key: {key: 2}], ids=["texts", "values"])
def test_a_key_that_names_no_key_of_a_table_is_refused(key: str, of: Callable[[str], Any]) -> None:
    with pytest.raises(ConfigError):
        parse_experiment("", of(key))


# Values of parameters without a default, by parameter name.
GIVEN: dict[str, Any] = {
    "of": {"kind": "exponential", "mean_s": 0.1}, "good": {"kind": "none"}, "bad": {"kind": "none"},
    "rounds": [1], "factors": [2.0], "windows": [[2, 3]], "values_s": [0.1], "weights": [1.0], "milestones": [2],
}  # fmt: skip
LISTED = {"sum", "mixture", "schedule"}  # kinds whose `of` is a list
OF_A_FILE = {"empirical", "trace"}
# `lr` and `last_epoch` follow from other keys (learning rate, length of the run); the rest say how to compute.
NOT_IN_FORCE = {"lr", "last_epoch", "foreach", "maximize", "capturable", "differentiable", "fused", "_rows"}


def defaults_of(kind: str, code: Callable[..., Any] | None) -> dict[str, Any]:
    """A kind's parameters and defaults, as its code has them, without those that some versions of torch refuse."""
    parameters = inspect.signature(code).parameters.values() if code else ()
    refused = {"decoupled_weight_decay"} if kind == "adam" else set[str]()
    found = {p.name: p.default for p in parameters if p.default not in (p.empty, None)}
    return {name: value for name, value in found.items() if name not in NOT_IN_FORCE | refused}


def documents() -> Iterator[Any]:
    """A document for each kind that an experiment can name, with its required parameters only."""
    places: list[tuple[Mapping[str, Any], Callable[[Any], dict[str, Any]]]] = [
        (EXCHANGE_DELAYS, lambda table: {"latency": {"delay": table}}),
        (DELAYS, lambda table: {"workload": {"training_time": table}}),
        (BEHAVIOURS, lambda table: {"clients": {"groups": {"a": {"count": 9, "behaviours": [table]}}}}),
        (AVAILABILITIES, lambda table: {"clients": {"groups": {"a": {"count": 9, "availability": table}}}}),
        (DRIFTS, lambda table: {"clients": {"groups": {"a": {"count": 9, "drift": table}}}}),
        (PARTITIONERS, lambda table: {"workload": {"partition": table}}),
        (TRAINING_METHODS, lambda table: {"workload": {"training": table}}),
        (SCHEDULES, lambda table: {"workload": {"schedule": table}}),
        (OPTIMIZERS, lambda table: {"workload": {"optimizer": table["kind"]}}),
        (POLICIES, lambda table: {"selection": {"policy": table["kind"]}}),
        (dict.fromkeys(RULES), lambda table: {"aggregation": {"rule": table["kind"]}}),
        (SERVER_OPTIMIZERS, lambda table: {"aggregation": {"optimizer": table}}),
    ]
    for kinds, document in places:
        for kind in sorted(kinds.keys() - OF_A_FILE):
            yield pytest.param(kinds, kind, document, id=f"{getattr(kinds, 'kind', 'rules')}-{kind}")


@pytest.mark.parametrize(("kinds", "kind", "document"), list(documents()))
def test_a_config_holds_every_value_in_force(
    kinds: Mapping[str, Any], kind: str, document: Callable[[Any], dict[str, Any]]
) -> None:
    table: dict[str, Any] = {"kind": kind, **({"floor_s": 0.0} if kind == "normal" else {})}
    for parameter in inspect.signature(kinds[kind]).parameters.values() if kinds[kind] else ():
        if parameter.default is parameter.empty and parameter.name not in {"optimizer", "params", "m"}:
            whole = "int" in str(parameter.annotation) or parameter.name in {"step_size", "T_max", "T_0"}
            given = GIVEN.get(parameter.name, 2 if whole else 0.5)
            table[parameter.name] = [given] if parameter.name == "of" and kind in LISTED else given
    said = document(table)
    if kind == "feddyn":
        said = {"workload": {"training": {"kind": kind, "alpha": 0.1}}, "aggregation": {"optimizer": {"kind": kind}}}
    experiment = parse_experiment(tomli_w.dumps(said))
    assert_config_is_in_force(experiment)
    text = config_toml(in_force(experiment))
    assert [name for name in defaults_of(kind, kinds[kind]) if name not in text] == []


@pytest.mark.parametrize(
    ("kinds", "listed"),
    [(OPTIMIZERS, OPTIMIZER_DEFAULTS), (SCHEDULES, SCHEDULE_DEFAULTS), (TRAINING_METHODS, TRAINING_DEFAULTS)],
)
def test_listed_defaults_are_those_of_the_code(kinds: Mapping[str, Any], listed: Mapping[str, Any]) -> None:
    for kind in kinds:
        code = {k: list(v) if isinstance(v, tuple) else v for k, v in defaults_of(kind, kinds[kind]).items()}
        assert listed.get(kind, {}) == code, kind


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_survives_being_written_down_with_all_its_defaults(name: str, tmp_path: Path) -> None:
    experiment = load_experiment(name)
    check_policies(experiment)
    written = tmp_path / "config.toml"
    written.write_text(experiment.to_toml())
    assert load_experiment(str(written)) == experiment
    assert_config_is_in_force(experiment)


def assert_config_is_in_force(experiment: Experiment) -> None:
    """Check that the config of a run, parsed again, gives the same records and the same values."""
    text = config_toml(in_force(experiment))
    again = parse_experiment(text)
    assert config_toml(in_force(again)) == text
    for resolved in (
        lambda e: selected_policy(e.selection),
        lambda e: repr(client_plan(e).links),
        lambda e: repr(client_plan(e).training.training_times),
        lambda e: aggregation_of(e.aggregation),
        lambda e: optimizer_of(e.aggregation.optimizer),
        lambda e: partitioner_of(e.workload),
        lambda e: repr([behaviours_of(e.groups)]),
        lambda e: repr([presence_of(e.groups, 9, 1)]),
        lambda e: repr(drift_laws_of(e.groups)) if all(g.drift for g in e.groups.values()) else "",
        lambda e: vars(method_of(e.workload)),
        lambda e: json.dumps(make_optimizer(e.workload, [Parameter(torch.zeros(1))]).defaults),
        lambda e: [LearningRates(e.workload).at(t) for t in (1, 4)] if e.workload.schedule else [],
    ):
        assert resolved(again) == resolved(experiment)


@settings(max_examples=20)
@given(st.text(max_size=20), st.floats(0, 1e6), st.just("auto") | st.floats(1e-6, 10))
def test_any_value_survives_being_written_down(host: str, alpha: float, tau_min_s: str | float) -> None:
    values = {"server.host": host, "selection.pause.alpha": alpha, "latency.tau_min_s": tau_min_s}
    values["selection.sa-pause.time_cap_s"] = math.inf
    experiment = parse_experiment("", values)
    assert parse_experiment(experiment.to_toml()) == experiment


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("demmo", '"demmo" is neither a .toml file nor a preset; did you mean demo'),
        ("no-such-preset", '"no-such-preset" is neither a .toml file nor a preset; presets: demo,'),
        ("{folder}", "is neither"),
        *((f"{{folder}}/{name}.toml", f"{name}.toml: cannot be read") for name in ("missing", "binary", "folder")),
    ],
)
def test_what_is_no_file_and_no_preset_or_cannot_be_read_is_named(name: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_experiment(name.format(folder=tmp_path))


@pytest.mark.parametrize(("count", "last"), [(1, "client-000"), (1000, "client-999"), (1001, "client-1000")])
def test_client_ids_sort_as_they_count(count: int, last: str) -> None:
    ids = parse(f"clients.count={count}", "selection.m=1").client_ids
    assert ids == sorted(set(ids))
    assert (len(ids), ids[-1]) == (count, last)


def test_round_1_waits_for_everybody_and_tau_min_is_estimated_unless_said() -> None:
    assert [parse(f"clients.{said}").minimum_clients for said in ("count=9", "minimum=7")] == [9, 7]
    assert [parse(f"latency.tau_min_s={said}").tau_min_s for said in ("0.25", "auto")] == [0.25, None]


def test_privacy_is_all_or_nothing_and_what_changes_it_changes_what_both_ends_compare() -> None:
    on, off = parse(), parse("privacy.enabled=false")
    assert all((on.privacy.budget, on.privacy.mechanism, on.privacy.schedule))
    assert (off.privacy.budget, off.privacy.mechanism, off.privacy.schedule) == (None, None, "")

    of_budget = ("epsilon_budget=9.0", "eta=0.5", "epsilon_floor=0.5")
    for change in (*of_budget, "unit=vector", "clip=0.0030000001", "reproducible_noise=true"):
        assert parse(f"privacy.{change}").privacy.schedule != on.privacy.schedule, change
    for greatest in (2.0, 4.0):  # of which 2/2.0 and 2/4.0 are the least ε
        both = parse("privacy.epsilon_floor=0.75", f"privacy.noise_to_clip_max={greatest}").privacy
        assert both.budget == Budget(both.epsilon_budget, both.eta, max(0.75, 2 / greatest))


def test_ledgers_and_data_lie_beside_the_file_wherever_it_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If they were sought in the working directory, each folder would get new ledgers, with a new budget."""
    (tmp_path / "mine/images").mkdir(parents=True)
    text = '[privacy]\nledger_dir = "holders"\n[workload]\ndataset = "hf:images?label=kind"\n'
    (tmp_path / "mine/mine.toml").write_text(text)
    for folder in (tmp_path, tmp_path / "mine"):
        monkeypatch.chdir(folder)
        loaded = load_experiment(str(tmp_path / "mine/mine.toml"))
        assert loaded.privacy.ledger_dir == str(tmp_path / "mine/holders")
        assert loaded.workload.dataset == f"hf:{tmp_path}/mine/images?label=kind"
    hub = load_experiment(str(tmp_path / "mine/mine.toml"), ["workload.dataset=hf:flwrlabs/femnist"])
    assert hub.workload.dataset == "hf:flwrlabs/femnist"
    for name in ("said", "2026-03-01"):  # the latter is a date
        said = load_experiment(str(tmp_path / "mine/mine.toml"), [f"privacy.ledger_dir={name}"])
        assert said.privacy.ledger_dir == str(tmp_path / f"mine/{name}")
    assert load_experiment("demo", ["privacy.ledger_dir="]).privacy.ledger_dir == ""


class Way(Enum):
    FIRST, LAST = "first", "last"


@dataclass(frozen=True)
class Typed(Random):
    way: Way = Way.FIRST
    ways: frozenset[Way] = frozenset()
    rank: int = field(init=False, default=0)


def test_a_summary_is_json_whatever_a_policy_takes_and_a_resumed_run_has_the_same_policy(tmp_path: Path) -> None:
    """JSON has no infinity: `jq`, browsers and other languages once refused the summary of every run with sa-pause."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    for chosen, told in (
        ({"selection.policy": "sa-pause", "selection.sa-pause.steps": 5}, {"time_cap_s": None}),
        ({"selection.policy": Typed(2, Way.LAST, frozenset(Way))}, {"m": 2, "way": "last", "ways": ["first", "last"]}),
    ):
        experiment = small(chosen)
        play_virtually(plan_of(experiment, "run"), tmp_path, lambda _: None)
        summary = json.loads((tmp_path / "summary.json").read_text("utf-8"), parse_constant=refuse)
        assert summary["policy_parameters"].items() >= told.items()
        again = parse_experiment(config_toml(in_force(experiment)))
        assert selected_policy(again.selection) == selected_policy(experiment.selection)
