"""Behaviours of clients: small objects that change a client's data, settings or trainer. A chain is a list of them.

All draws depend only on the seed, the client, the behaviour's position in the chain and, if they are per round, the
round. So a run repeats. Every behaviour works with any policy, and with any workload that has what it changes.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar, TypeVar

import numpy as np
from annotated_types import Ge, Lt

from pausefl_client.data.datasets import Examples, are_classes
from pausefl_client.data.partition import Concentration
from pausefl_client.training.pace import pace
from pausefl_client.training.trainer import Trainer, TrainingOutcome, TrainingSettings, WrappedTrainer
from pausefl_process.plugins import name_of
from pausefl_process.registry import Registry
from pausefl_proto.arrays import FloatArray
from pausefl_proto.draws import generator
from pausefl_proto.errors import ConfigError, PauseflError
from pausefl_proto.number_types import Bounded, Count, Finite, Positive, Share
from pausefl_proto.wire import Vector

_LENGTH_BYTES = 8
Returned = TypeVar("Returned")

Draw = Callable[[int], np.random.Generator]
"""round -> this client's generator for that round. Round 0 is for draws before round 1."""


@dataclass(frozen=True)
class Behaviour(Bounded):
    """An honest client: nothing changes. Behaviours override the methods whose results they change."""

    needs_classes: ClassVar[bool] = False
    """Whether the behaviour uses the classes of examples, so that the data set must have classes."""

    def examples(self, examples: Examples, classes: int, draw: Draw) -> Examples:
        """Return the client's training examples as this behaviour changes them. The data set has `classes` labels."""
        return examples

    def settings(self, settings: TrainingSettings, draw: Draw) -> TrainingSettings:
        """Return the client's training settings as this behaviour changes them."""
        return settings

    def trainer(self, trainer: Trainer, draw: Draw) -> Trainer:
        """Return the client's trainer as this behaviour changes it."""
        return trainer


@dataclass(frozen=True)
class LabelFlip(Behaviour):
    """Every label y becomes (y + 1) mod classes."""

    needs_classes: ClassVar[bool] = True

    def examples(self, examples: Examples, classes: int, draw: Draw) -> Examples:
        return replace(examples, labels=(examples.labels + 1) % classes)


@dataclass(frozen=True)
class LabelNoise(Behaviour):
    """Each label is replaced, with probability `share`, by one drawn uniformly from all."""

    needs_classes: ClassVar[bool] = True

    share: Share = 0.5
    """The probability that a label is replaced."""

    def examples(self, examples: Examples, classes: int, draw: Draw) -> Examples:
        rng, n = draw(0), len(examples)
        labels = np.where(rng.random(n) < self.share, rng.integers(classes, size=n), examples.labels)
        return replace(examples, labels=labels)


@dataclass(frozen=True)
class QuantitySkew(Behaviour):
    """The client keeps only a share of its examples of each label, drawn uniformly from [least_share, 1]."""

    needs_classes: ClassVar[bool] = True

    least_share: Share = 0.0
    """The least share that can be drawn."""

    def examples(self, examples: Examples, classes: int, draw: Draw) -> Examples:
        rng = draw(0)
        return _part(examples, rng.uniform(self.least_share, 1.0, classes), rng)


@dataclass(frozen=True)
class LabelSkew(Behaviour):
    """The client's labels have proportions q ~ Dirichlet(concentration), as far as its examples allow."""

    needs_classes: ClassVar[bool] = True

    concentration: Concentration = 0.5
    """The concentration. Small values leave few labels."""

    def examples(self, examples: Examples, classes: int, draw: Draw) -> Examples:
        """A random part of the examples, at least one. Labels that were equally frequent get proportions q."""
        rng = draw(0)
        q = rng.dirichlet(np.full(classes, self.concentration))
        return _part(examples, q / q.max(), rng)


@dataclass(frozen=True)
class LocalEpochs(Behaviour):
    """The client has its own number of local epochs, drawn once from `choices`."""

    choices: tuple[Count, ...] = (2, 3, 4, 5)
    """The numbers to draw from."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.choices:
            raise ValueError("choices = []: must hold at least one number of epochs")

    def settings(self, settings: TrainingSettings, draw: Draw) -> TrainingSettings:
        return replace(settings, epochs=int(draw(0).choice(self.choices)))


@dataclass(frozen=True)
class GaussianUpdate(Behaviour):
    """Model poisoning: the update becomes a zero-mean Gaussian vector whose norm is that of the honest update times
    `scale`."""

    scale: Positive = 1.0
    """The factor of the norm."""

    def trainer(self, trainer: Trainer, draw: Draw) -> Trainer:
        """Trains, to know the norm. The change of a control variate keeps its own norm, and statistics stay honest."""

        def poison(update: Vector, round: int) -> Vector:
            noise, d = draw(round).standard_normal(update.size, np.float32), trainer.manifest.model_size
            parts = [slice(d), slice(d, None)] if d < update.size else [slice(None)]
            for part in parts:
                noise[part] *= np.float32(self.scale * np.linalg.norm(update[part]) / np.linalg.norm(noise[part]))
            return noise

        return _ChangedUpdates(trainer, poison)


@dataclass(frozen=True)
class ScaledUpdate(Behaviour):
    """The client sends its honest update times `factor`. A negative factor reverses it."""

    factor: Finite = 10.0
    """The factor."""

    def trainer(self, trainer: Trainer, draw: Draw) -> Trainer:
        return _ChangedUpdates(trainer, lambda update, _: np.float32(self.factor) * update)


@dataclass(frozen=True)
class SignFlip(ScaledUpdate):
    """The client sends its honest update, reversed."""

    factor: Annotated[float, Lt(0)] = -1.0
    """The factor, below 0."""


@dataclass(frozen=True)
class StaleModel(Behaviour):
    """The client trains from the model that it received `participations` of its own rounds ago, or from its oldest."""

    participations: Count = 1
    """The age of the model, in rounds for which the client was chosen."""

    def trainer(self, trainer: Trainer, draw: Draw) -> Trainer:
        """The update is relative to the stale model, but the server adds it to its current model."""
        return _Stale(trainer, self.participations)


@dataclass(frozen=True)
class Dropout(Behaviour):
    """With probability `probability`, a chosen client trains in a round but gives no update."""

    probability: Share = 0.2
    """The probability of giving no update."""

    def trainer(self, trainer: Trainer, draw: Draw) -> Trainer:

        def drop(update: Vector, round: int) -> Vector:
            if draw(round).random() < self.probability:
                raise PauseflError("dropped out")  # always the same text, as each reason is reported once
            return update

        return _ChangedUpdates(trainer, drop)


@dataclass(frozen=True)
class SlowDevice(Behaviour):
    """With probability `share`, drawn once, training takes `factor` times as long as it otherwise would."""

    factor: Annotated[float, Ge(1)] = 3.0
    """The factor of the training time, at least 1."""
    share: Share = 1.0
    """The share of the group's clients that are slow, on average (Fed-TS, Fig. 11)."""

    def trainer(self, trainer: Trainer, draw: Draw) -> Trainer:
        """The client sleeps after training, which leaves the processor to the other clients, as a slow device would."""
        return _Slow(trainer, self.factor) if draw(0).random() < self.share else trainer


BEHAVIOURS = Registry(
    "behaviours",
    {
        "honest": Behaviour,
        "label-flip": LabelFlip,
        "label-noise": LabelNoise,
        "quantity-skew": QuantitySkew,
        "label-skew": LabelSkew,
        "local-epochs": LocalEpochs,
        "gaussian-update": GaussianUpdate,
        "scaled-update": ScaledUpdate,
        "sign-flip": SignFlip,
        "stale-model": StaleModel,
        "dropout": Dropout,
        "slow-device": SlowDevice,
    },
    base="pausefl.experiment.population.behaviours:Behaviour",
)


class BehaviourChain:
    """The behaviours of one client. Each is applied to the result of the one before it."""

    def __init__(self, behaviours: Sequence[Behaviour], *, seed: int, client_id: str) -> None:
        draws = (partial(generator, seed, "behaviour", client_id, place) for place in range(len(behaviours)))
        self._links = list(zip(behaviours, draws, strict=True))

    def examples(self, examples: Examples, classes: int) -> Examples:
        for behaviour, draw in self._links:
            name = type(behaviour).__name__
            if behaviour.needs_classes and not are_classes(examples.labels, classes):
                raise ConfigError(f"clients.groups: {name} needs a class for each example; workload.dataset has none")
            examples = _checked(behaviour.examples(examples, classes, draw), Examples, behaviour, "examples")
            if not len(examples):
                raise ConfigError(f"clients.groups: {name}.examples must leave one example at least")
        return examples

    def settings(self, settings: TrainingSettings) -> TrainingSettings:
        for behaviour, draw in self._links:
            settings = _checked(behaviour.settings(settings, draw), TrainingSettings, behaviour, "settings")
            drawn = {name: value.item() for name, value in vars(settings).items() if isinstance(value, np.generic)}
            settings = replace(settings, **drawn) if drawn else settings
        return settings

    def trainer(self, trainer: Trainer) -> Trainer:
        for behaviour, draw in self._links:
            trainer = behaviour.trainer(trainer, draw)
            if not hasattr(trainer, "train"):
                raise _wrong(trainer, behaviour, "trainer", "an object with a method `train`, as a WrappedTrainer has")
        return trainer


def _checked(returned: Any, expected: type[Returned], behaviour: Behaviour, method: str) -> Returned:
    if not isinstance(returned, expected):
        raise _wrong(returned, behaviour, method, f"a {expected.__module__}.{expected.__name__}")
    return returned


def _wrong(returned: object, behaviour: Behaviour, method: str, expected: str) -> ConfigError:
    """The error for a behaviour, possibly the user's own, that returned an object of a wrong type."""
    found = type(returned).__name__
    return ConfigError(f"clients.groups: {name_of(behaviour)}.{method} must return {expected}; returned {found}")


class _ChangedUpdates(WrappedTrainer):
    """A trainer whose updates are changed by a function of the update and the round."""

    def __init__(self, trainer: Trainer, change: Callable[[Vector, int], Vector]) -> None:
        super().__init__(trainer)
        self._change = change

    def train(self, theta: Vector, *, round: int) -> TrainingOutcome:
        outcome, d = super().train(theta, round=round), self.manifest.charged.size
        changed, statistics = self._change(outcome.update[:d], round), outcome.update[d:]
        return replace(outcome, update=np.concatenate((changed, statistics)) if statistics.size else changed)


class _Stale(WrappedTrainer):
    def __init__(self, trainer: Trainer, participations: int) -> None:
        super().__init__(trainer)
        self._participations = participations
        self._models: deque[Vector] = deque(maxlen=participations + 1)

    def train(self, theta: Vector, *, round: int) -> TrainingOutcome:
        self._models.append(theta)
        return super().train(self._models[0], round=round)

    def state(self) -> bytes:
        """The length of the wrapped trainer's state, that state, and the models that later rounds need."""
        if not self._models:
            return b""
        inner, models = super().state(), list(self._models)[-self._participations :]
        return b"".join((len(inner).to_bytes(_LENGTH_BYTES, "little"), inner, *(model.tobytes() for model in models)))

    def restore(self, state: bytes) -> None:
        start = _LENGTH_BYTES + int.from_bytes(state[:_LENGTH_BYTES], "little")
        super().restore(state[_LENGTH_BYTES:start])
        models = np.frombuffer(state[start:], np.float32).reshape(-1, self.manifest.size)
        self._models = deque(models.copy(), self._models.maxlen)


class _Slow(WrappedTrainer):
    def __init__(self, trainer: Trainer, factor: float) -> None:
        super().__init__(trainer)
        self._factor = factor

    def train(self, theta: Vector, *, round: int) -> TrainingOutcome:
        started_s = pace().time_s()
        outcome = super().train(theta, round=round)
        pace().wait((self._factor - 1) * (pace().time_s() - started_s))
        return outcome


def _part(examples: Examples, share: FloatArray, rng: np.random.Generator) -> Examples:
    """A random part of the examples: each with probability share[label], and at least one. `share` is (classes,)."""
    score = rng.random(len(examples)) / np.maximum(share[examples.labels], np.finfo(np.float64).tiny)
    kept = np.flatnonzero(score < 1)
    return examples.take(kept if kept.size else np.array([score.argmin()]))
