"""The batches that clients train on together are those that each would draw alone."""

import itertools

import numpy as np
import pytest
import torch

from pausefl_client.batched import batches as round_batches
from pausefl_client.batched.batches import RoundBatches
from pausefl_client.training.torch_trainer import TorchTrainer, normalise
from pausefl_client.training.trainer import TrainingSettings
from rigs.batched import ADAM, trainers_of

IMAGE_BYTES = 8 * 8


def most_steps_first(*settings: TrainingSettings, sizes: tuple[int, ...]) -> list[TorchTrainer]:
    return sorted(trainers_of(settings, sizes=sizes), key=lambda trainer: -trainer.steps)


def check_batches(learners: list[TorchTrainer], least: int = 0) -> None:
    """Step by step, and what is left over holds the target −1."""
    batches = RoundBatches(learners, 3)
    alone = [list(learner.drawn(3)[1]) for learner in learners]
    for step in range(learners[0].steps):
        rows = [of_one[step] for of_one in alone if step < len(of_one)]
        sizes = batches.sizes(step, len(rows))
        assert sizes == [len(of_one) for of_one in rows]
        inputs, targets = batches.at(step, sizes, least)
        assert inputs.shape[:2] == targets.shape == (len(rows), max(least, *sizes))
        for learner, own, x, y in zip(learners, rows, inputs, targets, strict=False):
            assert torch.equal(x[: len(own)], normalise(learner.inputs[own]))
            assert torch.equal(y[: len(own)], learner.targets[own])
            assert (y[len(own) :] == -1).all()


@pytest.mark.parametrize("at_once", [1, 2, 3, 100])
@pytest.mark.parametrize("least", [0, 8])
def test_every_step_has_the_examples_drawn_for_it(at_once: int, least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of clients with one epoch, with several and with steps that are bounded, gathered so many steps at once."""
    monkeypatch.setattr(round_batches, "gathered_bytes", lambda _: at_once * 3 * 8 * IMAGE_BYTES)
    settings = [TrainingSettings(batch_size=8, epochs=e, max_steps=s) for e, s in ((1, None), (4, None), (2, 5))]
    check_batches(most_steps_first(*settings, sizes=(20, 13, 31)), least)


def test_batches_are_no_greater_than_the_clients_examples() -> None:
    learners = most_steps_first(*[TrainingSettings(batch_size=1000, epochs=2)] * 2, sizes=(5, 3))
    assert RoundBatches(learners, 1).size == 5
    check_batches(learners)


def test_numbers_are_left_as_they_are_and_targets_may_have_a_shape() -> None:
    learners = most_steps_first(ADAM, ADAM, sizes=(11, 10))
    for learner in learners:
        learner.inputs = torch.randn(learner.n_examples, 5)
        learner.targets = torch.randn(learner.n_examples, 2)
    batches = RoundBatches(learners, 1)
    for step, rows in enumerate(itertools.islice(zip(*(of_one.drawn(1)[1] for of_one in learners), strict=True), 2)):
        inputs, targets = batches.at(step, batches.sizes(step, 2), 0)
        for learner, own, x, y in zip(learners, rows, inputs, targets, strict=True):
            np.testing.assert_array_equal(x[: len(own)], learner.inputs[own])
            np.testing.assert_array_equal(y[: len(own)], learner.targets[own])


def test_what_is_no_number_counts_only_where_it_was_drawn() -> None:
    learners = most_steps_first(ADAM, ADAM, sizes=(11, 10))
    for learner in learners:
        learner.inputs = torch.full((learner.n_examples, 5), torch.nan)
    batches = RoundBatches(learners, 1)
    for step in range(learners[0].steps):
        sizes = batches.sizes(step, 2)
        inputs, _ = batches.at(step, sizes, batches.size)
    assert max(sizes) < batches.size
    for x, size in zip(inputs, sizes, strict=True):
        assert x[:size].isnan().all()
        assert (x[size:] == 0).all()
