"""The models of the papers' experiments, and the flat vector a model is for everyone but its trainer."""

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import nn

from pausefl.draws import stable_hash
from pausefl.errors import ConfigError
from pausefl.wire import Manifest, Tensor, Vector
from pausefl_client.factories import is_factory, resolve_factory

_KEY = "workload.model"
# Group normalisation (Wu & He, 2018) keeps no statistics of the data; the published batch normalisation sends them.
_GROUPS = 8


def build_model(name: str, input_shape: Sequence[int], classes: int, seed: int) -> nn.Module:
    """A model by name: one of `NAMES`, or "package.module:factory", called as factory(input_shape, classes).

    Its initial weights depend on `name` and `seed` alone, and torch's global generator is left as it was.
    ConfigError for an unknown name, or an input too small for the model.
    """
    if not is_factory(name) and name not in _MODELS:
        raise ConfigError(f'{_KEY} = "{name}": must be one of {", ".join(_MODELS)}, or "package.module:factory"')
    factory = resolve_factory(_KEY, name) if is_factory(name) else _MODELS[name]
    # devices=[]: the CPU's generator only. A parent that is yet to fork must not wake CUDA.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(stable_hash(seed, "model", name))
        model = factory(tuple(input_shape), classes)
    if not isinstance(model, nn.Module):
        raise ConfigError(f'{_KEY} = "{name}": returned {type(model).__name__}, not a torch.nn.Module')
    return model


def mlp(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Fully connected d-32-16-classes with ReLU; 25,818 parameters on MNIST (784-32-16-10)."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(input_shape), 32),
        nn.ReLU(),
        nn.Linear(32, 16),
        nn.ReLU(),
        nn.Linear(16, classes),
    )


def cnn3(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """3×3 convolutions 32-64-128, each ReLU and 2×2 max-pool; then fully connected 512-128-64-32-10."""
    return _cnn("cnn3", input_shape, classes, [(32, 3, True), (64, 3, True), (128, 3, True)], (128, 64, 32))


def cnn5(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """3×3 convolutions 32-32-64-64 and a 4×4 of 128, pooled after the 2nd, 4th and 5th; then 128-64-32-10."""
    layers = [(32, 3, False), (32, 3, True), (64, 3, False), (64, 3, True), (128, 4, True)]
    return _cnn("cnn5", input_shape, classes, layers, (64, 32))


def fedts_fashion(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Fed-TS on Fashion-MNIST: 5×5 convolutions 16-32, each normalised, ReLU and 2×2 max-pool; then one linear layer.

    29,034 parameters. Padding is not stated; here images keep their size.
    """
    before, height, width = _image_shape("fedts_fashion", input_shape, least=4)
    layers: list[nn.Module] = []
    for channels in (16, 32):
        layers += [nn.Conv2d(before, channels, 5, padding=2), nn.GroupNorm(_GROUPS, channels)]
        layers += [nn.ReLU(inplace=True), nn.MaxPool2d(2)]
        before = channels
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(before * (height // 4) * (width // 4), classes))


def fedts_cifar(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Fed-TS on CIFAR-10: 5×5 convolutions 6-16, each ReLU and 2×2 max-pool; then fully connected 400-120-10.

    52,202 parameters. The hidden layer's width is not stated; 120 and no padding are LeNet-5's.
    """
    channels, height, width = _image_shape("fedts_cifar", input_shape, least=16)
    sides = (((side - 4) // 2 - 4) // 2 for side in (height, width))
    return nn.Sequential(
        *(nn.Conv2d(channels, 6, 5), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(16 * math.prod(sides), 120), nn.ReLU(), nn.Linear(120, classes)),
    )


def manifest_of(model: nn.Module) -> Manifest:
    """Names and shapes of the model's parameters and persistent buffers, in the order of its flat vector."""
    return Manifest(tuple(Tensor(name, tuple(tensor.shape)) for name, tensor in model.state_dict().items()))


def flatten(model: nn.Module) -> Vector:
    """All parameters and persistent buffers as one new (d,) float32 vector."""
    tensors = [tensor.reshape(-1).to("cpu", torch.float32) for tensor in model.state_dict().values()]
    flat: Vector = torch.cat(tensors).numpy() if tensors else np.empty(0, np.float32)
    return flat


def unflatten(model: nn.Module, theta: Vector) -> None:
    """Set all parameters and buffers from θ, (d,) float32; ValueError if the model has another size."""
    manifest = manifest_of(model)
    if theta.shape != (manifest.size,):
        raise ValueError(f"theta has shape {theta.shape}, the model has {manifest.size} values")
    # Copied, since the vector may be read-only and torch warns about those.
    parts = manifest.split(theta.copy())
    for name, tensor in model.state_dict().items():
        tensor.copy_(torch.from_numpy(parts[name]))


def _cnn(
    name: str,
    input_shape: tuple[int, ...],
    classes: int,
    convolutions: Sequence[tuple[int, int, bool]],
    hidden: tuple[int, ...],
) -> nn.Module:
    """Unpadded convolutions, given as (channels, kernel, pooled), then fully connected layers, all normalised.

    Every layer is normalised at its end, after ReLU and pooling, a fully connected one as a single group. At the
    published Adam rate of 0.01 cnn3 stays at chance level when normalised before the ReLU, and learns far more slowly
    when its fully connected layers are not normalised.
    """
    before, *sides = _image_shape(name, input_shape, least=1)
    layers: list[nn.Module] = []
    for channels, kernel, pooled in convolutions:
        layers += [nn.Conv2d(before, channels, kernel), nn.ReLU(inplace=True)]
        sides = [side - kernel + 1 for side in sides]
        if pooled:
            layers.append(nn.MaxPool2d(2))
            sides = [side // 2 for side in sides]
        layers.append(nn.GroupNorm(_GROUPS, channels))
        before = channels
    if min(sides) < 1:
        raise ConfigError(f'{_KEY} = "{name}": images of {input_shape[1]}x{input_shape[2]} are too small for it')
    layers.append(nn.Flatten())
    for inputs, width in itertools.pairwise((before * math.prod(sides), *hidden)):
        layers += [nn.Linear(inputs, width), nn.ReLU(), nn.GroupNorm(1, width)]
    return nn.Sequential(*layers, nn.Linear(hidden[-1], classes))


def _image_shape(name: str, input_shape: tuple[int, ...], least: int) -> tuple[int, int, int]:
    """(channels, height, width); ConfigError where inputs are no images, or have a side below `least`."""
    if len(input_shape) != 3:
        raise ConfigError(f'{_KEY} = "{name}": needs images, but an input has shape {input_shape}')
    channels, height, width = input_shape
    if min(height, width) < least:
        raise ConfigError(f'{_KEY} = "{name}": images of {height}x{width} are too small for it')
    return channels, height, width


_MODELS: dict[str, Callable[[tuple[int, ...], int], nn.Module]] = {
    "mlp": mlp,
    "cnn3": cnn3,
    "cnn5": cnn5,
    "fedts_fashion": fedts_fashion,
    "fedts_cifar": fedts_cifar,
}
NAMES = tuple(_MODELS)
"""The models that need no code of one's own."""
