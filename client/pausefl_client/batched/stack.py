"""k models of one architecture in common memory: a matrix of values and one of gradients, with a row for each."""

import copy
import itertools
from collections.abc import Sequence

import torch
from torch import nn

from pausefl_client.batched.layers import NotStackable, StackedNetwork
from pausefl_client.batched.perceptrons import differentiate, perceptron_of
from pausefl_client.batched.replays import Recorder, Replays
from pausefl_client.training.joined_states import JoinedStates, copied
from pausefl_client.training.optimizers import make_optimizer
from pausefl_client.training.trainer import TrainingSettings


class ModelStack:
    """Models whose values are rows of one (k, d) matrix, and an optimizer to which each row is one parameter.

    That is exact for optimizers that treat every value by itself, as all that `registries.OPTIMIZERS` names do.
    """

    def __init__(
        self, template: nn.Module, settings: TrainingSettings, size: int, recorder: Recorder | None = None
    ) -> None:
        """`size` models like `template`, on its device; NotStackable where these cannot be batched."""
        self.size = size
        self.replays = Replays(recorder)
        """Of the pass that sets the gradients of the models that learn."""
        self._network = StackedNetwork(template)
        self._perceptron = perceptron_of(template)
        parameters = list(template.parameters())
        self._shapes = [parameter.shape for parameter in parameters]
        self._sizes = [parameter.numel() for parameter in parameters]
        self.values = parameters[0].new_zeros((size, sum(self._sizes))).detach()
        """(k, d)."""
        self._gradients = torch.zeros_like(self.values)
        self._leaves: list[torch.Tensor] = []
        self._leaf_gradients: list[torch.Tensor] = []
        self._learning = 0
        self._rows = [nn.Parameter(row) for row in self.values]
        self._optimizer = make_optimizer(settings, list(self._rows))
        self.models = [self._model(template, row) for row in range(size)]
        """They can be read, changed and handed to a `TrainingMethod` like any other model."""
        self._places = [
            list(zip(model.parameters(), self._parted(gradient), strict=True))
            for model, gradient in zip(self.models, self._gradients, strict=True)
        ]
        """Of the gradients of each model's parameters."""

    def begin(self, theta: torch.Tensor, states: Sequence[JoinedStates], rate: float | None) -> None:
        """Set the first len(states) models to θ, (d,), and what the optimizer remembers of each, which is copied.

        `rate` is the learning rate, None: that of the settings.
        """
        used = len(states)
        self.values[:used] = theta
        (group,) = self._optimizer.param_groups
        group["params"] = self._rows[:used]
        if rate is not None:
            group["lr"] = rate
        self._optimizer.state.clear()
        fresh = self._beside(next(filter(None, states), {}))
        for row, of_model in zip(self._rows, states, strict=False):
            if of_model or fresh:
                self._optimizer.state[row] = {name: copied(value) for name, value in (of_model or fresh).items()}
        for parameter, gradient in itertools.chain(*self._places[:used]):
            parameter.grad = gradient  # a round that broke off may have left a method's own there
        self.learn(used)

    def _beside(self, of_another: JoinedStates) -> JoinedStates:
        """What the optimizer is told of a model that has not trained yet, where another has; empty: nothing.

        torch's fused SGD takes momentum of all models or of none. Without dampening the first step from 0 is the same.
        """
        if not isinstance(self._optimizer, torch.optim.SGD):
            return {}
        return {name: torch.zeros_like(value) for name, value in of_another.items()}

    def learn(self, count: int) -> None:
        """Let the first `count` models learn, and no other."""
        for row, gradient in zip(self._rows[:count], self._gradients, strict=False):
            row.grad = gradient
        for row in self._rows[count:]:
            row.grad = None
        if count != self._learning:
            self._leaves = [leaf.requires_grad_() for leaf in self._stacked(self.values[:count])]
            self._leaf_gradients = self._stacked(self._gradients[:count])
            self._learning = count

    @property
    def is_of_perceptrons(self) -> bool:
        """Whether the models have a shorter way to the gradients of a cross-entropy (`classify`)."""
        return self._perceptron is not None

    def classify(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Set the gradients of the perceptrons that learn, and return the cross-entropy of each; −1 does not count."""
        if self._perceptron is None:
            raise ValueError("the models are no perceptrons")
        return differentiate(self._perceptron, self._leaves, self._leaf_gradients, inputs, targets)

    def outputs(self, inputs: torch.Tensor) -> torch.Tensor:
        """What the models that learn make of (k, n, *shape) inputs."""
        return self._network(self._leaves, inputs)

    def differentiate(self, loss: torch.Tensor) -> None:
        """Set the gradients of the models that learn; `loss` is the sum of theirs."""
        for row, gradient in zip(self._leaf_gradients, torch.autograd.grad(loss, self._leaves), strict=True):
            row.copy_(gradient)

    def take_gradients(self, count: int) -> None:
        """Take over the gradients that a method has put into the places of the first `count` models' rows."""
        for parameter, place in itertools.chain(*self._places[:count]):
            if parameter.grad is None:
                raise NotStackable("the training method takes gradients away")
            if parameter.grad is not place:
                place.copy_(parameter.grad)
                parameter.grad = place

    def step(self) -> None:
        """Take the optimizer's step, for all models that learn."""
        self._optimizer.step()

    def states(self, row: int) -> JoinedStates:
        """What the optimizer remembers of a model; it is the caller's from the next `begin` on."""
        states: JoinedStates = self._optimizer.state.get(self._rows[row], {})
        return states

    def _stacked(self, rows: torch.Tensor) -> list[torch.Tensor]:
        """(k, d) as a view (k, *shape) for each parameter."""
        parts = torch.split(rows, self._sizes, 1)
        return [part.view(len(rows), *shape) for part, shape in zip(parts, self._shapes, strict=True)]

    def _parted(self, row: torch.Tensor) -> list[torch.Tensor]:
        """(d,) as a view for each parameter."""
        return [part.view(shape) for part, shape in zip(torch.split(row, self._sizes), self._shapes, strict=True)]

    def _model(self, template: nn.Module, row: int) -> nn.Module:
        model = copy.deepcopy(template)
        values = iter(self._parted(self.values[row]))
        for module in model.modules():
            for name, old in module._parameters.items():
                if old is not None:
                    module._parameters[name] = nn.Parameter(next(values))
        return model
