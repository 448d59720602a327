"""Local training of one client with torch."""

import copy
import itertools
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from pausefl_client.data.datasets import Examples, are_classes
from pausefl_client.data.holdings import Holding, holding_of
from pausefl_client.data.tasks import LearningTask
from pausefl_client.training.device_copies import gathered_bytes, off_device, on_device
from pausefl_client.training.method import Batch, Batches, TrainingMethod, checked_losses, checked_state, new_optimizer
from pausefl_client.training.model_vector import ConstantBuffers, ModelVector, views
from pausefl_client.training.optimizer_states import JoinedStates, StateWriter, comparable, joined, parted, read_states
from pausefl_client.training.optimizers import LearningRates, laid_out
from pausefl_client.training.random_layers import RandomLayers
from pausefl_client.training.tasks import Classification
from pausefl_client.training.trainer import TrainingOutcome, TrainingSettings
from pausefl_client.training.withdrawal import stop_if_withdrawn
from pausefl_process.plugins import OWN_CODE_ERRORS
from pausefl_proto.arrays import IntArray
from pausefl_proto.draws import generator
from pausefl_proto.errors import ConfigError
from pausefl_proto.wire import MAX_STATISTICS, Vector

_ALL = "all parameters"  # what joined states are saved under, in place of a parameter's number


@dataclass(frozen=True)
class LocalData:
    """The data that one client trains on."""

    examples: Examples
    classes: int = 0
    """The number of classes in the task, so that `label_counts` also lists classes without examples here."""
    holding: Holding | None = None
    """The identity of the data before the client changed them. None: they are unchanged."""
    task: LearningTask | None = None
    """The learning task. None: classification."""


class TorchTrainer:
    """Trains a torch model on one client's examples. It keeps the optimizer's state between rounds, as PAUSE does."""

    def __init__(
        self,
        model: nn.Module,
        data: LocalData,
        settings: TrainingSettings,
        *,
        device: torch.device,
        seed: int,
        client_id: str,
        method: TrainingMethod | None = None,
    ) -> None:
        """`method` must be an object of this client alone. Without it, the client trains by the plain method."""
        model.to(device)
        self.model = model
        self.task = data.task or Classification()
        with suppress(*OWN_CODE_ERRORS):  # a lock that it holds, say, cannot be copied
            self.task = copy.deepcopy(self.task)  # it may remember what a client has seen
        self.method = method or TrainingMethod()
        self.settings = settings
        self.device = device
        examples = data.examples
        self.n_examples = len(examples)
        self.steps = settings.steps(self.n_examples)
        """The number of optimizer steps in a round."""
        is_counted = data.classes <= MAX_STATISTICS and are_classes(examples.labels, data.classes)
        counts = np.bincount(examples.labels, minlength=data.classes) if is_counted else ()
        self.label_counts = {f"label_{c}": float(n) for c, n in enumerate(counts)}
        self.vector = ModelVector(model, settings.statistics)
        travel = {*model.state_dict()} - {*(self.vector.statistics if settings.statistics == "local" else ())}
        self._fresh = {n: b.clone() for n, b in model.named_buffers() if n not in travel and b.layout is torch.strided}
        """The first values of buffers that are the client's own: local statistics, and what is in no `state_dict`."""
        self._constants = ConstantBuffers(model)
        self.holding = data.holding or holding_of(examples, dealing="")
        self.inputs = torch.from_numpy(examples.inputs).to(device)
        """The inputs of all examples as they are stored. `normalise` turns them into what models take."""
        self.targets = torch.from_numpy(examples.labels).to(device)
        of_model = self.vector.manifest
        self.manifest = of_model.with_control() if self.method.has_control else of_model
        self._parameters = list(self.vector.parameters.values())
        self._shapes = [parameter.shape for parameter in self._parameters]
        self._optimizer = new_optimizer(self.method, self.model, settings)
        self._remembered: JoinedStates = {}
        """Optimizer states from batched training, not yet loaded into the optimizer. Empty if it is up to date."""
        self._state_writer = StateWriter()
        self.random_layers = RandomLayers(self.model, device, self.method, self.task, self._optimizer)
        self._rates = LearningRates(settings) if settings.schedule else None
        base, groups = (self._rates.base or 1.0, self._optimizer.param_groups) if self._rates else (1.0, [])
        # An optimizer that a method makes may train some parameters at other rates than the settings'.
        self._rate_factors = [group.get("lr", base) / base for group in groups]
        self._fresh_optimizer = self._described(self._optimizer.state_dict()) or b""
        self._seed = seed
        self._client_id = client_id

    def train(self, theta: Vector, *, round: int) -> TrainingOutcome:
        """Train from θ, (d,) float32. Batches and dropout depend on (seed, client, round) alone.

        If `manifest` says so, a control variate and running statistics follow θ. The variate's change and the new
        statistics then follow the update. The function returns when the device is done, so that a clock read before
        and after it measures the training.
        """
        use_one_thread()
        start, control = self.parted(theta)
        statistics = theta[self.manifest.charged.size :]
        seed, drawn = self.drawn(round)
        batches = Batches(partial(self._batches, [*drawn]), self.steps)
        self.vector.fill(np.concatenate((start, statistics)) if statistics.size else start)
        if self.vector.is_rounded:
            start = self.vector.values()[: start.size]
        self.model.train()
        optimizer = self._current_optimizer()
        if (rate := self.rate(round)) is not None:
            for group, factor in zip(optimizer.param_groups, self._rate_factors, strict=False):
                group["lr"] = rate * factor
        if self.method.has_control:
            self.method.take_control(control)
        with self.random_layers.seeded(seed):
            self.method.begin_round(self.model, round)
            losses = self.method.local_steps(self.model, optimizer, batches, self.task)
            self.method.end_round(self.model)
        self.vector.check_parameters(self.model)
        loss = torch.stack(checked_losses(losses, self.method)).mean()
        self._constants.put_back()
        trained, mean_loss = off_device(self.vector.on_device(), loss)
        update = self.with_control(trained[: start.size] - start, self.method)
        if statistics.size:
            update = np.concatenate((update, trained[start.size :]))
        return TrainingOutcome(update, float(mean_loss))

    # -- the parts of a round, for training batched with other clients

    def parted(self, theta: Vector) -> tuple[Vector, Mapping[str, torch.Tensor]]:
        """Split θ into the parameters' values and the control variate by name, if any. ValueError for another size."""
        if theta.shape != (self.manifest.size,):
            raise ValueError(f"theta has shape {theta.shape}, the model has {self.manifest.size} values")
        d = self.vector.manifest.charged.size
        if not self.method.has_control:
            return theta[:d], {}
        control = views(on_device(theta[d : 2 * d], self.device), self._shapes)
        return theta[:d], dict(zip(self.vector.parameters, control, strict=True))

    def orders(self, round: int) -> tuple[int, Iterator[IntArray]]:
        """The seed of a round's dropout, and for each epoch the order of all examples."""
        rng = generator(self._seed, "batches", self._client_id, round)
        return int(rng.integers(2**63)), (rng.permutation(self.n_examples) for _ in range(self.settings.epochs))

    def drawn(self, round: int) -> tuple[int, Iterator[torch.Tensor]]:
        """The seed of a round's dropout, and for each step the rows of its examples."""
        seed, orders = self.orders(round)
        epochs = (torch.split(on_device(order, self.device), self.settings.batch_size) for order in orders)
        return seed, itertools.islice(itertools.chain.from_iterable(epochs), self.steps)

    def rate(self, round: int) -> float | None:
        """The scheduled learning rate of a round. None without a schedule: the settings' rate holds."""
        return None if self._rates is None else self._rates.at(round)

    def with_control(self, update: Vector, method: TrainingMethod) -> Vector:
        """An update, followed by the change of the control variate, if the method has one. Missing tensors are 0."""
        if not method.has_control:
            return update
        change = method.control_change()
        of_each = [change.get(name, p.new_zeros(())).expand_as(p) for name, p in self.vector.parameters.items()]
        (flat,) = off_device(torch.cat([tensor.reshape(-1).to(self.device, torch.float32) for tensor in of_each]))
        return np.concatenate((update, flat))

    def optimizer_states(self) -> JoinedStates:
        """The optimizer's states for all of the model's parameters. The caller must not change them."""
        if remembered := self._remembered:  # read once, since another thread may be loading it into the optimizer
            return remembered
        return joined([self._optimizer.state.get(parameter, {}) for parameter in self._parameters], self._shapes)

    def remember(self, optimizer_states: JoinedStates, method: TrainingMethod) -> None:
        """Take over the state after batched training, as if the trainer had trained by itself."""
        self._remembered = optimizer_states
        self._optimizer.state.clear()
        self.method = method

    # -- what survives a restart

    def state(self) -> bytes:
        """The states of optimizer (such as Adam's moments), method and own buffers. Empty if all are at their start."""
        own = ((n, buffer.detach()) for n, buffer in self.model.named_buffers() if n in self._fresh)
        changed = {name: buffer for name, buffer in own if not torch.equal(buffer, self._fresh[name])}
        of_client = {"method": checked_state(self.method), "statistics": changed}
        optimizer = self._optimizer.state_dict()
        if self._remembered:
            optimizer["state"] = {_ALL: self._remembered}
        described = self._described(optimizer)
        is_fresh = optimizer.get("state") == {} if described is None else described == self._fresh_optimizer
        if is_fresh and not any(of_client.values()):
            return b""
        return self._state_writer.written(optimizer, of_client)

    def restore(self, state: bytes) -> None:
        """Replace all states by saved ones. Empty bytes reset them to their start."""
        self._optimizer, self._remembered = new_optimizer(self.method, self.model, self.settings), {}
        self._constants.put_back()  # a training that was broken off has not done so
        of_optimizer, of_client = read_states(state, self.device) if state else ({}, {})
        self.method.restore(of_client.get("method", {}))
        values = self._fresh | of_client.get("statistics", {})
        for name, buffer in self.model.named_buffers():
            if name in values:
                buffer.data = values[name].clone()
        if of_optimizer:
            states = of_optimizer["state"]
            if _ALL in states:
                states.update(enumerate(parted(states.pop(_ALL), self._shapes)))
            self._optimizer.load_state_dict(of_optimizer)
            self._lay_out_states()

    def _described(self, optimizer: Mapping[str, Any]) -> bytes | None:
        """An optimizer's state without a learning rate that the schedule sets. None if it holds tensors or objects."""
        scheduled: dict[str, Any] = {} if self._rates is None else {"lr": 0.0}
        groups = [{**group, **scheduled} for group in optimizer["param_groups"]]
        return comparable({**optimizer, "param_groups": groups})

    def _current_optimizer(self) -> torch.optim.Optimizer:
        """The optimizer, after states from batched training that it lacks were loaded into it."""
        if self._remembered:
            states = parted(self._remembered, self._shapes)
            self._optimizer.state.update(zip(self._parameters, states, strict=True))
            self._lay_out_states()
            self._remembered = {}
        return self._optimizer

    def _lay_out_states(self) -> None:
        """Bring states that were written or joined, which lost it, into the order in memory of their parameters."""
        for parameter in self._parameters:
            states = self._optimizer.state.get(parameter, {})
            for name, value in states.items() if isinstance(states, dict) else ():
                if isinstance(value, torch.Tensor) and value.layout is torch.strided and value.shape == parameter.shape:
                    states[name] = laid_out(value, parameter)

    def _batches(self, rows: list[torch.Tensor]) -> Iterator[Batch]:
        """Yield the round's batches until its job is withdrawn. Several are gathered in one call, which is faster."""
        example_bytes = 4 * max(1, self.inputs[0].numel())
        at_once = max(1, gathered_bytes(self.device) // (example_bytes * self.settings.batch_size))
        for start in range(0, len(rows), at_once):
            of_steps = rows[start : start + at_once]
            gathered, sizes = torch.cat(of_steps), [len(of_step) for of_step in of_steps]
            inputs = normalise(self.inputs[gathered])
            parts = (torch.split(values, sizes) for values in (inputs, self.targets[gathered]))
            for each in map(Batch, *parts):
                stop_if_withdrawn()
                yield each


def normalise(inputs: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """uint8 images as float32 in [−1, 1], written to `out` if given; int32 tokens as int64; others as they are."""
    if inputs.dtype == torch.uint8:
        return torch.div(inputs, 127.5, out=out).sub_(1)
    return inputs.long() if inputs.dtype == torch.int32 else inputs


def use_one_thread() -> None:
    """Let torch compute in the calling thread only, because client processes share the cores.

    torch keeps this limit per thread. In a new thread MKL would use all cores for a matrix product, until another
    operation applied the limit. Its sums would also be rounded in another order.
    """
    torch.set_num_threads(1)


def resolve_device(name: str) -> torch.device:
    """The device for "auto" (CUDA if present, else the CPU), "cpu", "cuda" or "cuda:N". ConfigError if it is missing.

    It asks the CUDA driver, so it must not be called in a process that forks later.
    """
    cuda = name != "cpu" and torch.cuda.is_available()
    if ":" in name:
        return torch.device("cuda", dealt_device(name, 0, torch.cuda.device_count() if cuda else 0))
    if name == "cuda" and not cuda:
        raise ConfigError('workload.device = "cuda": torch finds no CUDA device')
    return torch.device("cuda" if cuda else "cpu")


def dealt_device(name: str, process: int, count: int) -> int:
    """The CUDA device, of `count`, of client process number `process`: in turn, or N for "cuda:N". Or ConfigError."""
    _, _, number = name.partition(":")
    if not number:
        return process % count
    if int(number) >= count:
        found = f"{count} CUDA devices, from cuda:0 on" if count else "no CUDA device"
        raise ConfigError(f'workload.device = "{name}": torch finds {found}')
    return int(number)
