"""Data sets whose examples have owners: from a CSV file, LEAF's JSON, an npz file, or one folder of images per class.

Run it: pausefl run examples/owners/experiment.toml

With partition = "by-client" a client holds the examples of one owner. Only visits.csv is supplied. For the other
formats, put your files beside this one, and set workload.dataset to "owned:leaf", "owned:arrays" or "owned:images".
"""

import csv
import json
from pathlib import Path

import numpy as np

from pausefl_client.data.datasets import Dataset, Examples

HERE = Path(__file__).parent


def table(seed: int) -> Dataset:
    """The data set in visits.csv. It has a column `owner` and a column `label`; all other columns are numbers."""
    with (HERE / "visits.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    features = [name for name in rows[0] if name not in ("owner", "label")]
    inputs = np.array([[float(row[name]) for name in features] for row in rows], np.float32)
    _, labels = np.unique([row["label"] for row in rows], return_inverse=True)
    return divided("visits", Examples(inputs, labels, np.array([row["owner"] for row in rows])), seed)


def leaf(seed: int) -> Dataset:
    """The data set in LEAF's JSON files, in leaf/train and leaf/test. A tenth of leaf/train is for validation."""
    train, test = (leaf_part(HERE / "leaf" / part) for part in ("train", "test"))
    rows = np.random.default_rng(seed).permutation(len(train))
    validation, training = np.split(rows, [len(rows) // 10])
    classes = int(max(train.labels.max(), test.labels.max())) + 1
    return Dataset("leaf", train.take(training), train.take(validation), test, classes)


def leaf_part(folder: Path) -> Examples:
    """The examples of all users in a folder's JSON files. A user is the owner of its examples."""
    files = [json.loads(file.read_text("utf-8")) for file in sorted(folder.glob("*.json"))]
    users = [user for file in files for user in file["user_data"].items()]
    inputs = np.concatenate([np.array(held["x"], np.float32) for _, held in users])
    labels = np.concatenate([np.array(held["y"], np.int64) for _, held in users])
    return Examples(inputs, labels, np.repeat([name for name, _ in users], [len(held["y"]) for _, held in users]))


def arrays(seed: int) -> Dataset:
    """The data set in arrays.npz, with the arrays x, y and owner. Each row is one example."""
    with np.load(HERE / "arrays.npz") as file:
        every = Examples(file["x"].astype(np.float32), file["y"].astype(np.int64), file["owner"].astype(np.str_))
    return divided("arrays", every, seed)


def images(seed: int) -> Dataset:
    """The data set in images/CLASS/OWNER_NUMBER.png: one folder per class, as for torchvision's ImageFolder."""
    from PIL import Image

    files = sorted((HERE / "images").glob("*/*.png"))
    pixels = np.stack([np.asarray(Image.open(file).convert("RGB").resize((32, 32))) for file in files])
    _, labels = np.unique([file.parent.name for file in files], return_inverse=True)
    owners = np.array([file.name.partition("_")[0] for file in files])
    return divided("images", Examples(np.moveaxis(pixels, 3, 1), labels, owners), seed)


def divided(name: str, every: Examples, seed: int) -> Dataset:
    """A data set with a tenth of the examples for validation, a fifth for the test, and the rest for the clients."""
    rows = np.random.default_rng(seed).permutation(len(every))
    validation, test, training = np.split(rows, [len(rows) // 10, 3 * len(rows) // 10])
    classes = int(every.labels.max()) + 1
    return Dataset(name, every.take(training), every.take(validation), every.take(test), classes)
