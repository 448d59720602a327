"""Registries of models, training methods and optimizers. Entries are module names, so checks do not import torch."""

from collections.abc import Mapping
from typing import Any

from pausefl_process.registry import Registry

_MODELS = (
    "mlp",
    "cnn3",
    "cnn3_batch",
    "cnn3_running",
    "cnn5",
    "fedts_fashion",
    "fedts_fashion_batch",
    "fedts_cifar",
    "fedts_agnews",
)
_OPTIMIZERS = ("Adam", "SGD", "AdamW", "Adadelta", "Adagrad", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop")
_SCHEDULES = {
    "constant": "ConstantLR",
    "linear": "LinearLR",
    "step": "StepLR",
    "multi-step": "MultiStepLR",
    "exponential": "ExponentialLR",
    "polynomial": "PolynomialLR",
    "cosine": "CosineAnnealingLR",
    "warm-restarts": "CosineAnnealingWarmRestarts",
}

MODELS = Registry("models", {name: f"pausefl_client.training.models:{name}" for name in _MODELS})
"""Models by name. Each is called with an input's shape and the number of classes, and returns a torch.nn.Module."""

OPTIMIZERS = Registry(
    "optimizers", {name.lower(): f"torch.optim:{name}" for name in _OPTIMIZERS}, base="torch.optim:Optimizer"
)
"""Optimizers by name. Each is called with the parameters, `lr` and `workload.optimizer_options`."""

SCHEDULES = Registry("schedules", {name: f"torch.optim.lr_scheduler:{cls}" for name, cls in _SCHEDULES.items()})
"""Called with an optimizer and the table's other keys. Each returns a torch.optim.lr_scheduler.LRScheduler."""

TRAINING_METHODS = Registry(
    "training_methods",
    {
        "plain": "pausefl_client.training.method:TrainingMethod",
        "fedprox": "pausefl_client.training.methods.fedprox:FedProx",
        "scaffold": "pausefl_client.training.methods.scaffold:Scaffold",
        "feddyn": "pausefl_client.training.methods.feddyn:FedDyn",
        "fedbn": "pausefl_client.training.methods.fedbn:FedBN",
        "moon": "pausefl_client.training.methods.moon:Moon",
        "gofl": "pausefl_client.training.methods.gofl:Gofl",
    },
    base="pausefl_client.training.method:TrainingMethod",
)

WITH_CONTROL = frozenset({"scaffold"})
"""The training methods with a control variate, which the server stores and sends to clients."""

_MOMENTS: Mapping[str, Any] = {"betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0}

OPTIMIZER_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "adam": {**_MOMENTS, "amsgrad": False},  # torch 2.7 added decoupled_weight_decay, which older versions refuse
    "sgd": {"momentum": 0, "dampening": 0, "weight_decay": 0, "nesterov": False},
    "adamw": {**_MOMENTS, "weight_decay": 0.01, "amsgrad": False},
    "adadelta": {"rho": 0.9, "eps": 1e-6, "weight_decay": 0},
    "adagrad": {"lr_decay": 0, "weight_decay": 0, "initial_accumulator_value": 0, "eps": 1e-10},
    "adamax": _MOMENTS,
    "asgd": {"lambd": 1e-4, "alpha": 0.75, "t0": 1e6, "weight_decay": 0},
    "nadam": {**_MOMENTS, "momentum_decay": 0.004, "decoupled_weight_decay": False},
    "radam": {**_MOMENTS, "decoupled_weight_decay": False},
    "rmsprop": {"alpha": 0.99, "eps": 1e-8, "weight_decay": 0, "momentum": 0, "centered": False},
    "rprop": {"etas": [0.5, 1.2], "step_sizes": [1e-6, 50]},
}
"""The default options of torch's optimizers, without switches that change only how they compute."""

SCHEDULE_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "constant": {"factor": 1 / 3, "total_iters": 5},
    "linear": {"start_factor": 1 / 3, "end_factor": 1.0, "total_iters": 5},
    "step": {"gamma": 0.1},
    "multi-step": {"gamma": 0.1},
    "polynomial": {"total_iters": 5, "power": 1.0},
    "cosine": {"eta_min": 0.0},
    "warm-restarts": {"T_mult": 1, "eta_min": 0.0},
}
"""The default options of torch's schedules."""

TRAINING_DEFAULTS: Mapping[str, Mapping[str, Any]] = {"moon": {"temperature": 0.5}}
"""The default options of training methods."""
