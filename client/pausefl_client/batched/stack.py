"""k models of one architecture in shared memory: a matrix of values and one of gradients, with one row per model."""

import copy
import itertools
from collections.abc import Sequence

import torch
from torch import nn

from pausefl_client.batched.layers import NotStackable, StackedNetwork
from pausefl_client.batched.perceptrons import differentiate, perceptron_of
from pausefl_client.batched.replays import Recorder, Replays
from pausefl_client.training.model_vector import views
from pausefl_client.training.optimizer_states import JoinedStates, copied
from pausefl_client.training.optimizers import make_optimizer
from pausefl_client.training.trainer import TrainingSettings


def _make_recordable(optimizer: torch.optim.Optimizer, device: torch.device) -> bool:
    """Let an optimizer's step be recorded and its learning rate still be changed. False if that is impossible."""
    (group,) = optimizer.param_groups
    if not group.get("fused"):
        return False
    group["lr"] = torch.tensor(group["lr"], dtype=torch.float32, device=device)
    if "capturable" in group:
        group["capturable"] = True
    return True


class ModelStack:
    """Models as rows of one (k, d) matrix: each is one parameter of an optimizer, elementwise like all `OPTIMIZERS`."""

    def __init__(
        self, template: nn.Module, settings: TrainingSettings, size: int, recorder: Recorder | None = None
    ) -> None:
        """Make `size` models like `template`, on its device. NotStackable if they cannot be batched."""
        self.size = size
        self.replays = Replays(recorder)
        """Recordings of the pass that sets the gradients of the learning models."""
        self._network = StackedNetwork(template)
        self._perceptron = perceptron_of(template)
        parameters = list(template.parameters())
        self._shapes = [parameter.shape for parameter in parameters]
        self._sizes = [parameter.numel() for parameter in parameters]
        self.values = parameters[0].new_zeros((size, sum(self._sizes))).detach()
        """The models' values, (k, d)."""
        self._gradients = torch.zeros_like(self.values)
        self._copies = [self.values.new_empty((size, n)) for n in self._sizes]
        """Copies of each parameter, (k, n): layers need parameters contiguous, the optimizer needs rows of models."""
        self._learning = 0
        self._of_learning: list[torch.Tensor] = []
        """The rows of `_copies` of the models that learn."""
        self._leaves: list[torch.Tensor] = []
        """`_of_learning` as autograd's leaves, one (k, *shape) for each parameter."""
        self._in_place: tuple[list[torch.Tensor], list[torch.Tensor]] = [], []
        """Views (k, *shape) of each parameter's values and gradients in the optimizer's memory."""
        self._rows = [nn.Parameter(row) for row in self.values]
        self._optimizer = make_optimizer(settings, list(self._rows))
        self.steps_are_recorded = recorder is not None and _make_recordable(self._optimizer, self.values.device)
        """Whether a recorded pass may include the optimizer's step."""
        self.models = [self._model(template, row) for row in range(size)]
        """The k models. They can be read, changed and passed to a `TrainingMethod` like any other model."""
        self._places = [
            list(zip(model.parameters(), views(gradient, self._shapes), strict=True))
            for model, gradient in zip(self.models, self._gradients, strict=True)
        ]
        """For each model, its parameters, each with the view that holds its gradient."""

    def begin(self, theta: torch.Tensor, states: Sequence[JoinedStates], rate: float | None) -> None:
        """Set the first len(states) models to θ, (d,), and the optimizer's states to copies of `states`.

        `rate` is the learning rate. None: that of the settings.
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
            parameter.grad = gradient  # an aborted round may have left a method's own gradient tensor there
        self.learn(used)

    def _remember(self, states: Sequence[JoinedStates]) -> None:
        """Set the optimizer's states to copies of these. If steps are recorded, copy into its existing tensors."""
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
            elif own:  # states of 0, as for a model that has not trained
                torch._foreach_zero_(list(own.values()))
        if places:
            torch._foreach_copy_(places, values)

    def _beside(self, of_another: JoinedStates) -> JoinedStates:
        """The optimizer's states for a model that has not trained yet, beside a model that has. Empty for none.

        torch's fused SGD needs momentum for all models or none. Without dampening, a step from momentum 0 is the same.
        """
        if not isinstance(self._optimizer, torch.optim.SGD):
            return {}
        return {name: torch.zeros_like(value) for name, value in of_another.items()}

    def learn(self, count: int) -> None:
        """Let only the first `count` models learn."""
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

    def classify(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor | None:
        """Set the gradients of learning perceptrons, and return the cross-entropy of each. None of other models."""
        if self._perceptron is None:
            return None
        return differentiate(self._perceptron, *self._in_place, inputs, targets)

    def outputs(self, inputs: torch.Tensor) -> torch.Tensor:
        """The outputs of the learning models for (k, n, *shape) inputs."""
        with torch.no_grad():
            torch.split_with_sizes_copy(self.values[: self._learning], self._sizes, 1, out=self._of_learning)
        return self._network(self._leaves, inputs)

    def differentiate(self, loss: torch.Tensor) -> None:
        """Set the gradients of the learning models. `loss` is the sum of their losses."""
        gradients = [gradient.flatten(1) for gradient in torch.autograd.grad(loss, self._leaves)]
        torch.cat(gradients, 1, out=self._gradients[: self._learning])

    def take_gradients(self, count: int) -> None:
        """Copy gradients that a method replaced in the first `count` models back into the stack's memory."""
        for parameter, place in itertools.chain(*self._places[:count]):
            if parameter.grad is None:
                raise NotStackable("the training method takes gradients away")
            if parameter.grad is not place:
                place.copy_(parameter.grad)
                parameter.grad = place

    def step(self) -> None:
        """Take the optimizer's step for all learning models."""
        self._optimizer.step()

    def states(self, row: int) -> JoinedStates:
        """The optimizer's states for a model. From the next `begin` on, the stack no longer changes them."""
        states: JoinedStates = self._optimizer.state.get(self._rows[row], {})
        return {name: copied(value) for name, value in states.items()} if self.steps_are_recorded else states

    def _stacked(self, rows: torch.Tensor) -> list[torch.Tensor]:
        """Split (k, d) into views, (k, *shape) for each parameter."""
        parts = torch.split(rows, self._sizes, 1)
        return [part.view(len(rows), *shape) for part, shape in zip(parts, self._shapes, strict=True)]

    def _model(self, template: nn.Module, row: int) -> nn.Module:
        model = copy.deepcopy(template)
        for parameter, values in zip(model.parameters(), views(self.values[row], self._shapes), strict=True):
            parameter.data = values
        return model
