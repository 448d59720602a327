"""Behaviours of clients: what each changes, that it changes nothing else, and that chains compose."""

import dataclasses
import re
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from pausefl.experiment.loading import load_experiment
from pausefl.experiment.population.behaviours import (
    BEHAVIOURS,
    Behaviour,
    BehaviourChain,
    Dropout,
    GaussianUpdate,
    LabelFlip,
    LabelNoise,
    LabelSkew,
    LocalEpochs,
    QuantitySkew,
    ScaledUpdate,
    SignFlip,
    SlowDevice,
    StaleModel,
)
from pausefl_client.data.datasets import Examples
from pausefl_client.training.synthetic import SyntheticTrainer
from pausefl_client.training.trainer import TrainingOutcome, TrainingSettings
from pausefl_proto.errors import ConfigError, PauseflError
from pausefl_proto.wire import Vector

SIZE = 5000
SETTINGS = TrainingSettings()
EXAMPLES = Examples(np.arange(3000, dtype=np.float32).reshape(3000, 1), np.arange(3000) % 10)


class Honest(SyntheticTrainer):
    """Answers with an update that tells the model and the round it was asked for."""

    n_examples = 7
    label_counts: ClassVar[dict[str, float]] = {"label_0": 7.0}

    def __init__(self) -> None:
        super().__init__(SIZE, seed=1, client_id="honest")

    def train(self, theta: Vector, *, round: int) -> TrainingOutcome:
        return TrainingOutcome(theta + np.float32(round), loss=0.25)


def chain(*behaviours: Behaviour, client_id: str = "c1", seed: int = 1) -> BehaviourChain:
    return BehaviourChain(behaviours, seed=seed, client_id=client_id)


def updates(*behaviours: Behaviour, rounds: int = 4, **options: Any) -> list[Vector]:
    """Of rounds 1, 2, ..., the model being all 10·round."""
    trainer = chain(*behaviours, **options).trainer(Honest())
    return [trainer.train(np.full(SIZE, 10.0 * t, np.float32), round=t).update for t in range(1, rounds + 1)]


HONEST = updates()


@pytest.mark.parametrize("name", BEHAVIOURS)
def test_a_behaviour_changes_one_thing_only(name: str) -> None:
    behaviours = chain(BEHAVIOURS[name]())
    trainer = behaviours.trainer(Honest())
    for stated in ("n_examples", "label_counts", "manifest"):
        assert getattr(trainer, stated) == getattr(Honest(), stated)
    changed = {
        "examples": behaviours.examples(EXAMPLES, 10) is not EXAMPLES,
        "settings": behaviours.settings(SETTINGS) != SETTINGS,
        "trainer": type(trainer) is not Honest,
    }
    assert sum(changed.values()) == (0 if name == "honest" else 1)


@pytest.mark.parametrize("behaviour", [LabelNoise(), QuantitySkew(), LabelSkew()])
def test_data_are_drawn_by_seed_and_client(behaviour: Behaviour) -> None:
    def labels(**options: Any) -> list[int]:
        drawn: list[int] = chain(behaviour, **options).examples(EXAMPLES, 10).labels.tolist()
        return drawn

    assert labels() == labels()
    assert labels() != labels(client_id="c2")
    assert labels() != labels(seed=2)


@dataclass(frozen=True)
class Nothing(Behaviour):
    """Forgets to return anything."""

    examples = settings = trainer = lambda *_: None  # type: ignore[assignment]  # what the test is about


@pytest.mark.parametrize(
    ("method", "arguments", "expected"),
    [
        ("examples", (EXAMPLES, 10), "a pausefl_client.data.datasets.Examples"),
        ("settings", (SETTINGS,), "a pausefl_client.training.trainer.TrainingSettings"),
        ("trainer", (Honest(),), "an object with a method `train`, as a WrappedTrainer has"),
    ],
)
def test_what_a_behaviour_returns_is_checked(method: str, arguments: tuple[Any, ...], expected: str) -> None:
    message = f"clients.groups: {__name__}:Nothing.{method} must return {expected}; returned NoneType"
    with pytest.raises(ConfigError, match=re.escape(message)):
        getattr(chain(Nothing()), method)(*arguments)


def test_flipped_labels_are_the_next_ones() -> None:
    flipped = chain(LabelFlip()).examples(EXAMPLES, 10)
    assert flipped.labels[:11].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    assert np.array_equal(flipped.inputs, EXAMPLES.inputs)


def test_a_share_of_the_labels_is_noise() -> None:
    noisy = chain(LabelNoise(0.5)).examples(EXAMPLES, 10)
    assert 0.4 < (noisy.labels != EXAMPLES.labels).mean() < 0.5  # a tenth of the noise hits the right label
    assert set(noisy.labels.tolist()) == set(range(10))
    assert np.array_equal(chain(LabelNoise(0.0)).examples(EXAMPLES, 10).labels, EXAMPLES.labels)


def test_quantities_differ_by_label() -> None:
    skewed = chain(QuantitySkew(0.1)).examples(EXAMPLES, 10)
    counts = np.bincount(skewed.labels, minlength=10)
    assert (counts > 15).all()
    assert counts.max() > 2 * counts.min()
    assert np.array_equal(EXAMPLES.labels[skewed.inputs[:, 0].astype(int)], skewed.labels)


def test_labels_follow_a_dirichlet_law() -> None:
    """The smaller the concentration, the fewer labels hold most of the examples."""

    def greatest_share(concentration: float) -> float:
        shares = []
        for k in range(20):
            skewed = chain(LabelSkew(concentration), client_id=f"c{k}").examples(EXAMPLES, 10)
            shares.append(np.bincount(skewed.labels).max() / len(skewed))
        return float(np.mean(shares))

    assert greatest_share(0.1) > 0.5 > greatest_share(0.5) > greatest_share(5.0) > 0.1


def test_all_examples_of_the_most_frequent_label_are_kept() -> None:
    for concentration in (0.5, 1e100):
        skewed = chain(LabelSkew(concentration)).examples(EXAMPLES, 10)
        counts = np.bincount(skewed.labels, minlength=10)
        assert counts.max() == 300
    assert counts.min() > 280, "labels of equal shares are all kept"
    few = EXAMPLES.take(np.array([3]))  # of one example none is left out, whatever the draw
    assert {len(chain(LabelSkew(0.01), client_id=f"c{k}").examples(few, 10)) for k in range(20)} == {1}


def test_epochs_are_drawn_from_the_choices() -> None:
    drawn = {chain(LocalEpochs((2, 5)), client_id=f"c{k}").settings(SETTINGS).epochs for k in range(20)}
    assert drawn == {2, 5}
    assert dataclasses.replace(chain(LocalEpochs()).settings(SETTINGS), epochs=1) == SETTINGS
    with pytest.raises(ValueError, match=r"choices = \[\]: must hold at least one number of epochs"):
        LocalEpochs(())


def test_a_poisoned_update_is_noise_with_the_norm_of_an_honest_one() -> None:
    for honest, poisoned in zip(HONEST, updates(GaussianUpdate(0.5)), strict=True):
        assert poisoned.dtype == np.float32
        assert np.linalg.norm(poisoned) == pytest.approx(0.5 * np.linalg.norm(honest), rel=1e-4)
        spread = float(poisoned.std())
        assert abs(poisoned.mean()) < 5 * spread / np.sqrt(SIZE)
    first, second, *_ = updates(GaussianUpdate())
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.1
    assert np.array_equal(first, updates(GaussianUpdate())[0])


def test_updates_are_scaled_and_turned_round_by_factors_that_do_so() -> None:
    assert np.array_equal(updates(ScaledUpdate(3.0))[0], 3 * HONEST[0])
    assert np.array_equal(updates(SignFlip())[0], -HONEST[0])
    for factor in (3.0, 0.0, float("nan")):
        with pytest.raises(ValueError, match=r"factor = .*: must be a finite number, below 0"):
            SignFlip(factor)


def test_a_stale_model_is_that_of_an_earlier_participation() -> None:
    stale = [float(update[0]) for update in updates(StaleModel(2), rounds=5)]
    # The update is θ + t: θ is 10 for the first three rounds, then that of two rounds ago.
    assert stale == [11.0, 12.0, 13.0, 24.0, 35.0]


def test_dropping_out_happens_after_training_with_its_probability() -> None:
    trainer = chain(Dropout(0.3)).trainer(Honest())

    def drops(round: int) -> bool:
        try:
            trainer.train(HONEST[0], round=round)
        except PauseflError:
            return True
        return False

    dropped = [drops(t) for t in range(1, 301)]
    assert 0.2 < np.mean(dropped) < 0.4
    assert dropped[:50] == [drops(t) for t in range(1, 51)]
    with pytest.raises(PauseflError, match="dropped out"):
        trainer.train(HONEST[0], round=1 + dropped.index(True))


def test_a_share_of_a_group_is_slow() -> None:
    """A device is slow for good: the draw is the client's own, and the same however often it is asked."""

    def is_slow(k: int) -> bool:
        return not isinstance(chain(SlowDevice(share=0.2), client_id=f"c{k}").trainer(Honest()), Honest)

    slow = [is_slow(k) for k in range(500)]
    assert slow == [is_slow(k) for k in range(500)]
    assert 0.12 < np.mean(slow) < 0.28  # more than four standard deviations


def test_the_new_devices_are_the_slow_ones_at_scale() -> None:
    """Fed-TS, Section VII-G: a share of the new participating devices runs at a low frequency."""
    for name, group in load_experiment("fedts_scale").groups.items():
        slow = [b for b in group.behaviours if b["kind"] == "slow-device"]
        assert len(slow) == (name != "original")


def test_a_chain_applies_one_after_the_other() -> None:
    assert np.array_equal(updates(ScaledUpdate(3.0), SignFlip())[0], -3 * HONEST[0])
    both = chain(LabelFlip(), LabelFlip()).examples(EXAMPLES, 10)
    assert both.labels[:3].tolist() == [2, 3, 4]
    first, second = updates(GaussianUpdate(), GaussianUpdate())[0], updates(GaussianUpdate())[0]
    assert not np.array_equal(first, second)  # each place in the chain has draws of its own
