"""Initial model and its evaluation, on public data only: no client's examples come near this process."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from pausefl_client.data.datasets import Examples, load_dataset
from pausefl_client.training.device_copies import on_device
from pausefl_client.training.method import TrainingMethod
from pausefl_client.training.models import build_model, flatten, manifest_of, unflatten
from pausefl_client.training.tasks import Classification
from pausefl_client.training.torch_trainer import LocalData, TorchTrainer, normalise, resolve_device, use_one_thread
from pausefl_client.training.trainer import TrainingSettings
from pausefl_proto.draws import generator
from pausefl_proto.errors import ConfigError
from pausefl_proto.wire import Manifest, Vector
from pausefl_server.records import Evaluation, Split

_BATCH = 500
_REHEARSED_EXAMPLES = 32


class Evaluator:
    """Makes θ_0 from the seed, and evaluates models on held-out training data and on test data."""

    def __init__(
        self,
        dataset: str,
        model: str,
        *,
        seed: int,
        split_seed: int | None = None,
        device: str = "auto",
        subset_examples: int = 1_000,
    ) -> None:
        """Names as in `[workload]`. θ_0 is drawn from `seed`; data and subsets from `split_seed`, or else `seed` too.

        A subset is all of a split that has no more.
        """
        split_seed = seed if split_seed is None else split_seed
        data = load_dataset(dataset, seed=split_seed)
        self._device = resolve_device(device)
        self._seed = seed
        self._build = partial(build_model, model, data.input_shape, data.classes, seed, has_tokens=data.has_tokens)
        self._model = self._build().to(self._device).eval()
        self._classes = data.classes
        self._data_key, self._model_key = f'workload.dataset = "{dataset}"', f'workload.model = "{model}"'
        self._task = data.task or Classification()
        self._metric = str(getattr(self._task, "metric", "score"))
        self.manifest: Manifest = manifest_of(self._model)
        """What the values of θ mean."""
        self.theta_0: Vector = flatten(self._model)
        """The model of round 1, (d,) float32."""
        self._splits: dict[Split, Examples] = {"validation": data.validation, "test": data.test}
        self._subsets = {
            name: _subset(split, subset_examples, split_seed, name) for name, split in self._splits.items()
        }

    def evaluate(self, theta: Vector, split: Split, *, subset: bool) -> Evaluation:
        """Accuracy and loss of θ, (d,) float32; ValueError if the model has another size."""
        examples = (self._subsets if subset else self._splits)[split]
        accuracy, loss = self._rate(theta, examples)
        # Both bounded, since a model may have diverged.
        accuracy = min(max(accuracy, 0.0), 1.0) if math.isfinite(accuracy) else 0.0
        loss = loss if math.isfinite(loss) else math.inf
        return Evaluation(split, subset, len(examples), accuracy, loss, self._metric)

    def rehearse(self, settings: TrainingSettings, method: TrainingMethod | None = None) -> None:
        """Train θ_0 one step as a client would, and evaluate it, on a few held-out examples; nothing is kept of it.

        Raises whatever the model, the task, the method or the optimizer raises, or is wrong with what they return.
        """
        held_out = self._splits["validation"]
        sample = held_out.take(np.arange(min(len(held_out), settings.batch_size, _REHEARSED_EXAMPLES)))
        one_step, model = replace(settings, epochs=1, max_steps=1), self._build()
        trainer = TorchTrainer(
            model,
            LocalData(sample, task=self._task),
            one_step,
            device=self._device,
            seed=self._seed,
            client_id="rehearsal",
            method=method,
        )
        self._check(sample)
        outcome = trainer.train(np.pad(self.theta_0, (0, trainer.manifest.size - self.theta_0.size)), round=1)
        trainer.restore(trainer.state())
        score, loss = self._rate(self.theta_0 + outcome.update[: self.theta_0.size], sample)
        if not math.isfinite(loss):
            raise ConfigError(
                f"{self._model_key}: its loss after one training step is not finite; workload.learning_rate ="
                f" {settings.learning_rate:g} may be too great"
            )
        self._check_score(score, "after one training step")

    def _check(self, sample: Examples) -> None:
        """ConfigError unless θ_0 gives an output for each class, and these examples a loss that is finite."""
        if not np.isfinite(sample.inputs).all():
            raise ConfigError(f"{self._data_key}: holds inputs that are not finite")
        unflatten(self._model, self.theta_0)
        with torch.inference_mode():
            outputs = self._model(normalise(torch.tensor(sample.inputs, device=self._device)))
            if isinstance(self._task, Classification):
                self._check_outputs(outputs)
            targets = torch.tensor(sample.labels, device=self._device)
            for name, rate in (("loss", self._task.loss), ("score", self._task.score)):
                if not isinstance(returned := rate(outputs, targets), torch.Tensor):
                    task, found = type(self._task).__name__, type(returned).__name__
                    raise ConfigError(f"{self._data_key}: {task}.{name} must return a tensor; returned {found}")
        if returned.ndim == 0:
            raise ConfigError(
                f"{self._data_key}: {type(self._task).__name__}.score must return one value for each thing predicted;"
                " returned one of shape ()"
            )
        score, loss = self._rate(self.theta_0, sample)
        if not math.isfinite(loss):
            raise ConfigError(f"{self._model_key}: its loss before any training is {loss}; must be finite")
        self._check_score(score, "before any training")

    def _check_score(self, score: float, when: str) -> None:
        if not math.isfinite(score):
            task = type(self._task).__name__
            raise ConfigError(f"{self._data_key}: the mean of {task}.score {when} is {score}; must be finite")

    def _check_outputs(self, outputs: object) -> None:
        if not isinstance(outputs, torch.Tensor):
            raise ConfigError(f"{self._model_key}: must return a tensor of outputs; returned {type(outputs).__name__}")
        if outputs.ndim > 1 and outputs.shape[-1] < self._classes:
            raise ConfigError(
                f"{self._model_key}: gives {outputs.shape[-1]} outputs, and the data set has {self._classes} classes"
            )

    def _rate(self, theta: Vector, examples: Examples) -> tuple[float, float]:
        """The mean score, and the mean loss, over everything that the model predicts for these examples."""
        use_one_thread()
        unflatten(self._model, theta)
        score, loss = torch.zeros(2, dtype=torch.float64, device=self._device)  # read once: that waits for a GPU
        n = 0
        with torch.inference_mode():
            for start in range(0, len(examples), _BATCH):
                rows = slice(start, start + _BATCH)
                inputs, targets = (on_device(part[rows], self._device) for part in (examples.inputs, examples.labels))
                outputs = self._model(normalise(inputs))
                scores = self._task.score(outputs, targets)
                score += scores.sum(dtype=torch.float64)
                loss += self._task.loss(outputs, targets).double().reshape(()) * len(scores)
                n += len(scores)
        return float(score) / n, float(loss) / n


def _subset(examples: Examples, n: int, seed: int, split: str) -> Examples:
    """A fixed random part of a split."""
    if n >= len(examples):
        return examples
    return examples.take(np.sort(generator(seed, "evaluation", split).choice(len(examples), n, replace=False)))
