"""What a client trains, and how, by name. These hold names of modules, so that a name can be checked without torch."""

from pausefl_process.registry import Registry

_MODELS = ("mlp", "cnn3", "cnn3_batch", "cnn5", "fedts_fashion", "fedts_fashion_batch", "fedts_cifar", "fedts_agnews")
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
"""Called with the shape of an input and the number of classes; each returns a torch.nn.Module."""

OPTIMIZERS = Registry(
    "optimizers", {name.lower(): f"torch.optim:{name}" for name in _OPTIMIZERS}, base="torch.optim:Optimizer"
)
"""Called with the parameters, `lr` and `workload.optimizer_options`."""

SCHEDULES = Registry("schedules", {name: f"torch.optim.lr_scheduler:{cls}" for name, cls in _SCHEDULES.items()})
"""Called with an optimizer and the table's other keys; each returns a torch.optim.lr_scheduler.LRScheduler."""

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
    are_methods_checked=True,
)

WITH_CONTROL = frozenset({"scaffold"})
"""The training methods with a control variate, which the server keeps and sends."""
