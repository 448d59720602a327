"""FedGen, data-free knowledge distillation (Zhu, Hong and Zhou, ICML 2021): a row of Table II of the Fed-TS paper."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional

from pausefl_client.data.tasks import LearningTask
from pausefl_client.training.method import Batch, RememberingMethod, copies
from pausefl_client.training.methods.features import with_features
from pausefl_client.training.tasks import Classification
from pausefl_proto.draws import stable_hash
from pausefl_proto.errors import ConfigError
from pausefl_proto.number_types import Bounded, Count, Positive

_HIDDEN, _NOISE, _BATCH = 256, 32, 32  # widths of the authors' generator for MNIST, and their batch


@dataclass
class FedGen(Bounded, RememberingMethod):
    """Adds to the loss that of features z ~ G_w(z | y) of labels y, under the model's last linear layer (eq. (5)).

    Before the round's first step, w takes K steps: w ← w − α ∇ ℓ(h(G_w(z | y)), y), with h the last layer of the
    round's model θ (eq. (4)). docs/training.md says why clients can take the steps that the paper's server takes.
    """

    remembered_as: ClassVar[str] = "generator"  # w

    steps: Count = 20
    """K, the generator's steps in a round."""
    learning_rate: Positive = 0.1
    """α, the generator's learning rate."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._round = 0
        self._generator: nn.Module | None = None  # trained by the round's first pass, which shows the last layer

    def begin_round(self, model: nn.Module, round: int) -> None:
        self._round, self._generator = round, None

    def loss(self, model: nn.Module, batch: Batch, task: LearningTask) -> torch.Tensor:
        """The task's loss, and that of as many generated features."""
        outputs, _, head = with_features(model, batch.inputs, "FedGen")
        if not isinstance(task, Classification) or outputs.shape != (len(batch.inputs), head.out_features):
            raise ConfigError('workload.training = "FedGen": needs a class for each example, from a last linear layer')
        if self._generator is None:
            self._generator = self._trained(head)  # the model is still θ
        labels = torch.randint(head.out_features, (len(outputs),), device=outputs.device)
        noise = head.weight.new_empty(len(outputs), _NOISE).normal_()
        features = generated(self._generator, labels, head.out_features, noise)
        return task.loss(outputs, batch.targets) + task.loss(head(features), labels)

    def end_round(self, model: nn.Module) -> None:
        self.remembered = copies(self._generator.state_dict()) if self._generator else {}

    def _trained(self, head: nn.Linear) -> nn.Module:
        """G_w after K steps. All clients draw the same, so those that train in the same rounds have the same w."""
        classes = head.out_features
        with torch.random.fork_rng(devices=()):
            torch.default_generator.manual_seed(0)  # the CPU's alone
            layers = nn.Linear(_NOISE + classes, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, head.in_features)
        generator = nn.Sequential(*layers).to(head.weight)
        generator.load_state_dict(self.remembered or generator.state_dict())
        draws = torch.Generator().manual_seed(stable_hash(self._round, "fedgen", "w"))
        for _ in range(self.steps):
            labels = torch.randint(classes, (_BATCH,), generator=draws).to(head.weight.device)
            noise = torch.randn(_BATCH, _NOISE, generator=draws).to(head.weight)
            loss = functional.cross_entropy(head(generated(generator, labels, classes, noise)), labels)
            gradients = torch.autograd.grad(loss, [*generator.parameters()])
            # not by an optimizer of torch, which stays in memory until a garbage collection
            for parameter, gradient in zip(generator.parameters(), gradients, strict=True):
                parameter.data.add_(gradient, alpha=-self.learning_rate)
        return generator.requires_grad_(False)


def generated(generator: nn.Module, labels: torch.Tensor, classes: int, noise: torch.Tensor) -> torch.Tensor:
    """(n, f) features of (n,) labels and (n, 32) noise."""
    features: torch.Tensor = generator(torch.cat((noise, functional.one_hot(labels, classes)), dim=1))
    return features
