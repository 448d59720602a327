"""Local training of one client with torch."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from pausefl_client.data.datasets import Examples
from pausefl_client.data.holdings import Holding, holding_of
from pausefl_client.data.tasks import LearningTask
from pausefl_client.training.device_copies import gathered_bytes, off_device, on_device
from pausefl_client.training.joined_states import JoinedStates, joined, parted
from pausefl_client.training.method import Batch, TrainingMethod, checked_losses, checked_state
from pausefl_client.training.model_vector import ConstantBuffers, ModelVector
from pausefl_client.training.optimizers import LearningRates
from pausefl_client.training.paced import steps_of
from pausefl_client.training.random_layers import RandomLayers
from pausefl_client.training.saved_states import StateWriter, read_states
from pausefl_client.training.tasks import Classification
from pausefl_client.training.trainer import TrainingOutcome, TrainingSettings
from pausefl_client.training.withdrawal import stop_if_withdrawn
from pausefl_proto.arrays import IntArray
from pausefl_proto.draws import generator
from pausefl_proto.errors import ConfigError
from pausefl_proto.wire import MAX_STATISTICS, Vector


@dataclass(frozen=True)
class LocalData:
    """The data that one client trains on."""

    examples: Examples
    classes: int = 0
    """How many the task has, for `label_counts` to count those without examples here as well."""
    holding: Holding | None = None
    """Of the data before anything was done to them; None: nothing was."""
    task: LearningTask | None = None
    """The task; None: classification."""


class TorchTrainer:
    """Trains a torch model on one client's examples; keeps the optimizer's state between rounds, as published."""

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
        """`method` is the plain one unless given; it must be this client's own."""
        self.model = model.to(device)
        self.task = data.task or Classification()
        self.method = method or TrainingMethod()
        self.settings = settings
        self.device = device
        examples = data.examples
        self.n_examples = len(examples)
        counts = np.bincount(examples.labels, minlength=data.classes) if examples.has_classes else ()
        self.label_counts = {f"label_{c}": float(n) for c, n in enumerate(counts) if len(counts) <= MAX_STATISTICS}
        self.vector = ModelVector(model, settings.statistics)
        self._own_statistics = self.vector.statistics if settings.statistics == "local" else {}
        self._fresh_statistics = {name: statistic.clone() for name, statistic in self._own_statistics.items()}
        self._constants = ConstantBuffers(model)
        self.holding = data.holding or holding_of(examples, dealing="")
        self.inputs = torch.from_numpy(examples.inputs).to(device)
        """Of all examples, as they are stored: images as bytes (`normalise`)."""
        self.targets = torch.from_numpy(examples.labels).to(device)
        is_convolved = examples.inputs.ndim == 4 and any(isinstance(module, nn.Conv2d) for module in model.modules())
        # For convolutions: torch then pools several times as fast on a processor.
        self._has_channels_last = is_convolved and device.type == "cpu"
        of_model = self.vector.manifest
        self.manifest = of_model.with_control() if self.method.has_control else of_model
        self._tensors = of_model.charged
        self._parameters = list(self.vector.parameters.values())
        self._shapes = [parameter.shape for parameter in self._parameters]
        self._optimizer = self.method.optimizer(self.model, settings)
        self._remembered: JoinedStates = {}
        """Of a training together, which the optimizer gets when it is needed; empty: it has what there is."""
        self._state_writer = StateWriter()
        self._random_layers = RandomLayers(self.model, self.method, self.task, device)
        self._rates = LearningRates(settings) if settings.schedule else None
        self._seed = seed
        self._client_id = client_id

    def train(self, theta: Vector, *, round: int) -> TrainingOutcome:
        """Train from θ, (d,) float32. Batches, and dropout if the model has any, depend on (seed, client, round) alone.

        `manifest` says what follows θ and the update: a control variate and its change, and running statistics. Returns
        when the device is done, so that a clock read before and after measures the training.
        """
        use_one_thread()
        start, control = self.parted(theta)
        statistics = theta[self.manifest.charged.size :]
        seed, rows = self.drawn(round)
        self.vector.fill(np.concatenate((start, statistics)) if statistics.size else start)
        if self.vector.is_rounded:
            start = self.vector.values()[: start.size]
        self.model.train()
        optimizer = self._current_optimizer()
        if (rate := self.rate(round)) is not None:
            for group in optimizer.param_groups:
                group["lr"] = rate
        if self.method.has_control:
            self.method.take_control(control)
        with self._random_layers.seeded(seed):
            self.method.begin_round(self.model, round)
            losses = self.method.local_steps(self.model, optimizer, self._batches(rows), self.task)
            self.method.end_round(self.model)
        loss = torch.stack(checked_losses(losses, self.method)).mean()
        self._constants.put_back()
        trained, mean_loss = off_device(self.vector.on_device(), loss)
        update = self.with_control(trained[: start.size] - start, self.method)
        if statistics.size:
            update = np.concatenate((update, trained[start.size :]))
        return TrainingOutcome(update, float(mean_loss))

    # -- the parts of a round, for training that is batched with other clients'

    @property
    def steps(self) -> int:
        """The optimizer steps of a round."""
        return steps_of(self.settings, self.n_examples)

    def parted(self, theta: Vector) -> tuple[Vector, Mapping[str, torch.Tensor]]:
        """The parameters' values, and the server's control variate by the parameters' names; empty without one.

        ValueError where `theta` has not the size of `manifest`.
        """
        if theta.shape != (self.manifest.size,):
            raise ValueError(f"theta has shape {theta.shape}, the model has {self.manifest.size} values")
        d = self._tensors.size
        return theta[:d], self.named(theta[d : 2 * d]) if self.method.has_control else {}

    def orders(self, round: int) -> tuple[int, Iterator[IntArray]]:
        """The seed of a round's dropout, and the order of all examples in each epoch."""
        rng = generator(self._seed, "batches", self._client_id, round)
        return int(rng.integers(2**63)), (rng.permutation(self.n_examples) for _ in range(self.settings.epochs))

    @property
    def draws_nothing(self) -> bool:
        """Whether model, method and task are known to draw nothing at random."""
        return self._random_layers.draw_nothing

    def drawn(self, round: int) -> tuple[int, Iterator[torch.Tensor]]:
        """The seed of a round's dropout, and the rows of each step's examples."""
        seed, orders = self.orders(round)
        return seed, itertools.islice(self._rows(orders), self.steps)

    def rate(self, round: int) -> float | None:
        """The learning rate of a round; None: that of the settings."""
        return None if self._rates is None else self._rates.at(round)

    def with_control(self, update: Vector, method: TrainingMethod) -> Vector:
        """An update, followed by the method's change of the control variate if it has one."""
        return np.concatenate((update, self._flat(method.control_change()))) if method.has_control else update

    def optimizer_states(self) -> JoinedStates:
        """The optimizer's memory of all of the model's parameters; not to be changed."""
        if remembered := self._remembered:  # first, since another thread may be about to give it to the optimizer
            return remembered
        return joined([self._optimizer.state.get(parameter, {}) for parameter in self._parameters], self._shapes)

    def remember(self, optimizer_states: JoinedStates, method: TrainingMethod) -> None:
        """Go on with these, which are now the trainer's, as after a training of its own."""
        self._remembered = optimizer_states
        self._optimizer.state.clear()
        self.method = method

    # -- what survives a restart

    def state(self) -> bytes:
        """The states of optimizer and method, such as Adam's moments, and the client's running statistics.

        Empty where there are none, as for plain SGD.
        """
        of_client = {"method": checked_state(self.method), "statistics": self._own_statistics}
        optimizer = self._current_optimizer()
        of_optimizer = (value for of_one in optimizer.state.values() for value in of_one.values())
        if not (any(of_client.values()) or any(torch.is_tensor(value) for value in of_optimizer)):
            return b""
        return self._state_writer.written(optimizer.state_dict(), of_client)

    def restore(self, state: bytes) -> None:
        """Go on with these states; empty: with fresh ones."""
        self._optimizer, self._remembered = self.method.optimizer(self.model, self.settings), {}
        of_optimizer, of_client = read_states(state, self.device) if state else ({}, {})
        self.method.restore(of_client.get("method", {}))
        for name, statistic in of_client.get("statistics", self._fresh_statistics).items():
            self._own_statistics[name].copy_(statistic)
        if of_optimizer:
            self._optimizer.load_state_dict(of_optimizer)

    def _current_optimizer(self) -> torch.optim.Optimizer:
        """The optimizer, with all that is remembered."""
        if self._remembered:
            states = parted(self._remembered, self._shapes)
            self._optimizer.state.update(zip(self._parameters, states, strict=True))
            self._remembered = {}
        return self._optimizer

    def _rows(self, orders: Iterator[IntArray]) -> Iterator[torch.Tensor]:
        """Those of each step: all examples in the order of every epoch."""
        for order in orders:
            yield from torch.split(on_device(order, self.device), self.settings.batch_size)

    def _batches(self, rows: Iterator[torch.Tensor]) -> Iterator[Batch]:
        """Those of a round, until its job is withdrawn; gathered several at a time, which takes fewer calls."""
        example_bytes = 4 * max(1, self.inputs[0].numel())
        at_once = max(1, gathered_bytes(self.device) // (example_bytes * self.settings.batch_size))
        while of_steps := list(itertools.islice(rows, at_once)):
            gathered, sizes = torch.cat(of_steps), [len(of_step) for of_step in of_steps]
            inputs = normalise(self.inputs[gathered])
            if self._has_channels_last:
                inputs = inputs.contiguous(memory_format=torch.channels_last)
            parts = (torch.split(values, sizes) for values in (inputs, self.targets[gathered]))
            for each in map(Batch, *parts):
                stop_if_withdrawn()
                yield each

    def named(self, vector: Vector) -> dict[str, torch.Tensor]:
        """A vector of the parameters' size as new tensors on their device."""
        tensors = self._tensors.tensors
        parts = torch.split(on_device(vector, self.device), [tensor.size for tensor in tensors])
        return {tensor.name: part.view(tensor.shape) for tensor, part in zip(tensors, parts, strict=True)}

    def _flat(self, tensors: Mapping[str, torch.Tensor]) -> Vector:
        """The other way round; 0 for tensors that are not there."""
        flat: Vector = np.zeros(self._tensors.size, np.float32)
        parts = {name: part for name, part in self._tensors.split(flat).items() if name in tensors}
        for part, values in zip(parts.values(), off_device(*(tensors[name] for name in parts)), strict=True):
            part[...] = values
        return flat


def normalise(inputs: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """uint8 images to float32 in [−1, 1] (mean 0.5, sd 0.5 of values in [0, 1]); features and tokens as they are.

    `out` is a float32 tensor that is to hold the images.
    """
    return torch.div(inputs, 127.5, out=out).sub_(1) if inputs.dtype == torch.uint8 else inputs


def use_one_thread() -> None:
    """Let torch compute on the calling thread and on no other: client processes share the cores.

    torch keeps this limit thread by thread. In a new thread MKL would share a matrix product among all cores until
    some other operation took the limit over, and round its sums in another order.
    """
    torch.set_num_threads(1)


def resolve_device(name: str) -> torch.device:
    """ "auto" (CUDA when present, else the CPU), "cpu", "cuda" or "cuda:N"; ConfigError for a device not there.

    Asks the CUDA driver, so it must not be called in a process that is yet to fork.
    """
    cuda = name != "cpu" and torch.cuda.is_available()
    if ":" in name:
        return torch.device("cuda", dealt_device(name, 0, torch.cuda.device_count() if cuda else 0))
    if name == "cuda" and not cuda:
        raise ConfigError('workload.device = "cuda": torch finds no CUDA device')
    return torch.device("cuda" if cuda else "cpu")


def dealt_device(name: str, process: int, count: int) -> int:
    """Which of a machine's `count` CUDA devices its client process of this number uses: they take turns.

    "cuda:N" names one for all of them; ConfigError where that is not there.
    """
    _, _, number = name.partition(":")
    if not number:
        return process % count
    if int(number) >= count:
        found = f"{count} CUDA devices, from cuda:0 on" if count else "no CUDA device"
        raise ConfigError(f'workload.device = "{name}": torch finds {found}')
    return int(number)
