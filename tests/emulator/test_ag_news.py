"""AG-News: its published files, the split of its test file, its model, and that the model learns."""

import csv
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pausefl.cli import main
from pausefl.experiment.experiment import load_experiment
from pausefl.runtime.client.plan import client_plan
from pausefl.runtime.client.torch_trainers import make_torch_trainers
from pausefl_client.data.datasets import Dataset, Examples, load_dataset, prepare_dataset, split_note
from pausefl_client.data.published import read_ag_news
from pausefl_client.data.text import hashed_tokens
from pausefl_client.training.models import build_model
from pausefl_client.training.torch_trainer import LocalData, TorchTrainer
from pausefl_client.training.trainer import TrainingSettings
from pausefl_proto.errors import ConfigError
from rigs.own_models import evaluator_of

REAL_DATA = os.environ.get("PAUSEFL_DATA")


@pytest.fixture(autouse=True)
def _own_data_and_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAUSEFL_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def real_data(monkeypatch: pytest.MonkeyPatch) -> None:
    if not REAL_DATA:
        pytest.skip("PAUSEFL_DATA is not set: no published data here")
    monkeypatch.setenv("PAUSEFL_DATA", REAL_DATA)


def article(i: int) -> str:
    """Article i's text. It differs from every other: articles may share word tokens, never digits."""
    return f"article {' '.join(str(i))}"


def write_articles(path: Path, n: int, first: int = 0) -> None:
    """Write n numbered articles whose classes take turns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        writer.writerows((i % 4 + 1, article(i), "") for i in range(first, first + n))


def articles(*parts: Examples) -> set[bytes]:
    return {row.tobytes() for part in parts for row in part.inputs}


def test_a_row_is_its_class_and_the_words_of_title_and_description(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('"3","Oil, again","Prices ""soar""\\as feared."\n"1","","Two\nlines"\n', "utf-8")
    tokens, labels = read_ag_news(tmp_path / "a.csv")
    assert labels.tolist() == [2, 0]
    assert np.array_equal(tokens, hashed_tokens(["oil again prices soar as feared", "two lines"], 48))


@pytest.mark.parametrize(
    "content",
    [b"", b'"5","a","b"\n', b'"0","a","b"\n', b'"x","a","b"\n', b'"1","a"\n', b'"1","a","b","c"\n', b"\xff\xfe\x00"],
)
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(ConfigError, match=r"a\.csv: is not a file of AG-News \("):
        read_ag_news(tmp_path / "a.csv")


def test_without_training_file_the_test_file_is_split_the_same_for_every_seed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_articles(tmp_path / "data/ag-news/test.csv", 7600)
    news, again = (load_dataset("ag-news", seed=seed) for seed in (1, 2))
    assert [len(part) for part in (news.train, news.validation, news.test)] == [5400, 600, 1600]
    assert (news.classes, news.input_shape, news.has_tokens) == (4, (48,), True)
    assert len(articles(news.train, news.validation, news.test)) == 7600
    assert np.array_equal(news.test.inputs, again.test.inputs)
    # Articles are shuffled before the split, so those at the end of the published file are in all parts.
    last = {tokens.tobytes() for tokens in hashed_tokens([article(i) for i in range(6000, 7600)], 48)}
    assert 200 < len(last & articles(news.test)) < 500
    assert "5,400 to train on, 600 to validate on and 1,600 to test on" in split_note("ag-news", len(news.test))
    main(["data", "ag-news"])
    sizes, note = capsys.readouterr().out.splitlines()
    assert sizes.startswith("ag-news: 5400 training, 600 validation, 1600 test examples, 4 classes, inputs 48")
    assert note.startswith("from the published test split alone")


def test_the_training_file_is_used_where_it_is(tmp_path: Path) -> None:
    write_articles(tmp_path / "data/ag-news/test.csv", 2000)
    prepare_dataset("ag-news")
    write_articles(tmp_path / "data/ag-news/train.csv", 1000, first=2000)
    news = load_dataset("ag-news", examples=80, seed=1)
    assert [len(part) for part in (news.train, news.validation, news.test)] == [80, 100, 2000]
    assert news.test.labels[:5].tolist() == [0, 1, 2, 3, 0]
    assert np.array_equal(news.validation.inputs[-1], hashed_tokens([article(2999)], 48)[0])
    assert split_note("ag-news", len(news.test)) == ""


@pytest.mark.parametrize(("dataset", "model"), [("digits", "fedts_agnews"), ("ag-news", "mlp")])
def test_models_for_numbers_and_texts_are_told_apart(dataset: str, model: str, tmp_path: Path) -> None:
    write_articles(tmp_path / "data/ag-news/test.csv", 1700)
    with pytest.raises(ConfigError, match=f'workload.model = "{model}": needs .*, but workload.dataset holds'):
        evaluator_of(dataset, model)


def test_the_model_has_as_many_parameters_as_is_said_and_what_is_no_word_does_not_matter() -> None:
    whole = build_model("fedts_agnews", (48,), 4, 1, has_tokens=True)
    assert sum(values.numel() for values in whole.parameters()) == 272_420
    model: Any = build_model("fedts_agnews", (6,), 4, seed=1, has_tokens=True).eval()
    tokens = torch.tensor([[5, 6, 7, 0, 0, 0], [9, 0, 0, 0, 0, 0]])
    with torch.no_grad():
        before = model(tokens)
        model.embed.weight[0] = 100.0
        model.place[3:] = 100.0
        assert torch.equal(model(tokens), before)
        model.embed.weight[7] += torch.linspace(-1, 1, 32)
        after = model(tokens)
    assert not torch.equal(after[0], before[0])
    assert torch.equal(after[1], before[1])


def test_words_attend_to_each_other() -> None:
    """A model that only averaged its words would not see their order."""
    model: Any = build_model("fedts_agnews", (3,), 4, seed=1, has_tokens=True).eval()
    with torch.no_grad():
        model.place.zero_()
        there, back = model(torch.tensor([[5, 6, 7]])), model(torch.tensor([[7, 6, 5]]))
        assert torch.allclose(there, back, atol=1e-6)
        model.place[0] = torch.linspace(-1, 1, 32)
        there, back = model(torch.tensor([[5, 6, 7]])), model(torch.tensor([[7, 6, 5]]))
    assert not torch.allclose(there, back, atol=1e-4)


def test_words_are_hidden_while_it_trains_but_never_all_of_a_text() -> None:
    model = build_model("fedts_agnews", (3,), 4, seed=1, has_tokens=True)
    tokens = torch.tensor([[5, 6, 7]]).repeat(200, 1)
    with torch.no_grad():
        training, evaluating = model(tokens), model.eval()(tokens)
    assert torch.isfinite(training).all()
    assert len(training.round(decimals=5).unique(dim=0)) == 4
    assert len(evaluating.round(decimals=5).unique(dim=0)) == 1


def train(news: Dataset, rows: int, epochs: int) -> float:
    """Returns the test accuracy after central training on `rows` examples."""
    evaluator = evaluator_of("ag-news", "fedts_agnews")
    model, data = build_model("fedts_agnews", news.input_shape, 4, 1, has_tokens=True), news.train.take(np.arange(rows))
    settings: dict[str, Any] = {"device": torch.device("cpu"), "seed": 1, "client_id": "c"}
    trainer = TorchTrainer(model, LocalData(data), TrainingSettings("sgd", 0.03, 20, epochs, None), **settings)
    update = trainer.train(evaluator.initial.theta_0, round=1).update
    return evaluator.evaluate(evaluator.initial.theta_0 + update, ["test"], subset=False).evaluations[0].accuracy


@pytest.mark.usefixtures("real_data")
def test_the_published_file_is_learnt_from() -> None:
    news = load_dataset("ag-news", seed=1)
    sizes = [len(part) for part in (news.train, news.validation, news.test)]
    assert sizes in ([5400, 600, 1600], [108_000, 12_000, 7600])
    assert train(news, 5400, epochs=1) > 0.7


@pytest.mark.usefixtures("real_data")
def test_a_flipped_client_of_the_preset_teaches_the_next_class() -> None:
    """The flipped client's loss falls on its own labels, so its updates are wrong for all other clients."""
    few = ("workload.examples=5400", "workload.batch_size=20")
    experiment = load_experiment("fedts_flip_agnews", [*few, "workload.epochs=8"])
    honest, flipped = make_torch_trainers(client_plan(experiment).training, ["relevant-000", "flipped-000"]).values()
    assert honest.n_examples == flipped.n_examples == 360
    evaluator = evaluator_of("ag-news", "fedts_agnews")
    accuracies = []
    for trainer in (honest, flipped):
        theta = evaluator.initial.theta_0 + trainer.train(evaluator.initial.theta_0, round=1).update
        accuracies.append(evaluator.evaluate(theta, ["test"], subset=False).evaluations[0].accuracy)
    assert accuracies[0] > 0.4
    assert accuracies[1] < 0.25


@pytest.mark.parametrize(
    ("name", "irrelevant", "clients"),
    [("fedts_flip_agnews", "flipped", 5), ("fedts_skew_agnews", "skewed", 5), ("fedts_poison_agnews", "poisoned", 8)],
)
def test_presets_have_all_newcomers_join_at_round_ten(name: str, irrelevant: str, clients: int) -> None:
    """Source: Fed-TS, Section VII-B. The four insertion times of Fig. 10 hold for the 250 devices alone."""
    groups = load_experiment(name).groups
    joins = {group: table.join_round for group, table in groups.items()}
    assert joins == {"original": 1, "relevant": 10, irrelevant: 10}
    assert {table.count for table in groups.values()} == {clients}
