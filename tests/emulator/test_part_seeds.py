"""The split, the first model and the latencies can be drawn anew one at a time, while the rest of a run repeats."""

import numpy as np
import pytest

from pausefl.experiment.experiment import Experiment
from pausefl.experiment.loading import parse_experiment
from pausefl.results.labels import label_counts
from pausefl.runtime.client.links import make_links
from pausefl.runtime.client.plan import client_plan
from pausefl.runtime.evaluator.model import Evaluator
from pausefl.runtime.evaluator.plan import evaluator_plan
from pausefl.studies.simulation.outputs import setting_of

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
