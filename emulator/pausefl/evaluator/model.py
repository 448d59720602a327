"""Initial model and its evaluation, on public data only: no client's examples come near this process."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch.nn import functional

from pausefl_client.data.datasets import Examples, load_dataset
from pausefl_client.training.models import build_model, flatten, manifest_of, unflatten
from pausefl_client.training.torch_trainer import LocalData, TorchTrainer, normalise, resolve_device
from pausefl_client.training.trainer import TrainingSettings
from pausefl_proto.draws import generator
from pausefl_proto.wire import Manifest, Vector
from pausefl_server.records import Evaluation, Split

_BATCH = 500
_REHEARSED_EXAMPLES = 32


class Evaluator:
    """Makes θ_0 from the seed, and evaluates models on held-out training data and on test data."""

    def __init__(
        self, dataset: str, model: str, *, seed: int, device: str = "auto", subset_examples: int = 1_000
    ) -> None:
        """Names as in `[workload]`. The subset is drawn from the seed, and is all of a split that has no more."""
        data = load_dataset(dataset, seed=seed)
        self._device = resolve_device(device)
        self._seed = seed
        self._build = partial(build_model, model, data.input_shape, data.classes, seed, has_tokens=data.has_tokens)
        self._model = self._build().to(self._device).eval()
        self.manifest: Manifest = manifest_of(self._model)
        """What the values of θ mean."""
        self.theta_0: Vector = flatten(self._model)
        """The model of round 1, (d,) float32."""
        self._splits: dict[Split, Examples] = {"validation": data.validation, "test": data.test}
        self._subsets = {name: _subset(split, subset_examples, seed, name) for name, split in self._splits.items()}

    def evaluate(self, theta: Vector, split: Split, *, subset: bool) -> Evaluation:
        """Accuracy and loss of θ, (d,) float32; ValueError if the model has another size."""
        right, loss, n = self._score(theta, (self._subsets if subset else self._splits)[split])
        return Evaluation(split, subset, n, right / n, loss / n if math.isfinite(loss) else math.inf)

    def rehearse(self, settings: TrainingSettings) -> None:
        """Train θ_0 one step as a client would, and evaluate it, on a few held-out examples; nothing is kept of it.

        Raises whatever the model, the loss or the optimizer raises.
        """
        held_out = self._splits["validation"]
        sample = held_out.take(np.arange(min(len(held_out), settings.batch_size, _REHEARSED_EXAMPLES)))
        one_step, model = replace(settings, epochs=1, max_steps=1), self._build()
        trainer = TorchTrainer(
            model, LocalData(sample), one_step, device=self._device, seed=self._seed, client_id="rehearsal"
        )
        trainer.train(self.theta_0, round=0)
        self._score(self.theta_0, sample)

    def _score(self, theta: Vector, examples: Examples) -> tuple[int, float, int]:
        """Right answers, the sum of the losses, and of how many examples they are."""
        unflatten(self._model, theta)
        right, loss = 0, 0.0
        with torch.inference_mode():
            for start in range(0, len(examples), _BATCH):
                rows = slice(start, start + _BATCH)
                # Copied, since a memory-mapped array is read-only and torch warns about those.
                inputs = torch.tensor(examples.inputs[rows], device=self._device)
                labels = torch.tensor(examples.labels[rows], device=self._device)
                logits = self._model(normalise(inputs))
                right += int((logits.argmax(1) == labels).sum())
                loss += float(functional.cross_entropy(logits, labels, reduction="sum"))
        return right, loss, len(examples)


def _subset(examples: Examples, n: int, seed: int, split: str) -> Examples:
    """A fixed random part of a split."""
    if n >= len(examples):
        return examples
    return examples.take(np.sort(generator(seed, "evaluation", split).choice(len(examples), n, replace=False)))
