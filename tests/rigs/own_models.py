"""Models as users write them, and a short run or a trainer of each."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from pausefl.experiment.experiment import parse_experiment
from pausefl.experiment.tables import EvaluationTable, Workload
from pausefl.runtime.evaluator.model import Evaluator
from pausefl.runtime.evaluator.plan import EvaluatorPlan
from pausefl.runtime.plan import plan_of
from pausefl.runtime.virtual.process import play_virtually
from pausefl_client.data.datasets import Dataset, Examples, load_dataset
from pausefl_client.training.torch_trainer import LocalData, TorchTrainer
from pausefl_client.training.trainer import TrainingSettings
from rigs.command import summary_of

Shape = tuple[int, ...]
DIGITS = load_dataset("digits", seed=1)
RUN = {
    "experiment.clock": "virtual",
    "experiment.rounds": 2,
    "metrics.enabled": False,
    "clients.count": 4,
    "selection.m": 2,
    "latency.signal": "communication",
    "latency.delay": {"kind": "constant", "value_s": 0.1},
    "workload.step_s": 0.001,
    "workload.max_steps": 3,
}


class Attention(nn.Module):
    """Self-attention among the 8 rows of a digit, with a mask as a buffer."""

    def __init__(self, mask: torch.Tensor, classes: int) -> None:
        super().__init__()
        self.mask: torch.Tensor
        self.register_buffer("mask", mask)
        self.query = nn.Linear(8, 16)
        self.out = nn.Linear(128, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.query(x.view(-1, 8, 8))
        mixed: torch.Tensor = self.out(functional.scaled_dot_product_attention(h, h, h, attn_mask=self.mask).flatten(1))
        return mixed


def bool_mask(shape: Shape, classes: int) -> nn.Module:
    return Attention(torch.ones(8, 8).tril().bool(), classes)


def inf_mask(shape: Shape, classes: int) -> nn.Module:
    return Attention(torch.full((8, 8), -math.inf).triu(1), classes)


class Positions(nn.Module):
    """Position ids as an integer buffer, a table in half precision, an unused parameter, a gradient in each pass."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        size = math.prod(shape)
        self.embed = nn.Embedding(size, 4)
        self.register_buffer("position_ids", torch.arange(size))
        self.register_buffer("table", torch.linspace(0, 1, 3).bfloat16())
        self.unused = nn.Parameter(torch.ones(5))
        self.out = nn.Linear(size, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.flatten(1)
        with torch.enable_grad():  # in evaluation too, as the force is the gradient of an energy
            (force,) = torch.autograd.grad(x.requires_grad_().square().sum() / 2, x, create_graph=True)
        scores: torch.Tensor = self.out(force + self.embed(self.position_ids).mean(-1))
        return scores


def frozen_backbone(shape: Shape, classes: int) -> nn.Module:
    backbone = nn.Linear(math.prod(shape), 64).requires_grad_(False)
    return nn.Sequential(nn.Flatten(), backbone, nn.ReLU(), nn.Linear(64, classes))


def tied_layers(shape: Shape, classes: int) -> nn.Module:
    first, second = nn.Linear(64, 64), nn.Linear(64, 64)
    second.weight = first.weight
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), second, nn.ReLU(), nn.Linear(64, classes))


class Mixed(nn.Module):
    """Parameters of three dtypes."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.low, self.high = nn.Linear(math.prod(shape), 16), nn.Linear(16, 16).double()
        self.out = nn.Linear(16, classes).bfloat16()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.out(self.high(self.low(x.flatten(1)).double()).bfloat16())
        return scores


def batch_norm(shape: Shape, classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, classes))


FROZEN_NORM = [*(f"{n}.{kind}" for n in (1, 2) for kind in ("weight", "bias"))]
FROZEN_NORM += [f"2.{kind}" for kind in ("running_mean", "running_var", "num_batches_tracked")]


class FrozenNorm(nn.Sequential):
    """A frozen layer and its frozen batch normalisation. `train` and `to` return nothing."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__(nn.Flatten(), nn.Linear(math.prod(shape), 16), nn.BatchNorm1d(16), nn.Linear(16, classes))
        self[1].requires_grad_(False)
        self[2].requires_grad_(False).get_buffer("running_mean").fill_(1.5)

    def train(self, mode: bool = True) -> Any:
        super().train(mode)
        self[2].eval()

    def to(self, *of: Any, **named: Any) -> Any:
        super().to(*of, **named)


WORDS = torch.rand(50, 8)


class Bag(nn.Module):
    """The mean of embedded words. The embedding's gradients are sparse."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.embed = nn.Embedding.from_pretrained(WORDS, freeze=False, sparse=True)  # type: ignore[no-untyped-call]
        self.out = nn.Linear(8, classes)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        counts = functional.one_hot(tokens, 50).sum((1, 2), keepdim=True)[:, 0]  # torch takes int64 alone
        scores: torch.Tensor = self.out(self.embed(tokens).sum(1) / counts)
        return scores


def tokens(seed: int) -> Dataset:
    rng = np.random.default_rng(1)
    inputs, labels = rng.integers(1, 50, (300, 8)).astype(np.int32), rng.integers(0, 3, 300)
    train, validation, test = (Examples(inputs[s], labels[s]) for s in (slice(200), slice(200, 250), slice(250, 300)))
    return Dataset("tokens", train, validation, test, classes=3)


def played(folder: Path, model: str, **changes: Any) -> dict[str, Any]:
    """Play a short run of a model of this module, and return its summary."""
    experiment = parse_experiment("", {**RUN, "workload.model": f"own:{model}", **changes})
    folder.mkdir(exist_ok=True)
    play_virtually(plan_of(experiment, folder.name), folder, lambda _: None)
    return summary_of(folder)


def trainer_of(model: nn.Module, settings: TrainingSettings, examples: Examples | None = None) -> TorchTrainer:
    data = LocalData(examples or DIGITS.train.take(np.arange(40)), 10)
    return TorchTrainer(model, data, settings, device=torch.device("cpu"), seed=1, client_id="a")


def evaluator_of(data: str = "digits", model: str = "mlp", seed: int = 1, subset: int = 1000, **of: Any) -> Evaluator:
    """An evaluator of this model on this data set. `of` are further settings of the workload."""
    workload = Workload(model=model, dataset=data, **of)
    return Evaluator(EvaluatorPlan(workload, seed, seed, EvaluationTable(subset=subset), None, 15.0))
