"""What processes are handed: records of their own that travel by pickle, never the whole experiment."""

import pickle
from typing import Any

import pytest

from pausefl.experiment.loading import parse_experiment
from pausefl.runtime.evaluator.plan import evaluator_plan
from pausefl.runtime.plan import plan_of
from pausefl.runtime.server.plan import EvaluatedModel, SyntheticModel

EXPERIMENT = """
[clients]
count = 4
[clients.groups.first]
count = 3
[clients.groups.second]
count = 1
join_round = 3
[selection]
policy = "fastest"
m = 2
[latency.delay]
kind = "gamma"
shape = 2.0
mean_s = 0.2
[evaluation]
subset = 50
"""


@pytest.mark.parametrize("model", ["synthetic", "mlp"])
def test_plans_travel_and_hold_no_experiment(model: str) -> None:
    experiment = parse_experiment(EXPERIMENT, [f"workload.model={model}"])
    plan = plan_of(experiment, "run")
    plans: list[Any] = [plan.server, plan.clients]
    if model != "synthetic":
        plans.append(evaluator_plan(experiment))
    for plan in plans:
        sent = pickle.dumps(plan)
        assert b"pausefl.experiment.experiment" not in sent
        assert type(pickle.loads(sent)) is type(plan)


def test_the_server_is_told_what_its_experiment_says() -> None:
    experiment = parse_experiment(EXPERIMENT, ["workload.model=synthetic", "workload.model_bytes=400"])
    plan = pickle.loads(pickle.dumps(plan_of(experiment, "run").server))
    assert isinstance(plan.model, SyntheticModel)
    assert plan.model.manifest.size == 100
    assert plan.settings.expected is not None
    assert plan.settings.expected(1) < plan.settings.expected(3) == set(experiment.client_ids)
    assert plan.oracle is not None
    assert plan.oracle.mean_latency_s == pytest.approx(dict.fromkeys(experiment.client_ids, 0.2))


def test_only_policies_that_need_them_are_told_the_true_laws() -> None:
    assert plan_of(parse_experiment(EXPERIMENT, ["selection.policy=random"]), "run").server.oracle is None


def test_server_and_evaluator_agree_on_what_is_evaluated() -> None:
    experiment = parse_experiment(EXPERIMENT)
    model = plan_of(experiment, "run").server.model
    assert isinstance(model, EvaluatedModel)
    assert model.evaluator.subject == evaluator_plan(experiment).subject
    other = parse_experiment(EXPERIMENT, ["evaluation.subset=51"])
    assert evaluator_plan(other).subject != model.evaluator.subject
