"""The evaluator as an actor: it has models evaluated off the critical path and remembers the best."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pausefl_proto.actor import Actor
from pausefl_proto.errors import EvaluatorLost
from pausefl_proto.wire import Vector
from pausefl_server.monitoring.observer import RunObserver
from pausefl_server.records import Evaluation
from pausefl_server.store import SaveEvaluations, StoreActor


class EvaluateModel(Protocol):
    """Evaluates a model, in this process or in another."""

    async def __call__(self, theta: Vector, *, subset: bool, patient: bool) -> Sequence[Evaluation]:
        """θ's evaluations on held-out training data and on the test set; with `subset`, on a fixed part of each.

        EvaluatorLost when the evaluator cannot be reached; with `patient`, only after a wait for it.
        """


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Evaluate θ_t: on the fixed subsets while the run goes on, on everything at its end."""

    round: int
    theta: Vector
    subset: bool
    patient: bool = False
    """Wait for an evaluator that is lost; while the run goes on, its next model is asked about instead."""


@dataclass(frozen=True, slots=True)
class Best:
    """The model with the greatest accuracy on (the fixed subset of) held-out training data so far."""

    round: int
    theta: Vector
    validation_accuracy: float


class EvaluatorActor(Actor[Evaluate]):
    """Hands models to the `evaluate` callable one at a time; rounds never wait for it."""

    def __init__(
        self,
        evaluate: EvaluateModel | None,
        store: StoreActor,
        observer: RunObserver,
    ) -> None:
        # A slow evaluator keeps at most this many models in memory, then rounds' evaluations wait their turn.
        super().__init__("evaluator", capacity=256)
        self.best: Best | None = None
        self._evaluate = evaluate
        self._store = store
        self._observer = observer
        self._is_lost = False

    async def receive(self, message: Evaluate) -> Sequence[Evaluation]:
        """Evaluate, write down, and keep the best; nothing where the evaluator is lost."""
        if self._evaluate is None:
            return ()
        try:
            evaluations = tuple(await self._evaluate(message.theta, subset=message.subset, patient=message.patient))
        except EvaluatorLost as error:
            self._lose(error)
            return ()
        self._find(message.round)
        await self._store.ask(SaveEvaluations(message.round, evaluations))
        for e in evaluations:
            self._observer.evaluated(message.round, e)
            if (
                e.split == "validation"
                and e.subset
                and (self.best is None or e.accuracy > self.best.validation_accuracy)
            ):
                self.best = Best(message.round, message.theta, e.accuracy)
        return evaluations

    def _lose(self, error: EvaluatorLost) -> None:
        """Report the loss once."""
        if not self._is_lost:
            self._observer.noticed(f"accuracy is missing until the evaluator is back: {error}")
        self._is_lost = True

    def _find(self, round: int) -> None:
        if self._is_lost:
            self._observer.noticed(f"the evaluator is back: accuracy goes on with round {round}")
        self._is_lost = False
