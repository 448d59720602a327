"""The evaluator as an actor: it judges models off the critical path and remembers the best."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pausefl.actor import Actor
from pausefl.wire import Vector
from pausefl_server.metrics import ServerMetrics
from pausefl_server.records import Evaluation
from pausefl_server.store import SaveEvaluations, StoreActor

EvaluateModel = Callable[[Vector, bool], Awaitable[Sequence[Evaluation]]]
"""θ and whether a fixed subset is enough -> its evaluations on held-out training data and on the test set."""


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Judge θ_t: on the fixed subsets while the run goes on, on everything at its end."""

    round: int
    theta: Vector
    subset: bool


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
        metrics: ServerMetrics,
        progress: Callable[[Mapping[str, Any]], None],
    ) -> None:
        # A slow evaluator keeps at most this many models in memory, then rounds' evaluations wait their turn.
        super().__init__("evaluator", capacity=256)
        self.best: Best | None = None
        self._evaluate = evaluate
        self._store = store
        self._metrics = metrics
        self._progress = progress

    async def receive(self, message: Evaluate) -> Sequence[Evaluation]:
        """Evaluate, write down, and keep the best."""
        if self._evaluate is None:
            return ()
        evaluations = tuple(await self._evaluate(message.theta, message.subset))
        await self._store.ask(SaveEvaluations(message.round, evaluations))
        for e in evaluations:
            self._metrics.evaluated(e)
            if (
                e.split == "validation"
                and e.subset
                and (self.best is None or e.accuracy > self.best.validation_accuracy)
            ):
                self.best = Best(message.round, message.theta, e.accuracy)
            self._progress(
                {
                    "kind": "evaluation",
                    "round": message.round,
                    "split": e.split,
                    "accuracy": e.accuracy,
                    "loss": e.loss,
                }
            )
        return evaluations
