"""Trains the clients of one host together in a round, although each asks for its own training at its own time."""

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
    """The number of the client's kind. Clients of one kind can be trained together."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while the trainer's state is read or changed."""
    changes: int = 0
    """How often the trainer's state was changed."""
    job: _AwaitedJob | None = None
    cohort: "_Cohort | None" = None
    is_training: bool = False


class _Cohort:
    """Clients that train from one model in one round. The first one that is due trains all of them."""

    def __init__(self, stacks: "_Stacks", clients: Sequence[_Client], theta: Vector, round: int) -> None:
        self._stacks = stacks
        self._clients = {client: client.changes for client in clients}
        self._theta = theta
        self._round = round
        self._lock = threading.Lock()
        self._trained: dict[_Client, Trained] | None = None

    def take(self, client: _Client, theta: Vector, round: int) -> Trained | None:
        """The outcome of a client's training from θ, or None if the client must train by itself.

        That is so if its round or θ differs from the cohort's, if the cohort's training failed, or if the client has
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
                held.enter_context(withdrawable(LASTING))  # one client's withdrawal must not stop the others
                trained: list[Trained] = []
                while left := clients[len(trained) :]:
                    trained += self._stacks.train(left, self._theta, self._round)
            return dict(zip(clients, trained, strict=True))
        except OWN_CODE_ERRORS as error:
            log.warning("round %d: %d clients train one by one: %s", self._round, len(clients), error)
            return {}


class _Stacks:
    """One stack for each kind of clients. It is made when needed, and made anew for more clients than it holds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stacks: dict[int, ModelStack] = {}
        self._most: dict[int, int] = {}
        """Kind -> the most clients to train at once, if the device's memory did not hold more."""

    def train(self, clients: Sequence[_Client], theta: Vector, round: int) -> list[Trained]:
        """Train the first of these clients from θ, as many as the device's memory holds at once."""
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
                most = self._most[kind] = len(now) // 2
                with suppress(RuntimeError):  # after a failed capture, torch keeps its memory and raises this
                    torch.cuda.empty_cache()  # after the except block, since the error keeps tensors alive
                told = "the device's memory does not hold %d clients together: %d at once from now on"
                log.warning(told, len(now), most)

    def _stack_of(self, clients: Sequence[_Client]) -> ModelStack:
        kind, trainer = clients[0].kind, clients[0].trainer
        if kind not in self._stacks or self._stacks[kind].size < len(clients):
            self._stacks.pop(kind, None)  # drop the old stack first, so that memory need not hold both
            recorder = recorder_for(trainer.device)
            self._stacks[kind] = ModelStack(trainer.model, trainer.settings, len(clients), recorder)
        return self._stacks[kind]


class BatchedHost:
    """Trains clients of one round in one call, and gives each its outcome when it would have trained alone.

    The cohort is formed when its first client begins (`begin`). It has all clients of one kind that wait for the same
    job (`expecting`). Clients of one kind may differ in their data, epochs and states only.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clients: dict[str, _Client] = {}
        self._kinds: list[tuple[Any, ...]] = []
        self._stacks = _Stacks()

    def admit(self, client_id: str, trainer: TorchTrainer) -> Trainer:
        """A trainer that can be trained with others, or `trainer` itself if its training cannot be batched."""
        try:
            check_stackable(trainer)
        except NotStackable:
            return trainer
        if (kind := kind_of(trainer)) not in self._kinds:
            self._kinds.append(kind)
        client = self._clients[client_id] = _Client(trainer, self._kinds.index(kind))
        return _Member(client)

    def outermost(self, client_id: str, trainer: Trainer) -> Trainer:
        """The outermost wrapper around `trainer`. For an admitted client, its call forms the client's cohort."""
        return _Outermost(self, client_id, trainer) if client_id in self._clients else trainer

    @contextmanager
    def expecting(self, client_id: str, round: int, digest: str) -> Iterator[None]:
        """Note that in the block the client waits for, or does, a job of this round from the model of this digest."""
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
        """Note that the client does its job during the block. The call forms its cohort, if other clients wait too."""
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
    """A client's trainer that takes its outcome from the client's cohort."""

    def __init__(self, client: _Client) -> None:
        super().__init__(client.trainer)
        self._client = client

    def train(self, theta: Vector, *, round: int) -> TrainingOutcome:
        """The outcome of the cohort's training for this client. Without a cohort, of its own training."""
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
    """The outermost trainer of a client, around its behaviours and its paced training too."""

    def __init__(self, host: BatchedHost, client_id: str, trainer: Trainer) -> None:
        super().__init__(trainer)
        self._host = host
        self._client_id = client_id

    def train(self, theta: Vector, *, round: int) -> TrainingOutcome:
        with self._host.begin(self._client_id, theta, round):
            return super().train(theta, round=round)
