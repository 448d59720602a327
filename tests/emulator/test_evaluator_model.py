"""The evaluator: θ_0 from the seed, accuracy and loss on public data."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from pausefl.runtime.evaluator.model import Evaluator
from pausefl_client.data.datasets import load_dataset
from pausefl_client.training.model_vector import ModelVector
from pausefl_client.training.models import build_model
from pausefl_server.records import Split

DIGITS = load_dataset("digits", seed=1)


@pytest.fixture(scope="module")
def evaluator() -> Evaluator:
    return Evaluator("digits", "mlp", seed=1, subset_examples=100)


def always(label: int, evaluator: Evaluator) -> np.ndarray:
    """θ of a model that gives `label` a logit of 5 and every other 0, whatever it sees."""
    theta = np.zeros_like(evaluator.initial.theta_0)
    evaluator.initial.manifest.split(theta)[evaluator.initial.manifest.tensors[-1].name][label] = 5.0
    return theta


def test_theta_0_depends_on_the_seed_alone(evaluator: Evaluator) -> None:
    assert np.array_equal(evaluator.initial.theta_0, ModelVector(build_model("mlp", (1, 8, 8), 10, 1)).values())
    assert evaluator.initial.theta_0.shape == (evaluator.initial.manifest.size,) == (2778,)
    assert not np.array_equal(evaluator.initial.theta_0, Evaluator("digits", "mlp", seed=2).initial.theta_0)


@pytest.mark.parametrize("split", ["validation", "test"])
def test_accuracy_and_loss_over_all_of_a_split(evaluator: Evaluator, split: Split) -> None:
    examples = DIGITS.test if split == "test" else DIGITS.validation
    share = float(np.mean(examples.labels == 3))
    found = evaluator.evaluate(always(3, evaluator), [split], subset=False).evaluations[0]
    assert (found.split, found.subset, found.n_examples, found.accuracy) == (split, False, len(examples), share)
    # Cross-entropy of logits (5, 0, …, 0): log(e⁵ + 9) less the logit of the right label.
    assert found.loss == pytest.approx(np.log(np.exp(5) + 9) - 5 * share, rel=1e-5)


def share_of(label: int, evaluator: Evaluator) -> float:
    """That of a label in the test set's subset."""
    return evaluator.evaluate(always(label, evaluator), ["test"], subset=True).evaluations[0].accuracy


def test_the_subset_is_fixed_and_a_part(evaluator: Evaluator) -> None:
    counts = [share_of(k, evaluator) * 100 for k in range(10)]
    assert sum(counts) == pytest.approx(100)
    whole = np.bincount(DIGITS.test.labels, minlength=10)
    assert all(0 < part < all_ for part, all_ in zip(counts, whole, strict=True))
    same = Evaluator("digits", "mlp", seed=1, subset_examples=100)
    assert [share_of(k, same) * 100 for k in range(10)] == counts


def test_the_subset_of_a_small_split_is_all_of_it() -> None:
    theta = np.zeros(2778, np.float32)
    (evaluation,), _ = Evaluator("digits", "mlp", seed=1).evaluate(theta, ["validation"], subset=True)
    assert (evaluation.n_examples, evaluation.subset) == (297, True)


def test_a_new_thread_evaluates_as_one_that_has_computed_before() -> None:
    torch.set_num_threads(1)  # of this thread, as an evaluator has it
    evaluator = Evaluator("digits", "mlp", seed=1, subset_examples=10)
    theta = np.random.default_rng(1).normal(0, 1, 2778).astype(np.float32)
    here = evaluator.evaluate(theta, ["test"], subset=True).evaluations[0]
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(evaluator.evaluate, theta, ["test"], subset=True).result().evaluations[0] == here


def test_a_diverged_model_is_evaluated_too(evaluator: Evaluator) -> None:
    evaluation = evaluator.evaluate(np.full(2778, np.nan, np.float32), ["test"], subset=False).evaluations[0]
    assert evaluation.loss == np.inf
    assert 0 <= evaluation.accuracy < 0.3


def test_a_model_of_another_size_is_refused(evaluator: Evaluator) -> None:
    with pytest.raises(ValueError, match="2778"):
        evaluator.evaluate(np.zeros(3, np.float32), ["test"], subset=True).evaluations[0]
