"""What a client trains, by name. Only names of modules, so that names can be checked where torch is missing."""

from pausefl_process.registry import Registry

_MODELS = ("mlp", "cnn3", "cnn5", "fedts_fashion", "fedts_cifar", "fedts_agnews")

MODELS = Registry("models", {name: f"pausefl_client.training.models:{name}" for name in _MODELS})
"""Called with the shape of an input and the number of classes; each returns a torch.nn.Module."""
