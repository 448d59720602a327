"""Models, their flat vector on the wire, and optimizer states: joined, split, written and read back."""

import copy
import math
import os
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from pausefl_client.registries import MODELS, OPTIMIZERS
from pausefl_client.training.model_vector import ModelVector
from pausefl_client.training.models import build_model
from pausefl_client.training.optimizer_states import StateWriter, joined, parted, read_states
from pausefl_client.training.optimizers import make_optimizer
from pausefl_client.training.trainer import TrainingSettings
from pausefl_proto.errors import ConfigError
from rigs.batched import ADAM, CPU, network, played_together, theta_of, trainers_of

MNIST, CIFAR, DIGIT = (1, 28, 28), (3, 32, 32), (1, 8, 8)
OWN = "rigs.own_models:batch_norm"
"""A model as a user may write it. Its batch normalisation has running statistics and a counter."""


def not_a_model(input_shape: tuple[int, ...], classes: int) -> str:
    return "not a model"


@pytest.mark.parametrize(
    ("name", "shape", "size"),
    [
        ("mlp", MNIST, 25_818),
        ("mlp", (1, 8, 8), 2_778),
        ("cnn3", CIFAR, 170_474),
        ("cnn3_batch", CIFAR, 170_474),
        ("cnn5", CIFAR, 207_434 + 832),  # as published, and those of its normalisation
        ("fedts_fashion", MNIST, 29_034),
        ("fedts_fashion", (1, 4, 8), 13_994),  # the smallest images
        ("fedts_cifar", (3, 16, 32), 13_802),
        ("cnn3_running", CIFAR, 171_370),  # 896 of them are statistics
        ("fedts_fashion_batch", MNIST, 29_130),  # 96 of them are statistics
        ("fedts_cifar", CIFAR, 52_202),
    ],
)
def test_number_of_parameters(name: str, shape: tuple[int, ...], size: int) -> None:
    model = build_model(name, shape, 10, seed=1)
    assert ModelVector(model).manifest.size == ModelVector(model).values().size == size
    assert model(torch.zeros(2, *shape)).shape == (2, 10)


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
@pytest.mark.parametrize("shape", [CIFAR, MNIST])  # the convolutions reduce MNIST's images to one pixel
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


@pytest.mark.parametrize(("name", "shape"), [("cnn3", CIFAR), ("cnn5", CIFAR), ("fedts_fashion", MNIST)])
def test_pooling_before_relu_or_in_another_layout_changes_no_bit_and_loses_no_nan(
    name: str, shape: tuple[int, ...]
) -> None:
    model = build_model(name, shape, 10, seed=1)
    layers = list(copy.deepcopy(model).children())
    for i, layer in enumerate(layers[:-1]):
        if isinstance(layer, nn.MaxPool2d):
            layers[i], layers[i + 1] = layers[i + 1], layers[i]
    published = nn.Sequential(*layers)  # the same parameters, with each ReLU before its pooling
    assert [type(layer) for layer in published] != [type(layer) for layer in model.children()]
    images, labels = torch.randn(20, *shape, generator=torch.Generator().manual_seed(1)), torch.arange(20) % 10
    images = images.contiguous(memory_format=torch.channels_last)
    for one in (model, published):
        torch.autograd.backward(nn.functional.cross_entropy(one(images), labels))
    own, theirs = ([parameter.grad for parameter in one.parameters()] for one in (model, published))
    torch.testing.assert_close(own, theirs, rtol=0, atol=0)
    images[3, 0, 0, 0] = math.nan
    assert model(images).isnan().any(1).tolist() == [i == 3 for i in range(20)]


@pytest.mark.parametrize(("name", "shape"), [("cnn3", CIFAR), ("fedts_fashion", MNIST)])
def test_methods_may_take_second_derivatives_and_gradients_of_each_example(name: str, shape: tuple[int, ...]) -> None:
    model = build_model(name, shape, 10, seed=1)
    images = torch.rand(2, *shape, generator=torch.Generator().manual_seed(1))
    parameters: dict[str, torch.Tensor] = dict(model.named_parameters())
    gradients = torch.autograd.grad(model(images).logsumexp(1).sum(), list(parameters.values()), create_graph=True)
    torch.autograd.backward(torch.stack([gradient.square().sum() for gradient in gradients]).sum())

    def loss(of: dict[str, torch.Tensor], image: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = torch.func.functional_call(model, of, (image[None],))
        return outputs.logsumexp(1).sum()

    of_each = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, images)
    for gradient, each in zip(gradients, of_each.values(), strict=True):
        torch.testing.assert_close(each.sum(0), gradient.detach(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("name", "shape"), [("mlp", CIFAR), ("cnn3", CIFAR), (OWN, DIGIT)])
def test_unflatten_undoes_flatten(name: str, shape: tuple[int, ...]) -> None:
    model, other = (build_model(name, shape, 10, seed=seed) for seed in (1, 2))
    theta = ModelVector(model).values()
    assert theta.dtype == np.float32
    theta.flags.writeable = False
    ModelVector(other).fill(theta)
    other.load_state_dict(dict(model.named_buffers()), strict=False)
    for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    assert np.array_equal(ModelVector(other).values(), theta)
    before = theta.copy()
    ModelVector(model).fill(np.zeros_like(theta))
    assert np.array_equal(theta, before), "it shares no memory with its model"


def test_the_manifest_says_where_each_tensor_is_and_leaves_buffers_as_they_are() -> None:
    model = build_model(OWN, DIGIT, 10, seed=1)
    model(torch.rand(4, *DIGIT))
    parts = ModelVector(model).manifest.split(ModelVector(model).values())
    names = [*(name for name, _ in model.named_parameters()), "statistics/2.running_mean", "statistics/2.running_var"]
    assert list(parts) == names
    assert np.array_equal(parts["statistics/2.running_mean"], model.state_dict()["2.running_mean"].numpy())
    model.get_buffer("2.num_batches_tracked").resize_(2)  # as those of layers that observe ranges to quantise them


@pytest.mark.parametrize("size", [0, 25_817, 25_819])
def test_a_vector_of_another_size_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match="the model has 25818 values"):
        ModelVector(build_model("mlp", MNIST, 10, seed=1)).fill(np.zeros(size, np.float32))


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("resnet", MNIST, rf"must be one of {', '.join(MODELS)}, or"),
        ("cnn3", (1, 8, 8), "images of 8x8 are too small"),
        ("cnn5", MNIST, "images of 28x28 are too small"),
        ("fedts_fashion_batch", (1, 3, 8), "images of 3x8 are too small"),
        ("fedts_cifar", (3, 15, 32), "images of 15x32 are too small"),
        ("cnn3", (64,), "needs images"),
        ("no_such_package:model", MNIST, "cannot be imported"),
        (f"{__name__}:no_such_name", MNIST, "cannot be imported"),
        (f"{__name__}:MNIST", MNIST, "is not callable"),
        (f"{__name__}:not_a_model", MNIST, "returned str"),
    ],
)
def test_bad_models_name_the_key(name: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=rf'workload\.model = "{name}".*{message}'):
        build_model(name, shape, 10, seed=1)


DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.bool, torch.complex64)


def tensor(shape: list[int], dtype: torch.dtype, seed: int, *, is_transposed: bool) -> torch.Tensor:
    made = torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
    return made.T if is_transposed and made.dim() == 2 else made


TENSORS = st.builds(
    tensor,
    st.lists(st.integers(0, 4), max_size=3),
    st.sampled_from(DTYPES),
    st.integers(0, 99),
    is_transposed=st.booleans(),
)
NUMBERS = st.integers(-1, 1) | st.sampled_from([0.0, -0.0, 1.0]) | st.booleans() | st.none() | st.text(max_size=3)
VALUES = TENSORS | NUMBERS | st.lists(TENSORS | NUMBERS, max_size=2) | st.tuples(NUMBERS)
STATES = st.dictionaries(st.integers(0, 5), st.dictionaries(st.text(max_size=3), VALUES, max_size=4), max_size=4)
WRITTEN = st.tuples(STATES, NUMBERS, st.dictionaries(st.text(max_size=3), VALUES, max_size=3))


def shown(value: Any) -> str:
    """Types and values of everything in `value`, as text: 1, 1.0 and True differ, and so do 0.0 and -0.0."""
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {tuple(value.shape)} {value.to_dense().tolist()} {value.requires_grad}"
    if isinstance(value, dict):
        return str(sorted((repr(key), shown(inner)) for key, inner in value.items()))
    if isinstance(value, list | tuple):
        return type(value).__name__ + str([shown(inner) for inner in value])
    return repr(value)


def check_read_back(writer: StateWriter, states: Any, rate: Any = 0.1, of_method: Any = None) -> None:
    """Assert that the states of an optimizer and of a method are read back as they were written."""
    optimizer = {"state": states, "param_groups": [{"lr": rate, "betas": (0.9, 0.99), "params": list(states)}]}
    found, found_of_method = read_states(writer.written(optimizer, of_method or {}), CPU)
    assert shown([found, found_of_method]) == shown([optimizer, of_method or {}])


@given(st.lists(WRITTEN, min_size=1, max_size=4))
def test_what_was_written_is_read_back(written: list[tuple[Any, Any, Any]]) -> None:
    """One writer writes changing states. Reading must return the latest one each time."""
    writer = StateWriter()
    for states, rate, of_method in written:
        check_read_back(writer, states, rate, of_method)


@pytest.mark.parametrize("changed", [1, True, 0.0, -0.0, (1,), [1], {1: 2}, {True: 2}])
def test_a_change_of_type_or_sign_alone_is_written(changed: object) -> None:
    writer = StateWriter()
    for rate in (1.0, changed, 1.0):
        check_read_back(writer, {0: {"rate": rate}}, rate)


@pytest.mark.parametrize(
    "odd",
    [torch.eye(3, dtype=torch.float64).to_sparse(), torch.nn.Parameter(torch.ones(2)), torch.ones(2).requires_grad_()],
    ids=["sparse", "parameter", "with a gradient"],
)
def test_tensors_that_are_more_than_their_numbers_stay_what_they_are(odd: torch.Tensor) -> None:
    check_read_back(StateWriter(), {0: {"odd": odd, "plain": torch.ones(2)}})


def test_keys_of_an_optimizers_own_are_kept() -> None:
    optimizer = {"state": {}, "param_groups": [], "tensors": {"a": 1}, "method": "polyak"}
    assert read_states(StateWriter().written(optimizer, {}), CPU) == (optimizer, {})


def test_tensors_are_read_onto_the_device_asked_for_or_left_to_the_optimizer() -> None:
    """The optimizer keeps step counts on the CPU, because reading them from a GPU would make it wait."""
    written = StateWriter().written({"state": {0: {"m": torch.ones(2)}}, "param_groups": []}, {"x": torch.ones(3)})
    optimizer, of_method = read_states(written, torch.device("meta"))
    assert (optimizer["state"][0]["m"].device.type, of_method["x"].device.type) == ("cpu", "meta")


def test_a_description_that_did_not_change_is_not_written_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    saves: list[object] = []
    save = torch.save

    def counted(value: object, to: BytesIO) -> None:
        saves.append(value)
        save(value, to)

    monkeypatch.setattr(torch, "save", counted)
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer, writer = torch.optim.Adam([parameter], lr=0.5), StateWriter()
    written = []
    for rate in (0.5, 0.5, 0.5, 0.25):
        parameter.grad = torch.ones(3)
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        written.append(writer.written(optimizer.state_dict(), {}))
    assert len(saves) == 2  # for the first state, and for the changed rate
    assert len(set(written)) == 4
    found, _ = read_states(written[-1], CPU)
    assert (found["param_groups"][0]["lr"], found["state"][0]["step"].item()) == (0.25, 4)


class _Leaving:
    """Creates a folder when it is unpickled without restrictions."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._mark),)


def test_what_a_file_says_is_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    written = StateWriter().written({"state": {}, "param_groups": []}, {"x": _Leaving(mark)})
    with pytest.raises(ConfigError, match=r"it holds posix\.mkdir"):
        read_states(written, CPU)
    assert not mark.exists()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_joined_states_part_into_what_they_were(name: str) -> None:
    parameters = list(network().parameters())
    optimizer = make_optimizer(TrainingSettings(name, 0.01), parameters)
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    states, shapes = [optimizer.state.get(parameter, {}) for parameter in parameters], [p.shape for p in parameters]
    again = parted(joined(states, shapes), shapes)
    for before, after in zip(states, again, strict=True):
        torch.testing.assert_close(after, dict(before), rtol=0, atol=0)
    counts = [state["step"] for state in again if isinstance(state.get("step"), torch.Tensor)]
    assert len({count.data_ptr() for count in counts}) == len(counts), "each parameter counts its own steps"


def test_a_trainer_that_is_restored_forgets_what_it_remembered_of_a_training_together() -> None:
    trainer, fresh = trainers_of(ADAM, sizes=(20,))[0], trainers_of(ADAM, sizes=(20,))[0]
    played_together([trainer], theta_of(trainer), 1)
    trainer.restore(b"")
    assert trainer.optimizer_states() == {}
    theta = theta_of(trainer, 2)
    assert (trainer.train(theta, round=2).update == fresh.train(theta, round=2).update).all()
