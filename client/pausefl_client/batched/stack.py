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


def _make_recordable(optimizer: torch.optim.Optimizer, device: torch.device) -> bool:
    """Let an optimizer's step be recorded, with a learning rate that can then be changed; False where it cannot be."""
    (group,) = optimizer.param_groups
    if not group.get("fused"):
        return False
    group["lr"] = torch.tensor(group["lr"], dtype=torch.float32, device=device)
    if "capturable" in group:
        group["capturable"] = True
    return True


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
        self._copies = [self.values.new_empty((size, n)) for n in self._sizes]
        """Of the values of each parameter, (k, n): layers want them side by side, and the optimizer each model's."""
        self._learning = 0
        self._of_learning: list[torch.Tensor] = []
        """`_copies` of the models that learn."""
        self._leaves: list[torch.Tensor] = []
        """These as parameters, (k, *shape)."""
        self._in_place: tuple[list[torch.Tensor], list[torch.Tensor]] = [], []
        """Values and gradients of each parameter, (k, *shape), where the optimizer has them."""
        self._rows = [nn.Parameter(row) for row in self.values]
        self._optimizer = make_optimizer(settings, list(self._rows))
        self.steps_are_recorded = recorder is not None and _make_recordable(self._optimizer, self.values.device)
        """Whether a recorded pass may end with the optimizer's step."""
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
        if rate is not None and isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate)
        elif rate is not None:
            group["lr"] = rate
        fresh = self._beside(next(filter(None, states), {}))
        self._remember([of_model or fresh for of_model in states])
        for parameter, gradient in itertools.chain(*self._places[:used]):
            parameter.grad = gradient  # a round that broke off may have left a method's own there
        self.learn(used)

    def _remember(self, states: Sequence[JoinedStates]) -> None:
        """Let the optimizer remember copies of these; where steps are recorded, in the places that it has."""
        known = self._optimizer.state
        if not self.steps_are_recorded:
            known.clear()
        places: list[torch.Tensor] = []
        values: list[torch.Tensor] = []
        for row, of_model in zip(self._rows, states, strict=False):
            own = {name: place for name, place in known.get(row, {}).items() if isinstance(place, torch.Tensor)}
            if not own and of_model:
                known[row] = {name: copied(value) for name, value in of_model.items()}
            elif of_model:
                places += own.values()
                values += [of_model[name] for name in own]
            elif own:  # as of a model that has not trained
                torch._foreach_zero_(list(own.values()))
        if places:
            torch._foreach_copy_(places, values)

    def _beside(self, of_another: JoinedStates) -> JoinedStates:
        """The optimizer's states for a model that has not trained yet, where another has; empty: none.

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
        if count == self._learning:
            return
        self._learning = count
        self._of_learning = [copies[:count] for copies in self._copies]
        shaped = zip(self._of_learning, self._shapes, strict=True)
        self._leaves = [copies.view(count, *shape).requires_grad_() for copies, shape in shaped]
        self._in_place = self._stacked(self.values[:count]), self._stacked(self._gradients[:count])

    @property
    def is_of_perceptrons(self) -> bool:
        """Whether the models have a shorter way to the gradients of a cross-entropy (`classify`)."""
        return self._perceptron is not None

    def classify(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Set the gradients of the perceptrons that learn, and return the cross-entropy of each; −1 does not count."""
        if self._perceptron is None:
            raise ValueError("the models are no perceptrons")
        return differentiate(self._perceptron, *self._in_place, inputs, targets)

    def outputs(self, inputs: torch.Tensor) -> torch.Tensor:
        """Outputs of the models that learn for (k, n, *shape) inputs."""
        with torch.no_grad():
            torch.split_with_sizes_copy(self.values[: self._learning], self._sizes, 1, out=self._of_learning)
        return self._network(self._leaves, inputs)

    def differentiate(self, loss: torch.Tensor) -> None:
        """Set the gradients of the models that learn; `loss` is the sum of theirs."""
        gradients = [gradient.flatten(1) for gradient in torch.autograd.grad(loss, self._leaves)]
        torch.cat(gradients, 1, out=self._gradients[: self._learning])

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
        """The optimizer's memory of a model; it is the caller's from the next `begin` on."""
        states: JoinedStates = self._optimizer.state.get(self._rows[row], {})
        return {name: copied(value) for name, value in states.items()} if self.steps_are_recorded else states

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
