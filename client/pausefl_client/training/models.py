"""The models of the papers' experiments."""

import itertools
import math
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import nn
from torch.nn import functional

from pausefl_client.data.datasets import Dataset
from pausefl_client.data.text import BUCKETS
from pausefl_client.registries import MODELS
from pausefl_client.training.image_network import ImageNetwork
from pausefl_client.training.model_vector import check_carried, running_statistics, trained_parameters
from pausefl_client.training.tasks import Classification
from pausefl_client.training.torch_trainer import normalise
from pausefl_process.global_generators import seeded_generators
from pausefl_process.plugins import OWN_CODE_ERRORS
from pausefl_proto.draws import generator, stable_hash
from pausefl_proto.errors import ConfigError

_KEY = "workload.model"
_IN_A_MODEL = "is in a model of pausefl"  # an attribute of tensors that a model trains
# Group normalisation (Wu & He, 2018) keeps no statistics of the data.
_BY_GROUP = partial(nn.GroupNorm, 8)
_CNN3 = ((32, 3, True), (64, 3, True), (128, 3, True))
# The share of a text's words hidden during training.
_HIDDEN_SHARE = 0.5
_FOR_TEXTS = {"fedts_agnews"}
_PROBE_S = 1.0  # a large model makes of fewer examples what hosts compare


def build_model(
    name: str, input_shape: Sequence[int], classes: int, seed: int, *, has_tokens: bool = False
) -> nn.Module:
    """Build the model of a name in `MODELS`, whose factory is called as factory(input_shape, classes).

    `has_tokens`: inputs are texts as tokens. The initial weights depend on `name` and `seed` alone, and the global
    generators are left unchanged. ConfigError for an unknown name, or for inputs that the model cannot take.
    """
    if name in MODELS and has_tokens != (name in _FOR_TEXTS):
        wanted, found = ("texts", "numbers") if name in _FOR_TEXTS else ("numbers", "texts")
        raise ConfigError(f'{_KEY} = "{name}": needs {wanted}, but workload.dataset holds {found}')
    factory = MODELS.find(name, _KEY)
    with seeded_generators(stable_hash(seed, "model", name)):
        try:
            model = factory(tuple(input_shape), classes)
        except ConfigError as error:
            raise ConfigError(f'{_KEY} = "{name}": {error}') from error
    if not isinstance(model, nn.Module):
        raise ConfigError(f'{_KEY} = "{name}": returned {type(model).__name__}, not a torch.nn.Module')
    check_carried(model, f'{_KEY} = "{name}"')
    if not (trained := trained_parameters(model)):
        raise ConfigError(f'{_KEY} = "{name}": has no parameters to train')
    for part, tensor in {**trained, **running_statistics(model)}.items():
        if vars(tensor).get(_IN_A_MODEL):  # what one client trains, others would begin with
            raise ConfigError(f'{_KEY} = "{name}": {part} is the same object in each call; make a new one')
        vars(tensor)[_IN_A_MODEL] = True
        tensor.data = tensor.data.clone()  # the factory may keep its values, such as those of pretrained embeddings
    return model


def probe_of(model: nn.Module, data: Dataset) -> tuple[float, ...]:
    """The mean size of held-out inputs, and the losses of pairs of them after `model` got fixed values. See `Manifest`.

    Hosts that draw the first model otherwise find the same. Empty if the model or the task does not take these values.
    """
    rng, loss, until_s = generator(0, "probe"), (data.task or Classification()).loss, time.monotonic() + _PROBE_S
    held_out = data.validation.take(slice(min(32, len(data.validation) // 2 * 2)))
    inputs, targets = normalise(torch.tensor(held_out.inputs)), torch.tensor(held_out.labels)
    try:
        for parameter in trained_parameters(model).values():
            values = (5 * rng.random(d := parameter.numel(), "float32") - 2.5) * d**-0.25
            parameter.data.copy_(torch.from_numpy(values).reshape(parameter.shape))
        model.eval()
        model = getattr(model, "_orig_mod", model)  # without torch.compile, which takes long
        with torch.no_grad(), seeded_generators(0):
            pairs = zip(torch.split(inputs, 2), torch.split(targets, 2), strict=True)
            pairs_in_time = itertools.takewhile(lambda _: time.monotonic() < until_s, pairs)
            losses = [float(loss(model(some), of).double().mean().nan_to_num()) for some, of in pairs_in_time]
    except OWN_CODE_ERRORS:
        return ()
    return float(inputs.double().abs().mean().nan_to_num()), *losses


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
    return _cnn(input_shape, classes, _CNN3, (128, 64, 32))


def cnn3_batch(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """`cnn3` with batch normalisation by the current batch, in evaluation too: it keeps no running statistics."""
    by_batch = [partial(kind, track_running_stats=False) for kind in (_BatchNorm2d, _BatchNorm1d)]
    return _cnn(input_shape, classes, _CNN3, (128, 64, 32), by_batch)


def cnn3_running(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """`cnn3` with batch normalisation, as in PAUSE's code. It is evaluated with running statistics."""
    return _cnn(input_shape, classes, _CNN3, (128, 64, 32), (_BatchNorm2d, _BatchNorm1d))


def cnn5(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """3×3 convolutions 32-32-64-64 and a 4×4 of 128, pooled after the 2nd, 4th and 5th; then 128-64-32-10."""
    layers = [(32, 3, False), (32, 3, True), (64, 3, False), (64, 3, True), (128, 4, True)]
    return _cnn(input_shape, classes, layers, (64, 32))


def fedts_fashion(
    input_shape: tuple[int, ...], classes: int, normalised: Callable[[int], nn.Module] = _BY_GROUP
) -> nn.Module:
    """Fed-TS on Fashion-MNIST: 5×5 convolutions 16-32, each normalised, ReLU and 2×2 max-pool; then one linear layer.

    29,034 parameters. The paper does not state the padding; here the convolutions keep the images' size.
    """
    before, height, width = _image_shape(input_shape, least=4)
    layers: list[nn.Module] = []
    for channels in (16, 32):
        layers += [nn.Conv2d(before, channels, 5, padding=2), normalised(channels), *_pooled()]
        before = channels
    return ImageNetwork(*layers, nn.Flatten(), nn.Linear(before * (height // 4) * (width // 4), classes))


def fedts_fashion_batch(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """`fedts_fashion` with batch normalisation, as the paper states. It is evaluated with running statistics."""
    return fedts_fashion(input_shape, classes, nn.BatchNorm2d)


def fedts_cifar(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Fed-TS on CIFAR-10: 5×5 convolutions 6-16, each ReLU and 2×2 max-pool; then fully connected 400-120-10.

    52,202 parameters. The paper does not state the hidden layer's width; 120 and no padding are as in LeNet-5.
    """
    channels, height, width = _image_shape(input_shape, least=16)
    sides = (((side - 4) // 2 - 4) // 2 for side in (height, width))
    return ImageNetwork(
        nn.Conv2d(channels, 6, 5),
        *_pooled(),
        nn.Conv2d(6, 16, 5),
        *_pooled(),
        nn.Flatten(),
        nn.Linear(16 * math.prod(sides), 120),
        nn.ReLU(),
        nn.Linear(120, classes),
    )


def fedts_agnews(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Fed-TS on AG-News: a transformer encoder of one layer, 32 wide. The mean of its outputs over words is classified.

    272,420 parameters, 262,144 of them embeddings. The paper only refers to another one for its configuration; this
    model is small enough for a CPU.
    """
    return _TextEncoder(input_shape[0], classes, width=32, heads=4)


class _Attention(nn.Module):
    """Multi-head self-attention (Vaswani et al., NIPS 2017) among the words of a text."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self._heads = heads
        self.project = nn.Linear(width, 3 * width)
        self.merge = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, is_word: torch.Tensor) -> torch.Tensor:
        """(n, words, width) -> (n, words, width). Padding is masked out of the attention."""
        n, words, width = x.shape
        split = self.project(x).view(n, words, 3, self._heads, width // self._heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=is_word[:, None, None, :])
        merged: torch.Tensor = self.merge(mixed.transpose(1, 2).reshape(n, words, width))
        return merged


class _TextEncoder(nn.Module):
    """One transformer layer, normalised before each part, over embedded tokens; then the words' mean and a classifier.

    Embeddings start at sd 0.02 and are multiplied by √width, as in Vaswani et al.; larger ones make the model overfit.
    It also overfits later, unless words are hidden in training (word dropout, Iyyer et al., ACL 2015). With 5,400
    training examples of AG-News, hiding words raises the test accuracy from 82 % to 85 %.
    """

    def __init__(self, words: int, classes: int, *, width: int, heads: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(BUCKETS, width)
        self.place = nn.Parameter(torch.empty(words, width))
        nn.init.normal_(self.embed.weight, std=0.02)
        nn.init.normal_(self.place, std=0.02)
        self.attend = _Attention(width, heads)
        self.transform = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.classify = nn.Linear(width, classes)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """(n, words) tokens -> (n, classes) logits. Every text must have at least one word."""
        is_word = tokens != 0
        if self.training:
            is_word[:, 1:] &= torch.rand(tokens[:, 1:].shape, device=tokens.device) >= _HIDDEN_SHARE
        x = self.embed(tokens) * math.sqrt(self.embed.embedding_dim) + self.place
        x = x + self.attend(self.norms[0](x), is_word)
        x = x + self.transform(self.norms[1](x))
        mean = (x * is_word[..., None]).sum(1) / is_word.sum(1, keepdim=True)
        logits: torch.Tensor = self.classify(self.norms[2](mean))
        return logits


def _pooled() -> list[nn.Module]:
    """2×2 max-pool, then ReLU. The other order gives the same bits, gradients too, but ReLU has four times the work."""
    return [nn.MaxPool2d(2), nn.ReLU(inplace=True)]


class _TakesOneValue(nn.Module):
    """Batch normalisation that also accepts one value per channel, which torch refuses: it adds a copy of the value."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        has_one = x.numel() == x.shape[1]  # one example, with one pixel per channel
        y: torch.Tensor = super().forward(torch.cat((x, x)))[:1] if has_one else super().forward(x)
        return y


class _BatchNorm1d(_TakesOneValue, nn.BatchNorm1d): ...


class _BatchNorm2d(_TakesOneValue, nn.BatchNorm2d): ...


def _cnn(
    input_shape: tuple[int, ...],
    classes: int,
    convolutions: Sequence[tuple[int, int, bool]],
    hidden: tuple[int, ...],
    normalised: Sequence[Callable[[int], nn.Module]] = (_BY_GROUP, partial(nn.GroupNorm, 1)),
) -> nn.Module:
    """Unpadded convolutions, given as (channels, kernel, pooled), then fully connected layers.

    Every layer ends with its normalisation, of images or of rows, after ReLU and pooling. At the published Adam rate of
    0.01, cnn3 stays at chance level if it is normalised before the ReLU. It learns far more slowly if its fully
    connected layers are not normalised.
    """
    of_images, of_rows = normalised
    before, *sides = _image_shape(input_shape, least=1)
    layers: list[nn.Module] = []
    for channels, kernel, pooled in convolutions:
        after = _pooled() if pooled else [nn.ReLU(inplace=True)]
        layers += [nn.Conv2d(before, channels, kernel), *after, of_images(channels)]
        sides = [(side - kernel + 1) // (2 if pooled else 1) for side in sides]
        before = channels
    if min(sides) < 1:
        raise ConfigError(f"images of {input_shape[1]}x{input_shape[2]} are too small for it")
    layers.append(nn.Flatten())
    for inputs, width in itertools.pairwise((before * math.prod(sides), *hidden)):
        layers += [nn.Linear(inputs, width), nn.ReLU(), of_rows(width)]
    return ImageNetwork(*layers, nn.Linear(hidden[-1], classes))


def _image_shape(input_shape: tuple[int, ...], least: int) -> tuple[int, int, int]:
    """(channels, height, width) of an input. ConfigError if inputs are no images, or have a side below `least`."""
    if len(input_shape) != 3:
        raise ConfigError(f"needs images, but an input has shape {input_shape}")
    channels, height, width = input_shape
    if min(height, width) < least:
        raise ConfigError(f"images of {height}x{width} are too small for it")
    return channels, height, width
