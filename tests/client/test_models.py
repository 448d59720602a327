"""Models, and the flat vector they are on the wire."""

import copy
import sys

import numpy as np
import pytest
import torch
from torch import nn

from pausefl_client.registries import MODELS
from pausefl_client.training.model_vector import ModelVector
from pausefl_client.training.models import build_model
from pausefl_proto.errors import ConfigError

MNIST, CIFAR = (1, 28, 28), (3, 32, 32)


def own_model(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """A model of one's own: batch normalisation brings statistics and a counter."""
    return nn.Sequential(nn.Conv2d(input_shape[0], 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, classes))


def not_a_model(input_shape: tuple[int, ...], classes: int) -> str:
    return "not a model"


@pytest.fixture(autouse=True)
def _this_module_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "own_models", sys.modules[__name__])


@pytest.mark.parametrize(
    ("name", "shape", "size"),
    [
        ("mlp", MNIST, 25_818),
        ("mlp", (1, 8, 8), 2_778),
        ("cnn3", CIFAR, 170_474),
        ("cnn3_batch", CIFAR, 170_474),
        ("fedts_fashion", MNIST, 29_034),
        ("cnn3_running", CIFAR, 171_370),  # 896 of them statistics
        ("fedts_fashion_batch", MNIST, 29_130),  # 96 of them statistics
        ("fedts_cifar", CIFAR, 52_202),
    ],
)
def test_number_of_parameters(name: str, shape: tuple[int, ...], size: int) -> None:
    model = build_model(name, shape, 10, seed=1)
    assert ModelVector(model).manifest.size == ModelVector(model).values().size == size
    assert model(torch.zeros(2, *shape)).shape == (2, 10)


def test_cnn5_has_the_published_parameters_besides_its_normalisation() -> None:
    model = build_model("cnn5", CIFAR, 10, seed=1)
    norms = [module for module in model.modules() if isinstance(module, nn.GroupNorm)]
    assert ModelVector(model).manifest.size - sum(p.numel() for norm in norms for p in norm.parameters()) == 207_434
    assert model(torch.zeros(2, *CIFAR)).shape == (2, 10)


@pytest.mark.parametrize(("name", "shape"), [("fedts_fashion", (1, 3, 8)), ("fedts_cifar", (3, 15, 32))])
def test_an_image_too_small_for_fed_tss_nets_is_named(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match=f'workload.model = "{name}": images of {shape[1]}x{shape[2]} are too small'):
        build_model(name, shape, 10, seed=1)
    smallest = (shape[0], 4 if shape[1] == 3 else 16, shape[2])
    assert build_model(name, smallest, 10, seed=1)(torch.zeros(2, *smallest)).shape == (2, 10)


@pytest.mark.parametrize("name", [name for name in MODELS if name not in {"cnn3_running", "fedts_fashion_batch"}])
def test_no_model_for_private_runs_keeps_statistics_of_the_data(name: str) -> None:
    for_texts = name == "fedts_agnews"
    assert not list(build_model(name, (48,) if for_texts else CIFAR, 10, seed=1, has_tokens=for_texts).buffers())


def test_a_batch_normalised_model_normalises_by_the_batch_at_hand_when_evaluated_too() -> None:
    model = build_model("cnn3_batch", CIFAR, 10, seed=1)
    images = torch.randn(20, *CIFAR, generator=torch.Generator().manual_seed(1))
    assert torch.equal(model.eval()(images), model.train()(images))
    assert not torch.allclose(model(images)[:10], model(images[:10]))


def test_running_statistics_travel_with_the_model() -> None:
    images = torch.randn(20, *MNIST, generator=torch.Generator().manual_seed(1))
    first, other = (build_model("fedts_fashion_batch", MNIST, 10, seed=seed) for seed in (1, 2))
    before = ModelVector(first).values()
    first.train()(images)
    assert np.count_nonzero(ModelVector(first).values() - before) == 96
    ModelVector(other).fill(ModelVector(first).values())
    assert torch.equal(first.eval()(images), other.eval()(images))
    assert torch.allclose(first(images)[:10], first(images[:10]), atol=1e-5)


@pytest.mark.parametrize("name", ["cnn3_batch", "cnn3_running"])
@pytest.mark.parametrize("shape", [CIFAR, MNIST])  # of MNIST's images the convolutions leave one pixel
def test_a_batch_normalised_model_takes_a_single_example(name: str, shape: tuple[int, int, int]) -> None:
    model = build_model(name, shape, 10, seed=1)
    logits = model(torch.randn(1, *shape, generator=torch.Generator().manual_seed(1)))
    torch.autograd.backward(nn.functional.cross_entropy(logits, torch.tensor([3])))
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())
    assert model.eval()(torch.zeros(1, *shape)).isfinite().all()


def test_the_seed_decides_and_the_global_generator_does_not() -> None:
    torch.manual_seed(5)
    first = ModelVector(build_model("mlp", MNIST, 10, seed=1)).values()
    drawn = torch.rand(1)
    torch.manual_seed(6)
    assert np.array_equal(first, ModelVector(build_model("mlp", MNIST, 10, seed=1)).values())
    assert not np.array_equal(first, ModelVector(build_model("mlp", MNIST, 10, seed=2)).values())
    torch.manual_seed(5)
    assert torch.equal(drawn, torch.rand(1))


def in_published_order(model: nn.Module) -> nn.Sequential:
    """The same parameters, with each ReLU before its pooling."""
    layers = list(copy.deepcopy(model).children())
    for i, layer in enumerate(layers[:-1]):
        if isinstance(layer, nn.MaxPool2d):
            layers[i], layers[i + 1] = layers[i + 1], layers[i]
    return nn.Sequential(*layers)


@pytest.mark.parametrize(("name", "shape"), [("cnn3", CIFAR), ("cnn5", CIFAR), ("fedts_fashion", MNIST)])
def test_pooling_before_relu_changes_no_bit(name: str, shape: tuple[int, ...]) -> None:
    model = build_model(name, shape, 10, seed=1)
    published = in_published_order(model)
    assert [type(layer) for layer in published] != [type(layer) for layer in model.children()]
    images, labels = torch.randn(20, *shape, generator=torch.Generator().manual_seed(1)), torch.arange(20) % 10
    for one in (model, published):
        torch.autograd.backward(nn.functional.cross_entropy(one(images), labels))
    for own, theirs in zip(model.parameters(), published.parameters(), strict=True):
        assert own.grad is not None
        assert theirs.grad is not None
        assert torch.equal(own.grad, theirs.grad)


@pytest.mark.parametrize("name", ["mlp", "cnn3", "own_models:own_model"])
def test_unflatten_undoes_flatten(name: str) -> None:
    shape = (3, 8, 8) if ":" in name else CIFAR
    model, other = (build_model(name, shape, 10, seed=seed) for seed in (1, 2))
    theta = ModelVector(model).values()
    assert theta.dtype == np.float32
    theta.flags.writeable = False
    ModelVector(other).fill(theta)
    other.load_state_dict(dict(model.named_buffers()), strict=False)
    for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    assert np.array_equal(ModelVector(other).values(), theta)


def test_the_manifest_says_where_each_tensor_is() -> None:
    model = build_model("own_models:own_model", (3, 8, 8), 10, seed=1)
    model(torch.rand(4, 3, 8, 8))
    parts = ModelVector(model).manifest.split(ModelVector(model).values())
    names = [*(name for name, _ in model.named_parameters()), "statistics/1.running_mean", "statistics/1.running_var"]
    assert list(parts) == names
    assert np.array_equal(parts["statistics/1.running_mean"], model.state_dict()["1.running_mean"].numpy())


def test_a_flat_vector_shares_no_memory_with_its_model() -> None:
    model = build_model("mlp", MNIST, 10, seed=1)
    theta = ModelVector(model).values()
    before = theta.copy()
    ModelVector(model).fill(np.zeros_like(theta))
    assert np.array_equal(theta, before)


@pytest.mark.parametrize("size", [0, 25_817, 25_819])
def test_a_vector_of_another_size_is_refused(size: int) -> None:
    model = build_model("mlp", MNIST, 10, seed=1)
    with pytest.raises(ValueError, match="the model has 25818 values"):
        ModelVector(model).fill(np.zeros(size, np.float32))


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("resnet", MNIST, rf"must be one of {', '.join(MODELS)}, or"),
        ("cnn3", (1, 8, 8), "images of 8x8 are too small"),
        ("cnn5", MNIST, "images of 28x28 are too small"),
        ("cnn3", (64,), "needs images"),
        ("no_such_package:model", MNIST, "cannot be imported"),
        ("own_models:no_such_name", MNIST, "cannot be imported"),
        ("own_models:MNIST", MNIST, "is not callable"),
        ("own_models:not_a_model", MNIST, "returned str"),
    ],
)
def test_bad_models_name_the_key(name: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=rf'workload\.model = "{name}".*{message}'):
        build_model(name, shape, 10, seed=1)
