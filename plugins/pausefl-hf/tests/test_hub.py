"""Data sets of the Hugging Face Hub, from local folders in the Hub's format, played with natural owners."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pausefl
from pausefl_client.data.datasets import Dataset, load_dataset
from pausefl_client.data.partition import Dealt, partition
from pausefl_proto.errors import ConfigError

Image = pytest.importorskip("PIL.Image", reason='pip install "pausefl[hf]"')
datasets = pytest.importorskip("datasets", reason='pip install "pausefl[hf]"')
pytest.importorskip("flwr_datasets", reason='pip install "pausefl[hf]"')
from pausefl_hf import Flower  # noqa: E402 - after the look for what it needs

# The library does not close some of its files.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
WRITERS = ("f0001_11", "f0002_07", "f0003_42")
PER_WRITER = 40


@pytest.fixture(autouse=True)
def _offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hub")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)


def femnist() -> Any:
    """Data with flwrlabs/femnist's columns and types. Pixels show the writer, the brightest one the character."""
    n = len(WRITERS) * PER_WRITER
    images = np.zeros((n, 28, 28), np.uint8)
    images[:, 0, 0] = np.arange(n) // PER_WRITER
    images[np.arange(n), 5, np.arange(n) % 10] = 255
    columns = {
        "image": [*images],
        "writer_id": [WRITERS[k // PER_WRITER] for k in range(n)],
        "hsf_id": [0] * n,
        "character": [k % 10 for k in range(n)],
    }
    features = {
        "image": datasets.Image(),
        "writer_id": datasets.Value("string"),
        "hsf_id": datasets.Value("int64"),
        "character": datasets.ClassLabel(62),
    }
    return datasets.Dataset.from_dict(columns, features=datasets.Features(features))


def as_parquet(folder: Path) -> Path:
    folder.mkdir()
    femnist().to_parquet(folder / "train.parquet")
    return folder


def as_saved(folder: Path) -> Path:
    femnist().save_to_disk(folder)
    return folder


@pytest.mark.parametrize("keep", [as_parquet, as_saved])
def test_femnist_is_read_with_its_writers(keep: Any, tmp_path: Path) -> None:
    found = load_dataset(f"hf:{keep(tmp_path / 'femnist')}", seed=3)
    assert (len(found.train), len(found.validation), len(found.test)) == (96, 12, 12)
    assert (found.classes, found.input_shape) == (62, (1, 28, 28))
    assert found.train.inputs.dtype == np.uint8
    rows = set[tuple[str, int]]()
    for part in (found.train, found.validation, found.test):
        assert part.owners is not None
        assert [WRITERS[k] for k in part.inputs[:, 0, 0, 0]] == part.owners.tolist()
        assert part.inputs[:, 0, 5].argmax(axis=1).tolist() == part.labels.tolist()
        rows |= set(zip(part.owners.tolist(), part.labels.tolist(), strict=True))
    assert len(rows) == 30
    again = load_dataset(f"hf:{tmp_path / 'femnist'}", seed=4)
    assert isinstance(again.train.inputs, np.memmap)
    assert np.array_equal(again.train.inputs, found.train.inputs)


def test_each_client_trains_on_one_writers_examples(tmp_path: Path) -> None:
    folder = as_parquet(tmp_path / "femnist")
    changes = {"experiment.rounds": 2, "experiment.clock": "virtual", "clients.ids": [*WRITERS], "clients.count": 3}
    workload = {"workload.dataset": f"hf:{folder}", "workload.partition": "by-client", "selection.m": 2}
    played = pausefl.run(pausefl.load("demo", {**changes, **workload}), tmp_path / "run", progress=False)
    assert played.summary["rounds"] == 2
    owners = played.columns("owners")
    assert dict(zip(owners["client_id"].tolist(), owners["owner"].tolist(), strict=True)) == {w: w for w in WRITERS}


@pytest.mark.parametrize(("owner", "asked"), [("phone", "&owner=phone"), ("owner", "")])
@pytest.mark.parametrize("index", [",", "Unnamed: 0,", "__index_level_0__,"])
def test_columns_are_chosen_by_name(index: str, owner: str, asked: str, tmp_path: Path) -> None:
    """The index that pandas writes beside the columns is none of them: a model could read the rows' order from it."""
    (tmp_path / "csv").mkdir()
    for split, n in (("train", 20), ("test", 5)):
        lines = [f"{n + k},{k},{k / 2},{'even' if k % 2 == 0 else 'odd'},phone-{k % 4}" for k in range(n)]
        (tmp_path / f"csv/{split}.csv").write_text("\n".join([f"{index}a,b,parity,{owner}", *lines]))
    found = load_dataset(f"hf:{tmp_path / 'csv'}?label=parity{asked}", seed=0)
    assert (len(found.train), len(found.validation), len(found.test), found.classes) == (18, 2, 5, 2)
    assert found.test.inputs.tolist() == [[k, k / 2] for k in range(5)]
    assert found.test.labels.tolist() == [0, 1, 0, 1, 0]
    assert found.test.owners is not None
    assert found.test.owners.tolist() == [f"phone-{k % 4}" for k in range(5)]


def test_texts_of_a_file_are_tokens(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("\n".join(["text,label", *("good day,a", "bad night,b") * 10]))
    found = load_dataset(f"hf:{tmp_path}", seed=0)
    assert found.has_tokens
    assert found.classes == 2


def test_examples_without_a_label_are_left_out(tmp_path: Path) -> None:
    """The Hub has a class of -1 where a label is not published, as in the tests of many benchmarks."""
    features = datasets.Features({"x": datasets.Value("float32"), "label": datasets.ClassLabel(2)})
    labels = {"train": [-1, 0, 1] * 10, "test": [-1] * 5}
    splits = {
        name: datasets.Dataset.from_dict({"x": [float(c) for c in of], "label": of}, features=features)
        for name, of in labels.items()
    }
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "saved")
    found = load_dataset(f"hf:{tmp_path / 'saved'}", seed=0)
    assert (len(found.train), len(found.validation), len(found.test)) == (16, 2, 2)
    for part in (found.train, found.validation, found.test):
        assert part.inputs[:, 0].tolist() == part.labels.tolist()


@pytest.mark.parametrize("label", ["yes", "1", "1.0"])
def test_rows_of_a_file_without_a_label_are_left_out(label: str, tmp_path: Path) -> None:
    rows = [(2, label), (3, ""), (1, "0.0" if label == "1.0" else "0" if label == "1" else "no")] * 10
    (tmp_path / "train.csv").write_text("\n".join(["x,label", *(f"{x},{of}" for x, of in rows)]))
    found = load_dataset(f"hf:{tmp_path}", seed=0)
    assert (len(found.train), len(found.validation), len(found.test), found.classes) == (16, 2, 2, 2)
    assert found.train.inputs[:, 0].tolist() == (found.train.labels + 1).tolist()


def test_grey_images_among_others_are_read_in_rgb(tmp_path: Path) -> None:
    for k, shape in enumerate([(4, 4), (4, 4, 3)] * 3):
        (tmp_path / f"train/{k % 3}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full(shape, k, np.uint8)).save(tmp_path / f"train/{k % 3}/{k}.png")
    found = load_dataset(f"hf:{tmp_path}", seed=0)
    assert found.input_shape == (3, 4, 4)
    assert (found.train.inputs[:, :, 0, 0] % 3 == found.train.labels[:, None]).all()


@pytest.mark.parametrize("pixel", [np.uint16(300), np.int32(300), np.float32(0.3)])
def test_images_of_more_than_8_bits_are_refused(pixel: Any, tmp_path: Path) -> None:
    """As bytes, their pixels would all be 0 or 255."""
    for name in ("cat", "dog"):
        (tmp_path / "train" / name).mkdir(parents=True)
        for k in range(3):
            Image.fromarray(np.full((4, 4), pixel)).save(tmp_path / f"train/{name}/{k}.tiff")
    with pytest.raises(ConfigError, match=r"an image has more than 8 bits a channel \(mode .*\); store images with 8"):
        load_dataset(f"hf:{tmp_path}", seed=0)


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("{csv}?label=price&input=a", "labels of price, such as 2.5, are no classes; a data set of your own with a"),
        ("{csv}", r"csv\": no column of labels; say which: \?label=COLUMN \(it has: a, b, price, t\)"),
        ("{csv}?label=a&input=b", "2 examples of its split train have a label; needs 3"),
        (
            "{csv}?label=b&input=a,t",
            r"column t holds no numbers of one shape \(ValueError: .*\); name others by input=",
        ),
        ("{csv}?label=b", r"inputs may be t or a or price; say which: \?input=COLUMN"),
        ("{csv}?label=c", r"there is no column c \(it has: a, b, price, t\)"),
        ("{csv}?labels=a", "labels: unknown option; must be one of input, label, owner, config, revision"),
        ("{csv}/nowhere", r"cannot be loaded \(\w+: "),
        ("femnist", "'femnist' is no data set: must be hf:OWNER/NAME, or hf: and the path of a folder"),
    ],
)
def test_what_is_no_data_set_is_one_line(source: str, line: str, tmp_path: Path) -> None:
    (tmp_path / "csv").mkdir()
    (tmp_path / "csv/train.csv").write_text("a,b,price,t\n1,2,2.5,x\n3,4,1.5,y\n,6,1.5,y\n")
    with pytest.raises(ConfigError, match=line) as refused:
        load_dataset(f"hf:{source.format(csv=tmp_path / 'csv')}", seed=0)
    assert "\n" not in str(refused.value)
    assert str(refused.value).startswith('workload.dataset = "hf:')


def dealt_by(flower: Flower, found: Dataset) -> list[Any]:
    of = found.train
    return partition(flower, Dealt(of.labels, 62, 3, of.owners), seed=1)


def test_partitioners_of_flower_deal_examples_out(tmp_path: Path) -> None:
    found = load_dataset(f"hf:{as_saved(tmp_path / 'femnist')}", seed=0)
    labels, owners = found.train.labels, found.train.owners
    assert owners is not None
    with pytest.warns(UserWarning, match=r"Classes: .* will NOT be used"):
        skewed = dealt_by(Flower("PathologicalPartitioner", {"num_classes_per_partition": 2}), found)
    assert all(len(set(labels[rows])) <= 2 for rows in skewed)
    natural = dealt_by(Flower("NaturalIdPartitioner", {"partition_by": "owner"}), found)
    assert sorted({*owners[rows]} for rows in natural) == sorted({writer} for writer in WRITERS)
    assert sum(map(len, dealt_by(Flower("IidPartitioner"), found))) == len(labels)
    with pytest.raises(ConfigError, match=r'^workload.partition.name = "Pathological": is no partitioner of flwr_data'):
        dealt_by(Flower("Pathological"), found)
    with pytest.raises(
        ConfigError, match=r"^workload.partition.options: TypeError: .* unexpected keyword argument 'alpa'"
    ):
        dealt_by(Flower("IidPartitioner", {"alpa": 1}), found)
