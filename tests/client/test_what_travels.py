"""What of a model travels, is noised and charged, and what stays as it is: models as people bring them."""

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.parametrizations import spectral_norm

import pausefl
from pausefl.experiment.loading import parse_experiment
from pausefl.runtime.evaluator.preflight import try_out
from pausefl_client.training.model_vector import ModelVector
from pausefl_client.training.models import build_model
from pausefl_client.training.trainer import TrainingSettings
from pausefl_proto.errors import ConfigError
from rigs import own_models
from rigs.own_models import RUN, played, tokens, trainer_of


@pytest.fixture(autouse=True)
def _this_module_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "own", own_models)


# -- constants


@pytest.mark.parametrize(
    ("model", "size", "same"),
    [
        ("bool_mask", 1_434, ["mask"]),
        ("inf_mask", 1_434, ["mask"]),
        ("int_buffer", 911, ["position_ids", "table"]),
        ("frozen_backbone", 650, ["1.weight", "1.bias"]),
        ("tied_layers", 4_874, []),
        ("mixed_dtypes", 1_482, []),
    ],
)
def test_what_does_not_train_is_neither_noised_nor_charged_and_stands_in_the_file(
    tmp_path: Path, model: str, size: int, same: list[str]
) -> None:
    summary = played(tmp_path, model)
    assert summary["model_size"] == size
    assert summary["vector_epsilon_max"] == pytest.approx(size * summary["max_epsilon_spent"])
    made = build_model(f"own:{model}", (1, 8, 8), 10, seed=1)
    before = {name: tensor.clone() for name, tensor in made.state_dict().items()}
    for name in ("model", "best_model"):
        state = safetensors.torch.load_file(tmp_path / f"{name}.safetensors")
        made.load_state_dict(state)
        for key, tensor in made.state_dict().items():
            assert torch.equal(tensor, before[key]) == (key in same)
            assert key not in same or state[key].dtype == before[key].dtype
    of_run = pausefl.Run(tmp_path).model()
    assert all(np.array_equal(of_run[key], before[key].float().numpy()) for key in same)


def test_models_of_equal_tensors_differ_where_what_does_not_train_differs() -> None:
    """Two hosts with other weights of one backbone: the server takes the second for another model."""
    model, other = (build_model("own:frozen_backbone", (1, 8, 8), 10, seed=1) for _ in range(2))
    assert ModelVector(model).manifest == ModelVector(other).manifest
    with torch.no_grad():
        other.get_parameter("1.weight")[0, 0] += 1
    ours, theirs = ModelVector(model).manifest, ModelVector(other).manifest
    assert ours.tensors == theirs.tensors
    assert ours != theirs


def test_sparse_gradients_train_as_torchs_own_optimizer_trains_them(tmp_path: Path) -> None:
    model, same = (build_model("own:sparse_embedding", (8,), 3, seed=1, has_tokens=False) for _ in range(2))
    data = tokens(1).train.take(np.arange(10))
    settings = TrainingSettings("sgd", 0.5, batch_size=10)
    trainer = trainer_of(model, settings, data)
    theta = trainer.vector.values()
    update = trainer.train(theta, round=1).update
    functional.cross_entropy(same(torch.tensor(data.inputs)), torch.tensor(data.labels)).backward()  # type: ignore[no-untyped-call]
    torch.optim.SGD(same.parameters(), 0.5).step()
    np.testing.assert_allclose(update, ModelVector(same).values() - theta, atol=1e-6)
    changes = {"workload.dataset": "own:tokens", "workload.optimizer": "sgd"}
    for training in ("plain", "scaffold"):  # which changes gradients
        summary = played(tmp_path / training, "sparse_embedding", **changes, **{"workload.training": training})
        assert summary["rounds"] == 2


def test_an_unused_parameter_of_half_precision_does_not_move() -> None:
    model = build_model("own:mixed_dtypes", (1, 8, 8), 10, seed=1)
    trainer = trainer_of(model.requires_grad_(), TrainingSettings("sgd", 1e-30))
    theta = trainer.vector.values() + np.float32(1e-4)  # which bfloat16 has not
    assert np.abs(trainer.train(theta, round=1).update).max() < 1e-9


class Odd(nn.Module):
    """A model with one thing that a run cannot carry."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what
        self.out: nn.Module = nn.Linear(64, 10)
        if what == "parameter":
            self.phase = nn.Parameter(torch.ones(2, dtype=torch.complex64))
        if what == "buffer":
            self.register_buffer("phase", torch.ones(2, dtype=torch.complex64))
        if what == "lazy":
            self.out = nn.LazyLinear(10)
        if what == "spectral":
            self.out = spectral_norm(self.out)
        if what == "NaN":
            self.scale = nn.Parameter(torch.tensor([1.0, math.nan]))

    def get_extra_state(self) -> Any:
        return {"steps": 3} if self.what == "extra" else torch.ones(1)

    def set_extra_state(self, state: Any) -> None: ...

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.out(x.flatten(1))
        return scores


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("parameter", r"the parameter phase is complex64; must be real and dense"),
        ("buffer", r"phase is complex64, which no model file holds; register the buffer with persistent=False"),
        ("lazy", r"out\.weight has no shape yet; call model\(torch\.zeros\(1, \*input_shape\)\) in the factory"),
        ("extra", r"_extra_state, of get_extra_state, is a dict; must be a tensor"),
        ("spectral", r"the buffer out\.parametrizations\.weight\.0\._u \(float32\) changes while the model trains"),
        ("NaN", r"scale holds values that are not finite before any training"),
    ],
)
def test_what_cannot_be_carried_is_refused_by_name(what: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_models, "odd", lambda *_: Odd(what), raising=False)
    experiment = parse_experiment("", {**RUN, "workload.model": "own:odd"})
    with pytest.raises(ConfigError, match=rf"workload\.model.*{message}"):
        try_out(experiment, print)


def test_extra_state_that_is_a_tensor_stands_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_models, "odd", lambda *_: Odd(""), raising=False)
    played(tmp_path, "odd")
    assert torch.equal(safetensors.torch.load_file(tmp_path / "model.safetensors")["_extra_state"], torch.ones(1))


def test_validate_counts_what_travels(capsys: pytest.CaptureFixture[str]) -> None:
    for model, statistics, said in (
        ("frozen_backbone", "local", "650 trained values travel, 4,160 constants stay"),
        ("batch_norm", "local", "1,242 trained values travel, 1 constants stay"),
        ("batch_norm", "local", "32 are estimated on held-out data"),
        ("batch_norm", "average", "32 are averaged"),
        ("batch_norm", "average", "0.51 times the clip bound in a client's release 1, and 0.53 times in release 2"),
    ):
        disclose = ["statistics"] if statistics == "average" else []
        changes = {"workload.statistics": statistics, "privacy.disclose": disclose, "experiment.rounds": 4}
        told = try_out(parse_experiment("", {**RUN, "workload.model": f"own:{model}", **changes}), print)
        assert said in " ".join(told)
    assert not capsys.readouterr().out
