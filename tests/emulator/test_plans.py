"""What processes are handed: records of their own that travel by pickle, never the whole experiment."""

import pickle
from typing import Any

import numpy as np
import pytest

from pausefl.experiment.experiment import Experiment
from pausefl.experiment.loading import parse_experiment
from pausefl.results.labels import label_counts
from pausefl.runtime.client.links import make_links
from pausefl.runtime.client.plan import client_plan
from pausefl.runtime.evaluator.model import Evaluator
from pausefl.runtime.evaluator.plan import evaluator_plan
from pausefl.runtime.plan import plan_of
from pausefl.runtime.server.plan import EvaluatedModel, SyntheticModel
from pausefl.studies.simulation.outputs import setting_of

EXPERIMENT = """
clients.count = 4
clients.groups = { first = { count = 3 }, second = { count = 1, join_round = 3 } }
selection = { policy = "fastest", m = 2 }
latency.delay = { kind = "gamma", shape = 2.0, mean_s = 0.2 }
evaluation.subset = 50
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
    unaware = parse_experiment(EXPERIMENT, ["selection.policy=random"])
    assert plan_of(unaware, "run").server.oracle is None, "only policies that need them are told the true laws"


def test_server_and_evaluator_agree_on_what_is_evaluated() -> None:
    experiment = parse_experiment(EXPERIMENT)
    model = plan_of(experiment, "run").server.model
    assert isinstance(model, EvaluatedModel)
    assert model.evaluator.subject == evaluator_plan(experiment).subject
    other = parse_experiment(EXPERIMENT, ["evaluation.subset=51"])
    assert evaluator_plan(other).subject != model.evaluator.subject


# -- seeds of parts: the split, the first model and the latencies

TEXT = """
clients.count = 3
selection.m = 2
workload.examples = 300
latency.delay = { kind = "lognormal", mean_s = 0.1, sd_s = 0.05 }
"""


def experiment(**seeds: int) -> Experiment:
    return parse_experiment(TEXT, {f"experiment.{name}": seed for name, seed in seeds.items()})


def drawn(asked: Experiment) -> dict[str, list[float]]:
    """What each part of a run comes to."""
    plan, evaluated = client_plan(asked), evaluator_plan(asked)
    labels = label_counts(asked)
    assert labels is not None
    evaluator = Evaluator("digits", "mlp", seed=evaluated.seed, split_seed=evaluated.split_seed)
    links = make_links(plan.latency, plan.links, asked.client_ids, plan.latency_seed)
    delays = [links[client_id].draw(number).down_s for client_id in asked.client_ids for number in (1, 2)]
    simulated = next(iter(setting_of(asked).latencies_s(2)))
    return {
        "split": labels.counts.ravel().tolist(),
        "model": evaluator.initial.theta_0[:50].tolist(),
        "latency": [*delays, *simulated.ravel().tolist()],
    }


@pytest.mark.parametrize("part", ["split", "model", "latency"])
def test_a_part_with_a_seed_of_its_own_is_all_that_changes(part: str) -> None:
    before, after = drawn(experiment(seed=1)), drawn(experiment(seed=1, **{f"{part}_seed": 2}))
    assert {name for name, values in before.items() if values != after[name]} == {part}


def test_a_part_without_a_seed_of_its_own_follows_the_runs() -> None:
    before, after = drawn(experiment(seed=1)), drawn(experiment(seed=2))
    assert {name for name, values in before.items() if np.array_equal(values, after[name])} == set()
    pinned = drawn(experiment(seed=2, split_seed=1, model_seed=1, latency_seed=1))
    assert pinned == before
