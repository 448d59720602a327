"""The clients of one host whose jobs of a round are trained together, although each asks for its own when it is due."""

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from pausefl_client.batched.layers import NotStackable
from pausefl_client.batched.replays import is_out_of_memory, recorder_for
from pausefl_client.batched.stack import ModelStack
from pausefl_client.batched.training import Trained, check_stackable, kind_of, train_together
from pausefl_client.training.torch_trainer import TorchTrainer
from pausefl_client.training.trainer import Trainer, TrainingOutcome, WrappedTrainer
from pausefl_client.training.withdrawal import LASTING, withdrawable
from pausefl_process.plugins import OWN_CODE_ERRORS
from pausefl_proto.wire import Vector

log = logging.getLogger("pausefl.client")

_AwaitedJob = tuple[int, str]  # a round, and the digest of its model


@dataclass(eq=False)
class _Client:
    """A client whose training can be batched, and the job it waits for."""

    trainer: TorchTrainer
    kind: int
    """Clients of one kind can be trained together."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while what the trainer remembers is read or changed."""
    changes: int = 0
    """How often that was changed."""
    job: _AwaitedJob | None = None
    cohort: "_Cohort | None" = None
    is_training: bool = False


class _Cohort:
    """Clients that train from one model in one round; the first that is due trains all."""

    def __init__(self, stacks: "_Stacks", clients: Sequence[_Client], theta: Vector, round: int) -> None:
        self._stacks = stacks
        self._clients = {client: client.changes for client in clients}
        self._theta = theta
        self._round = round
        self._lock = threading.Lock()
        self._trained: dict[_Client, Trained] | None = None

    def take(self, client: _Client, theta: Vector, round: int) -> Trained | None:
        """The outcome of a client's training from θ; None where the client must train by itself.

        That is so where its round or its θ is another, where the cohort's training failed, and where the client has
        trained or was restored since the cohort was gathered.
        """
        if round != self._round or not (theta is self._theta or np.array_equal(theta, self._theta)):
            return None
        with self._lock:
            if self._trained is None:
                self._trained = self._train()
            trained = self._trained.pop(client, None)
        return trained if client.changes == self._clients[client] else None

    def _train(self) -> dict[_Client, Trained]:
        clients = list(self._clients)
        try:
            with ExitStack() as held:
                for client in clients:
                    held.enter_context(client.lock)
                held.enter_context(withdrawable(LASTING))  # one client's withdrawal is no end of the others'
                trained: list[Trained] = []
                while left := clients[len(trained) :]:
                    trained += self._stacks.train(left, self._theta, self._round)
            return dict(zip(clients, trained, strict=True))
        except OWN_CODE_ERRORS as error:
            log.warning("round %d: %d clients train one by one: %s", self._round, len(clients), error)
            return {}


class _Stacks:
    """A stack for each kind of clients, made when it is first needed, and anew for more clients than ever before."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stacks: dict[int, ModelStack] = {}
        self._most: dict[int, int] = {}
        """How many clients of a kind are trained at once, where memory was not enough for more."""

    def train(self, clients: Sequence[_Client], theta: Vector, round: int) -> list[Trained]:
        """Train the first of these from θ, as many at once as the device's memory holds."""
        kind = clients[0].kind
        with self._lock:
            while True:
                now = clients[: self._most.get(kind, len(clients))]
                try:
                    return train_together(self._stack_of(now), [c.trainer for c in now], theta, round=round)
                except RuntimeError as error:
                    if not is_out_of_memory(error):
                        raise
                    self._stacks.pop(kind, None)
                    if len(now) == 1:
                        raise
                self._make_room(kind, len(now))  # not before the error is gone, which holds on to tensors

    def _stack_of(self, clients: Sequence[_Client]) -> ModelStack:
        kind, trainer = clients[0].kind, clients[0].trainer
        if kind not in self._stacks or self._stacks[kind].size < len(clients):
            self._stacks.pop(kind, None)  # first, or memory would have to hold both
            recorder = recorder_for(trainer.device)
            self._stacks[kind] = ModelStack(trainer.model, trainer.settings, len(clients), recorder)
        return self._stacks[kind]

    def _make_room(self, kind: int, tried: int) -> None:
        self._most[kind] = tried // 2
        with suppress(RuntimeError):  # where a capture has failed before, torch keeps its memory, and says so
            torch.cuda.empty_cache()
        log.warning("the device's memory does not hold %d clients together: %d at once from now on", tried, tried // 2)


class BatchedHost:
    """Trains clients of one round in one call, and hands each its outcome at the time when it would train.

    Which clients train together is settled when the first of them begins (`begin`): all that wait for the same job
    (`expecting`) and are alike, except for their data, epochs and memories.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clients: dict[str, _Client] = {}
        self._kinds: list[tuple[Any, ...]] = []
        self._stacks = _Stacks()
        self.refusals: dict[str, str] = {}
        """Why a client trains by itself, by its id."""

    def admit(self, client_id: str, trainer: TorchTrainer) -> Trainer:
        """A trainer of the client that can be trained with others; `trainer` itself where it cannot be batched."""
        try:
            check_stackable(trainer)
        except NotStackable as reason:
            self.refusals[client_id] = str(reason)
            return trainer
        if (kind := kind_of(trainer)) not in self._kinds:
            self._kinds.append(kind)
        client = self._clients[client_id] = _Client(trainer, self._kinds.index(kind))
        return _Member(client)

    def outermost(self, client_id: str, trainer: Trainer) -> Trainer:
        """The trainer that is asked first, around `trainer`: its call settles with whom an admitted client trains."""
        return _Outermost(self, client_id, trainer) if client_id in self._clients else trainer

    @contextmanager
    def expecting(self, client_id: str, round: int, digest: str) -> Iterator[None]:
        """During the block the client waits for, or does, a job of this round with the model of this digest."""
        if (client := self._clients.get(client_id)) is None:
            yield
            return
        with self._lock:
            client.job = round, digest
        try:
            yield
        finally:
            with self._lock:
                client.job = None
                if not client.is_training:
                    client.cohort = None

    @contextmanager
    def begin(self, client_id: str, theta: Vector, round: int) -> Iterator[None]:
        """During the block the client does its job; with the clients of its cohort if there are any."""
        client = self._clients[client_id]
        with self._lock:
            client.is_training = True
            if client.cohort is None and client.job is not None:
                self._gather(client, theta, round)
        try:
            yield
        finally:
            with self._lock:
                client.is_training, client.cohort, client.job = False, None, None

    def _gather(self, first: _Client, theta: Vector, round: int) -> None:
        alike = (c for c in self._clients.values() if (c.job, c.kind, c.cohort) == (first.job, first.kind, None))
        clients = [client for client in alike if client is first or not client.is_training]
        if len(clients) > 1:
            cohort = _Cohort(self._stacks, clients, theta, round)
            for client in clients:
                client.cohort = cohort


class _Member(WrappedTrainer):
    """A client's own trainer, which takes what its cohort has trained."""

    def __init__(self, client: _Client) -> None:
        super().__init__(client.trainer)
        self._client = client

    def train(self, theta: Vector, *, round: int) -> TrainingOutcome:
        """The outcome of the cohort's training for this client; without a cohort, of its own."""
        client = self._client
        trained = None if client.cohort is None else client.cohort.take(client, theta, round)
        with client.lock:
            client.changes += 1
            if trained is None:
                return client.trainer.train(theta, round=round)
            client.trainer.remember(trained.optimizer_states, trained.method)
            return trained.outcome

    def restore(self, state: bytes) -> None:
        with self._client.lock:
            self._client.changes += 1
            self._client.trainer.restore(state)


class _Outermost(WrappedTrainer):
    """All that trains for a client, behaviours and stated times included."""

    def __init__(self, host: BatchedHost, client_id: str, trainer: Trainer) -> None:
        super().__init__(trainer)
        self._host = host
        self._client_id = client_id

    def train(self, theta: Vector, *, round: int) -> TrainingOutcome:
        with self._host.begin(self._client_id, theta, round):
            return super().train(theta, round=round)
