"""Makes the initial model and evaluates models. It uses public data only, never a client's examples."""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.module import register_module_forward_hook

from pausefl.runtime.evaluator.plan import Evaluated, EvaluatorPlan, InitialModel, ModelRest, StoredTensor
from pausefl_client.data.datasets import DATASETS, Dataset, Examples, load_dataset, sampled
from pausefl_client.training.device_copies import off_device, on_device
from pausefl_client.training.method import TrainingMethod
from pausefl_client.training.model_vector import STORED, ModelVector, bytes_of, constants, tied
from pausefl_client.training.models import build_model, probe_of
from pausefl_client.training.random_layers import RandomLayers
from pausefl_client.training.tasks import Classification, Regression, by_prediction
from pausefl_client.training.torch_trainer import LocalData, TorchTrainer, normalise, resolve_device, use_one_thread
from pausefl_client.training.trainer import TrainingSettings
from pausefl_process.plugins import OWN_CODE_ERRORS, with_place
from pausefl_proto.draws import generator, stable_hash
from pausefl_proto.errors import ConfigError
from pausefl_proto.wire import Manifest, TensorSpec, Vector
from pausefl_server.records import Evaluation, Split

# The most examples in a pass of the model, and the most bytes of a layer's output.
_MOST_AT_ONCE, _MOST_BYTES = 500, 2**27
_REHEARSED_EXAMPLES = 32
# A method with a loop of its own may take two or three batches for each of its steps, as Per-FedAvg does.
_BATCHES_OF_OWN_LOOPS = 4
_SEEDED = "draw from torch's generator, or from one with a seed of its own"
_MOST_SCORE = 1 + 1e-6  # with what rounding adds
_SCORES = "a score is at most 1, the greater the better: of an error, return 1/(1 + error)"


class Evaluator:
    """Makes θ_0 from the seed, and evaluates models on held-out training data and on test data."""

    def __init__(self, plan: EvaluatorPlan) -> None:
        """Load data and model. A subset is a whole split if that has no more than `evaluation.subset` examples.

        With `workload.statistics` "local", a model's running statistics are estimated on the subset of held-out data.
        """
        dataset, model, seed = plan.workload.dataset, plan.workload.model, plan.seed
        load = partial(load_dataset, dataset, seed=plan.split_seed)
        data = load()
        self._device = resolve_device(plan.workload.device)
        self._seed = seed
        self._build = partial(build_model, model, data.input_shape, data.classes, seed, has_tokens=data.has_tokens)
        self._model = self._build()
        self._model.to(self._device)  # a user's own `to` and `eval` need not return the model
        self._model.eval()
        self._at_once, self._classes, self.train_examples = _MOST_AT_ONCE, data.classes, len(data.train)
        found = _first_of(data)
        self._repeats: Callable[[], bool] = lambda: dataset in DATASETS or _first_of(load()) == found
        self._data_key, self._model_key = f'workload.dataset = "{dataset}"', f'workload.model = "{model}"'
        self._task = data.task or Classification()
        self._spread = float(data.train.labels.var()) if type(self._task) is Regression else math.inf
        self._metric = str(getattr(self._task, "metric", "score"))
        self._score_key = f'{self._data_key}: the score "{self._metric}" of {type(self._task).__name__}'
        self._random_layers = RandomLayers(self._model, self._device, self._task)
        self._vector = ModelVector(self._model, plan.workload.statistics)
        self._local = self._vector.statistics if plan.workload.statistics == "local" else {}
        manifest = replace(self._vector.manifest, probe=probe_of(self._build(), data))
        self.initial = InitialModel(manifest, self._vector.values(), self._rest())
        """The model of round 1, and the rest of its file."""
        self._splits: dict[Split, Examples] = {"validation": data.validation, "test": data.test}
        subset, seed = plan.evaluation.subset, plan.split_seed
        drawn = {name: generator(seed, "evaluation", name) for name in self._splits}
        self._subsets = {name: sampled(split, subset, drawn[name]) for name, split in self._splits.items()}

    def evaluate(self, theta: Vector, splits: Sequence[Split], *, subset: bool) -> Evaluated:
        """Accuracy and loss of θ, (d,) float32, on each split; ValueError if the model has another size."""
        use_one_thread()
        with self._random_layers.seeded(stable_hash(self._seed, "evaluation", "")):
            self._fill(theta)
            evaluations = tuple(self._evaluation(split, subset=subset) for split in splits)
        local = [part.ravel() for part in off_device(*self._local.values())]
        return Evaluated(evaluations, np.concatenate(local) if local else None)

    def _evaluation(self, split: Split, *, subset: bool) -> Evaluation:
        examples = (self._subsets if subset else self._splits)[split]
        accuracy, loss = self._rate(examples)
        # Both are bounded, as a model may have diverged.
        accuracy = min(max(accuracy, 0.0), 1.0) if math.isfinite(accuracy) else 0.0
        loss = loss if math.isfinite(loss) else math.inf
        return Evaluation(split, subset, len(examples), accuracy, loss, self._metric)

    def rehearse(self, settings: TrainingSettings, method: TrainingMethod | None = None) -> str:
        """Train θ_0 one step as a client would, and evaluate it, on a few held-out examples. The result is discarded.

        A method with a loop of its own gets the examples a few times, in a batch each.
        Raises any error of the model, the task, the method or the optimizer. ConfigError if what they return is wrong.
        Returns a sentence if evaluations will lack something that clients train, else an empty text.
        """
        if not self._repeats():  # each process makes it for itself
            raise ConfigError(f"{self._data_key}: is another each time it is made; take all chance from its seed")
        held_out = self._splits["validation"]
        sample = held_out.take(np.arange(min(len(held_out), settings.batch_size, _REHEARSED_EXAMPLES)))
        has_own_loop = type(method or TrainingMethod()).local_steps is not TrainingMethod.local_steps
        steps = min(settings.max_steps or _BATCHES_OF_OWN_LOOPS, _BATCHES_OF_OWN_LOOPS) if has_own_loop else 1
        one_step, model = replace(settings, epochs=steps, max_steps=steps), self._build()
        if name := _differing(model, self._model):
            raise ConfigError(f"{self._model_key}: {name} is another each time the model is made; {_SEEDED}")
        data = LocalData(sample, task=self._task)
        trainer = TorchTrainer(
            model, data, one_step, device=self._device, seed=self._seed, client_id="rehearsal", method=method
        )
        self._check(sample)
        self._check_splits()
        outcome = trainer.train(trainer.manifest.with_no_control(self.initial.theta_0), round=1)
        self._check_trained(trainer, outcome.update)
        trained = trainer.vector.values()
        too_great = f"workload.learning_rate = {settings.learning_rate:g} may be too great"
        self._check_finite(trained, f"after one training step; {too_great}")
        self._fill(trained)
        score, loss = self._rate(sample)
        if not math.isfinite(loss):
            raise ConfigError(f"{self._model_key}: its loss after one training step is not finite; {too_great}")
        self._check_score(score, "after one training step")
        trainer.restore(trainer.state())
        return self._doubt(trainer, sample)

    def _doubt(self, trainer: TorchTrainer, sample: Examples) -> str:
        """A sentence if a client's trained model has another loss than its values in the evaluator's model, if any.

        Or one if this model has another loss for the examples in reverse, although it draws nothing at random, or if
        the task has parameters of its own, such as the centres of classes.
        """
        held = (trainer.task, *getattr(trainer.task, "__dict__", {}).values())
        layers = (part for part in held if isinstance(part, nn.Module))
        if any(parameter.grad is not None for layer in layers for parameter in layer.parameters()):
            task = type(trainer.task).__name__
            return f"{self._data_key}: {task} has parameters, which nothing trains; hold them in the model"
        losses, own, batch = [], self._model, sample.take(slice(self._at_once))
        for self._model, seed, step in ((trainer.model, 0, 1), (own, 0, 1), (own, 1, 1), (own, 0, -1)):
            self._model.eval()
            with self._random_layers.seeded(seed):
                losses.append(self._rate(batch.take(slice(None, None, step)))[1])
        at_client, here, drawn, reverse = losses
        if not (self._local or math.isclose(at_client, here, rel_tol=1e-6)):  # local statistics are estimated
            changes = "training changes attributes, or buffers with persistent=False, that do not travel"
            found = f"its loss after a training step is {at_client:.6g} at a client, {here:.6g} where it is evaluated"
            return f"{self._model_key}: {found}: {changes}"
        if math.isclose(here, drawn, rel_tol=1e-4) and not math.isclose(here, reverse, rel_tol=1e-4):
            found = f"{len(batch)} examples have a loss of {here:.6g}, and of {reverse:.6g} in reverse order"
            return f"{self._model_key}: {found}: outputs may not lie as targets do, such as (tokens, n) for (n, tokens)"
        return ""

    def _check_trained(self, trainer: TorchTrainer, update: Vector) -> None:
        """ConfigError if a training step changed a constant, or gave no parameter a gradient."""
        stay = constants(trainer.model)
        fixed = (c for c in self.initial.rest.constants if not c.name.endswith("_extra_state"))
        if name := next((c.name for c in fixed if bytes_of(stay[c.name]) != c.data), ""):
            raise ConfigError(f"{self._model_key}: {name}, which is frozen, changes while the model trains")
        if not update.any() and all(parameter.grad is None for parameter in trainer.model.parameters()):
            raise ConfigError(
                f"{self._model_key}: one training step gives no parameter a gradient; workload.training may train"
                " others than the model's own"
            )

    def _check(self, sample: Examples) -> None:
        """ConfigError unless data and θ_0 are finite, and θ_0 gives an output for each class, and a finite loss."""
        for name, split in self._splits.items():
            if (found := split.not_finite()) is not None:
                raise ConfigError(f"{self._data_key}: {name}.{found[1]}")
            if type(self._task) is Classification and (label := split.labels.max()) >= self._classes:
                raise ConfigError(f"{self._data_key}: {name} has a label {label}; must be below {self._classes}")
        if type(self._task) is Regression and (stated := self._task.variance) > 2 * self._spread:  # R² near 1
            raise ConfigError(f"{self._data_key}: Regression.variance = {stated:g}; its targets' is {self._spread:g}")
        self._check_finite(self.initial.theta_0, "before any training")
        self._at_once = self._fitting(sample)
        self._fill(self.initial.theta_0)
        with torch.no_grad():
            outputs = self._model(normalise(torch.tensor(sample.inputs, device=self._device)))
            targets = torch.tensor(sample.labels, device=self._device)
            if isinstance(self._task, Classification):
                if not isinstance(outputs, torch.Tensor):
                    wrong = f"returned {type(outputs).__name__}, which needs a data set with a task of its own"
                    raise ConfigError(f"{self._model_key}: must return a tensor of outputs; {wrong}")
                if outputs.ndim > 1 and (given := by_prediction(outputs, targets).shape[-1]) < self._classes:
                    wrong = f"gives {given} outputs, and the data set has {self._classes} classes"
                    raise ConfigError(f"{self._model_key}: {wrong}")
            task = type(self._task).__name__
            for called, rate in (("loss", self._task.loss), ("score", self._task.score)):
                if not isinstance(returned := rate(outputs, targets), torch.Tensor):
                    kind = type(returned).__name__
                    raise ConfigError(f"{self._data_key}: {task}.{called} must return a tensor; returned {kind}")
        most = max(targets.numel(), outputs.numel()) if isinstance(outputs, torch.Tensor) else math.inf
        if returned.ndim == 0 or returned.numel() > most:  # (n, n) for outputs of (n, 1) and targets of (n,)
            due = f"one value for each thing predicted, to be averaged; returned one of shape {tuple(returned.shape)}"
            raise ConfigError(f"{self._data_key}: {task}.score must return {due}")
        score, loss = self._rate(sample)
        if not math.isfinite(loss):
            raise ConfigError(f"{self._model_key}: its loss before any training is {loss}; must be finite")
        self._check_score(score, "before any training")
        if isinstance(outputs, torch.Tensor):
            self._check_loss(outputs.detach(), targets)
            self._check_direction(outputs.detach(), targets)

    def _check_splits(self) -> None:
        """ConfigError if passes over a split would fail. Its inputs may have another shape, its last pass one row."""
        for name, split in (*self._splits.items(), *self._subsets.items()):
            some = split.take(slice(1 if len(split) % self._at_once == 1 else 2))
            try:
                self._rate(some)
            except OWN_CODE_ERRORS as error:
                what = f"{len(some)} of {name}, inputs of shape {some.inputs.shape}, cannot be evaluated"
                raise ConfigError(f"{self._data_key}: {what}: {with_place(error)}") from error

    def _fitting(self, sample: Examples) -> int:
        """How many examples a pass may take, so that layers with large outputs fit into memory: two or more."""
        sizes = [1]
        inputs = normalise(torch.tensor(sample.inputs, device=self._device))
        with torch.no_grad(), register_module_forward_hook(lambda *call: sizes.append(_bytes_in(call[2]))):
            self._model(inputs)
        return max(2, min(_MOST_AT_ONCE, _MOST_BYTES * len(sample) // max(sizes)))

    def _check_loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> None:
        """ConfigError for a loss that is a sum over the batch, or that pairs each output with every target."""
        of_task = f"{self._data_key}: the loss of {type(self._task).__name__}"

        def loss(of: torch.Tensor, to: torch.Tensor) -> float:
            return float(self._task.loss(of, to).double().mean())

        twice = 0.0
        with suppress(*OWN_CODE_ERRORS):  # examples may be in another dimension of outputs, as for torch's CTC loss
            twice = loss(torch.cat((outputs, outputs)), torch.cat((targets, targets)))
        if twice and math.isclose(twice, 2 * loss(outputs, targets), rel_tol=1e-4):
            raise ConfigError(f"{of_task} is twice as great for a batch that comes twice; must be a mean")
        if outputs.shape == targets.shape or outputs.numel() != targets.numel():
            return
        exact = targets.reshape(outputs.shape).to(outputs.dtype)
        own, first = loss(exact, targets), loss(exact, targets[:1].expand_as(targets))
        if math.isclose(own, loss(exact.flip(0), targets), rel_tol=1e-5) and not math.isclose(own, first, rel_tol=1e-3):
            forms = f"outputs {tuple(outputs.shape)} and targets {tuple(targets.shape)}"
            raise ConfigError(f"{of_task} is the same whichever target an output has: {forms} broadcast; reshape one")

    def _check_direction(self, outputs: torch.Tensor, targets: torch.Tensor) -> None:
        """ConfigError if outputs that equal their targets have almost no loss, and a smaller score, or none above 0."""
        are_classes = not targets.is_floating_point() and outputs.shape[:-1] == targets.shape
        if targets.is_floating_point() and targets.numel() == outputs.numel():
            exact = targets.reshape(outputs.shape).to(outputs.dtype)
        elif are_classes and targets.max() < outputs.shape[-1]:
            exact = 30.0 * functional.one_hot(targets.clamp(min=0), outputs.shape[-1]).to(outputs.dtype)  # logits
        else:
            return
        (loss, score), (least, best) = (
            [float(rate(of, targets).double().mean()) for rate in (self._task.loss, self._task.score)]
            for of in (outputs, exact)
        )
        # Outputs that are no targets, such as their logarithms, have a greater loss where they equal them.
        if 0 <= least < loss / 100 and not (best > 0 and score <= best <= _MOST_SCORE):
            raise ConfigError(
                f"{self._score_key} gives {best:g} for outputs that equal their targets, and {score:g} for those of the"
                f" first model; {_SCORES}"
            )

    def _check_finite(self, theta: Vector, when: str) -> None:
        """ConfigError if a tensor of θ has values that are not finite. It names the tensor."""
        for name, values in self.initial.manifest.split(theta).items():
            if not np.isfinite(values).all():
                raise ConfigError(f"{self._model_key}: {name} holds values that are not finite {when}")

    def _check_score(self, score: float, when: str) -> None:
        if not math.isfinite(score):
            raise ConfigError(f"{self._score_key} {when} is {score} on average; must be finite")
        if score > _MOST_SCORE:
            raise ConfigError(f"{self._score_key} {when} is {score:g} on average; {_SCORES}")

    def _fill(self, theta: Vector) -> None:
        """Load θ into the model. Estimate the model's running statistics if θ does not hold them."""
        self._vector.fill(theta)
        if not self._local:
            return
        own = {name.rpartition(".")[0] for name in self._local}
        layers = [m for name, m in self._model.named_modules() if isinstance(m, _NormBase) and name in own]
        for layer in layers:
            layer.reset_running_stats()  # otherwise statistics of a diverged model would stay
        inputs = self._subsets["validation"].inputs
        with torch.no_grad():
            # Whole batches only: normalisation fails on a single example.
            for i, start in enumerate(range(0, max(1, len(inputs) - self._at_once + 1), self._at_once)):
                for layer in layers:
                    layer.train().momentum = 1 / (i + 1)  # the mean over batches
                self._model(normalise(on_device(inputs[start : start + self._at_once], self._device)))
        self._model.eval()

    def _rest(self) -> ModelRest:
        stay = [
            StoredTensor(name, STORED[tensor.dtype], tuple(tensor.shape), bytes_of(tensor))
            for name, tensor in constants(self._model).items()
        ]
        local = Manifest(tuple(TensorSpec(name, tuple(tensor.shape)) for name, tensor in self._local.items()))
        return ModelRest(tuple(stay), tied(self._model), local)

    def _rate(self, examples: Examples) -> tuple[float, float]:
        """The mean score and the mean loss over all of the model's predictions for these examples."""
        score, loss = torch.zeros(2, dtype=torch.float64, device=self._device)  # read once: reading waits for a GPU
        n = 0
        with torch.no_grad():
            for start in range(0, len(examples), self._at_once):
                rows = slice(start, start + self._at_once)
                inputs, targets = (on_device(part[rows], self._device) for part in (examples.inputs, examples.labels))
                outputs = self._model(normalise(inputs))
                if scored := len(scores := self._task.score(outputs, targets).flatten()):  # padding has a loss of NaN
                    score += scores.sum(dtype=torch.float64)
                    loss += self._task.loss(outputs, targets).double().mean() * scored
                    n += scored
        return float(score / n), float(loss / n)


def _differing(model: nn.Module, other: nn.Module) -> str:
    """The name of the first tensor of a model's file that differs from the other model's; empty if none does."""
    ours, theirs = model.state_dict(), other.state_dict()
    return next((n for n in ours if n not in theirs or bytes_of(ours[n]) != bytes_of(theirs[n])), "")


def _first_of(data: Dataset) -> list[bytes]:
    """The first examples of each split."""
    firsts = (split.take(slice(_REHEARSED_EXAMPLES)) for split in (data.train, data.validation, data.test))
    return [part.tobytes() for first in firsts for part in (first.inputs, first.labels)]


def _bytes_in(output: object) -> int:  # not `nbytes`, which torch.compile does not take
    return output.numel() * output.element_size() if isinstance(output, torch.Tensor) else 0
