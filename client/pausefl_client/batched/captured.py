"""Training of single clients on a GPU, where the many calls of a step are captured as one CUDA graph."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from pausefl_client.batched.layers import NotStackable
from pausefl_client.batched.replays import Recorder, is_out_of_memory, recorder_for
from pausefl_client.batched.stack import ModelStack
from pausefl_client.batched.training import check_stackable, kind_of, train_together
from pausefl_client.training.torch_trainer import TorchTrainer
from pausefl_client.training.trainer import Trainer, TrainingOutcome, WrappedTrainer
from pausefl_client.training.withdrawal import Withdrawn
from pausefl_proto.wire import Vector

log = logging.getLogger("pausefl.client")


@contextmanager
def told_if_refused() -> Iterator[None]:
    """End the block with a log line, not an error, if a step cannot be captured or memory does not suffice for it."""
    try:
        yield
    except (NotStackable, RuntimeError) as error:
        if not (isinstance(error, NotStackable) or is_out_of_memory(error)):
            raise
        log.warning("steps are not captured as CUDA graphs, which is slower: %s", str(error).partition("\n")[0])


class CapturedSteps:
    """The captured steps of a process's clients. Clients of one kind share captures and their device memory."""

    def __init__(self, recorder_for: Callable[[torch.device], Recorder | None] = recorder_for) -> None:
        self._recorder_for = recorder_for
        self._lock = threading.Lock()
        self._free: list[tuple[tuple[Any, ...], ModelStack]] = []
        """Free stacks of one model each, with the kind of clients that they serve. As many as were used at once."""

    def admit(self, trainer: TorchTrainer) -> Trainer:
        """A trainer whose steps are captured, or `trainer` itself if they cannot be captured."""
        try:
            check_stackable(trainer)
        except NotStackable:
            return trainer
        return _CapturedTrainer(self, trainer)

    def prepare(self, trainer: TorchTrainer, theta: Vector, at_once: int) -> bool:
        """Capture steps for `at_once` clients of this kind that train at once. `trainer` needs two steps at least.

        Returns whether such a trainer's steps can be captured, even if memory does not suffice for all the clients.
        """
        with told_if_refused():
            check_stackable(trainer)
            with ExitStack() as lent, told_if_refused():
                for stack in [lent.enter_context(self.stack_for(trainer)) for _ in range(at_once)]:
                    train_together(stack, [trainer], theta, round=1)
            return True
        return False

    @contextmanager
    def stack_for(self, trainer: TorchTrainer) -> Iterator[ModelStack]:
        """Lend a stack for one training. A stack whose training failed is not lent again."""
        kind = kind_of(trainer)
        with self._lock:
            i = next((i for i, (of, _) in enumerate(self._free) if of == kind), None)
            stack = None if i is None else self._free.pop(i)[1]
        if stack is None:
            stack = ModelStack(trainer.model, trainer.settings, 1, self._recorder_for(trainer.device))
        try:
            yield stack
        except Withdrawn:
            self._take_back(kind, stack)
            raise
        self._take_back(kind, stack)

    def _take_back(self, kind: tuple[Any, ...], stack: ModelStack) -> None:
        with self._lock:
            self._free.append((kind, stack))


class _CapturedTrainer(WrappedTrainer):
    """A client's trainer whose steps a stack takes. The client's own trainer keeps the resulting state."""

    def __init__(self, steps: CapturedSteps, trainer: TorchTrainer) -> None:
        super().__init__(trainer)
        self._steps: CapturedSteps | None = steps  # None: steps are no longer captured
        self._own = trainer

    def train(self, theta: Vector, *, round: int) -> TrainingOutcome:
        """Train as the client's own trainer does. After a failed capture, that trainer does all further training."""
        if self._steps is not None:
            with told_if_refused():
                with self._steps.stack_for(self._own) as stack:
                    (trained,) = train_together(stack, [self._own], theta, round=round)
                self._own.remember(trained.optimizer_states, trained.method)
                return trained.outcome
            self._steps = None
        return self._own.train(theta, round=round)
