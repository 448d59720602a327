"""The actor that has models evaluated, off the critical path, and remembers the best one."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pausefl_proto.errors import EvaluatorLost, EvaluatorStuck, PauseflError
from pausefl_proto.wire import Vector
from pausefl_server.actor import Actor
from pausefl_server.monitoring.observer import RunObserver
from pausefl_server.records import Evaluation
from pausefl_server.storage.store_actor import StoreActor

_WAITING_MAX = 256
_WAITING_BYTES_MAX = 1_000_000_000


class EvaluateModel(Protocol):
    """Evaluates a model, in this process or in another."""

    async def __call__(self, theta: Vector, *, subset: bool, patient: bool) -> Sequence[Evaluation]:
        """θ's evaluations on held-out training data and on the test set; with `subset`, on a fixed part of each.

        EvaluatorLost if the evaluator cannot be reached; with `patient`, only after a wait for it.
        """


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Evaluate θ_t: on the fixed subsets while the run goes on, on everything at its end."""

    round: int
    theta: Vector
    subset: bool
    patient: bool = False
    """Whether to wait for an evaluator that is lost. While the run goes on, the next model is tried instead."""


@dataclass(frozen=True, slots=True)
class Best:
    """The model with the greatest accuracy so far on the fixed subset of held-out training data."""

    round: int
    theta: Vector
    validation_accuracy: float


class BestModelFile(Protocol):
    """Keeps the best model where a restart finds it."""

    def save(self, round: int, theta: Vector) -> None:
        """Replace the kept model durably; OSError if it cannot be written."""

    def load(self) -> tuple[int, Vector, str] | None:
        """The kept model's round, θ without a control variate, and digest; None if there is no intact one."""


def picked_up(
    evaluations: Collection[tuple[int, Evaluation]],
    due: Iterable[int],
    file: BestModelFile | None,
    stored: Callable[[int], Vector | None],
    digest_of: Callable[[int], str],
    say: Callable[[str], None],
) -> tuple[Best | None, list[Evaluate]]:
    """The best model of an interrupted run that is still there, and the evaluations of `due` rounds that are missing.

    Models are in the file, which then holds the best one, or `stored(round)`; `say` reports those that are gone. A
    model in the file without an evaluation, but with its round's digest, was found to be the best just before a kill:
    it stays there, and is evaluated again. Without a file, there is no best model.
    """
    rated = {t: e.accuracy for t, e in evaluations if file is not None and _is_rating(e)}
    ranked = sorted(rated, key=lambda t: (-rated[t], t))
    kept = file.load() if file is not None else None
    number, in_file, model_digest = kept or (None, None, "")
    is_logged = kept is not None and model_digest == digest_of(kept[0])
    models = ((t, in_file if t == number else stored(t)) for t in ranked)
    best = next((Best(t, theta, rated[t]) for t, theta in models if theta is not None), None)
    if file is not None and (number in rated or not is_logged):
        if ranked and (best is None or best.round != ranked[0]):
            say(f"the best model so far, of round {ranked[0]}, is gone: the best of those that are left counts")
        if best is not None and best.round != number:
            file.save(best.round, best.theta)
    evaluated = {t for t, e in evaluations if e.subset}
    missing = {t: in_file if t == number and is_logged else stored(t) for t in due if t not in evaluated}
    if lost := [str(t) for t, theta in missing.items() if theta is None]:
        say(f"not evaluated, since their models are gone: round {', '.join(lost)}")
    return best, [Evaluate(t, theta, subset=True) for t, theta in missing.items() if theta is not None]


class EvaluatorActor(Actor[Evaluate]):
    """Hands models to the `evaluate` callable one at a time; rounds never wait for it."""

    def __init__(
        self,
        evaluate: EvaluateModel | None,
        store: StoreActor,
        observer: RunObserver,
        best: Best | None = None,
        file: BestModelFile | None = None,
        waiting_max: int = _WAITING_MAX,
    ) -> None:
        """`best` is the best model of the run so far; `file` keeps each one that is better.

        At most `waiting_max` models wait, in memory, for their evaluation.
        """
        super().__init__("evaluator", capacity=waiting_max)
        self.best = best
        self._file = file
        self._evaluate = evaluate
        self._store = store
        self._observer = observer
        self._is_lost = False
        self._is_behind = False

    def consider(self, round: int, theta: Vector) -> None:
        """Evaluate θ_t on the subsets when its turn comes, or skip it if too many models wait already."""
        if self.stopped or self.offer(Evaluate(round, theta, subset=True)) or self._is_behind:
            return
        self._is_behind = True
        behind = f"round {round} is not evaluated, nor may later ones be: the evaluator is too slow"
        self._observer.noticed(behind, "evaluator")

    async def receive(self, message: Evaluate) -> Sequence[Evaluation]:
        """Evaluate the model, store its evaluations, and keep the best model. Empty if the evaluator is lost."""
        if self._evaluate is None:
            return ()
        try:
            evaluations = tuple(await self._evaluate(message.theta, subset=message.subset, patient=message.patient))
        except EvaluatorLost as error:
            self._note(f"accuracy is missing until the evaluator is back: {error}", is_lost=True)
            if isinstance(error, EvaluatorStuck):
                self.drop_offered()  # each of the waiting models might take as long
            return ()
        self._note(f"the evaluator is back: accuracy goes on with round {message.round}", is_lost=False)
        # The file is written first: after a crash in between, the model in it is evaluated once more.
        for e in filter(_is_rating, evaluations):
            if self.best is None or e.accuracy > self.best.validation_accuracy:
                await self._keep(Best(message.round, message.theta, e.accuracy))
        await self._store.ask(lambda store: store.save_evaluations(message.round, evaluations))
        for e in evaluations:
            self._observer.evaluated(message.round, e)
        return evaluations

    async def _keep(self, best: Best) -> None:
        try:
            if self._file is not None:
                await asyncio.to_thread(self._file.save, best.round, best.theta)
        except OSError as error:
            raise PauseflError(f"the best model cannot be written: {error}") from error
        self.best = best

    def _note(self, news: str, *, is_lost: bool) -> None:
        """Report the evaluator's loss or its return, each once."""
        if is_lost != self._is_lost:
            self._observer.evaluator(is_there=not is_lost)
            self._observer.noticed(news, "evaluator")
        self._is_lost = is_lost


def waiting_models_max(model_bytes: int) -> int:
    """How many models of this size may wait for a slow evaluator: 1 GB of them at most."""
    return min(_WAITING_MAX, max(1, _WAITING_BYTES_MAX // model_bytes))


def _is_rating(evaluation: Evaluation) -> bool:
    """Whether models are compared by this evaluation while the run goes on."""
    return evaluation.split == "validation" and evaluation.subset
