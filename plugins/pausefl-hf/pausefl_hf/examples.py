"""Reads examples from the columns of a data set. They are decoded once into the cache, which every process maps."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from typing import Any
from urllib.parse import parse_qsl

import datasets
import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from pausefl_client.data.cache import cached_arrays
from pausefl_client.data.datasets import Dataset, Examples
from pausefl_client.data.published import AG_NEWS_WORDS
from pausefl_client.data.text import hashed_tokens
from pausefl_process.plugins import in_one_line
from pausefl_proto.draws import generator
from pausefl_proto.errors import ConfigError

_OWNERS = (
    "owner",
    "writer_id",
    "client_id",
    "user_id",
    "speaker_id",
    "natural_id",
    "character_id",
    "client",
    "user",
    "device",
)
_LABELS = ("label", "labels", "target", "class", "y")
_OPTIONS = ("input", "label", "owner", "config", "revision")
_INDEX = re.compile(r"|Unnamed: \d+|__index_level_\d+__")  # what pandas makes of its index in files
_TEXTS = ("string", "large_string")  # the latter with pandas 3
_LEAST_EXAMPLES = 3  # one to train on, one for validation, one for testing
Arrays = Mapping[str, npt.NDArray[Any]]


def load_examples(source: str, seed: int) -> Dataset:
    """The data set of a name or a folder, and options after "?": `NAME?label=COLUMN&owner=COLUMN&input=A,B`.

    A tenth of the split "train" is for validation. Without labels in a split "test", another tenth is for testing. The
    splits are the same for every seed. Raises ConfigError if the data set cannot be loaded.
    """
    del seed
    key = f'workload.dataset = "hf:{source}"'
    path, _, query = source.partition("?")
    asked = dict(parse_qsl(query))
    if unknown := sorted(set(asked) - set(_OPTIONS)):
        raise ConfigError(f"{key}: {unknown[0]}: unknown option; must be one of {', '.join(_OPTIONS)}")
    try:
        splits = _splits(path, asked)
        columns = _Columns.of(splits["train"].features, asked)
        prints = [splits[name]._fingerprint for name in sorted(splits)]  # fingerprints of the files' content
        name = f"hf-{hashlib.sha256(repr(['classes', source, columns, *prints]).encode()).hexdigest()[:16]}"
        arrays = cached_arrays(name, lambda: _arrays(splits, columns))
    except ConfigError as error:
        raise ConfigError(f"{key}: {error}") from error
    except Exception as error:  # the library raises errors of many kinds, for networks, files and features
        raise ConfigError(f"{key}: cannot be loaded ({in_one_line(error)})") from error
    train = _examples(arrays, "train")
    test = _examples(arrays, "test") if "test_labels" in arrays else None
    held_out = max(1, len(train) // 10)
    parts = np.split(np.arange(len(train)), [-2 * held_out, -held_out] if test is None else [len(train) - held_out])
    kept, validation, *rest = (train.take(slice(part[0], part[-1] + 1)) for part in parts if part.size)
    return Dataset(path, kept, validation, rest[0] if test is None else test, classes=int(arrays["classes"]))


@dataclass(frozen=True)
class _Columns:
    inputs: tuple[str, ...]
    label: str
    owner: str

    @classmethod
    def of(cls, features: Mapping[str, Any], asked: Mapping[str, str]) -> "_Columns":
        """The columns that the options name. The others are found by their feature or name."""
        owner = asked.get("owner") or next((name for name in _OWNERS if name in features), "")
        is_class = [name for name, feature in features.items() if isinstance(feature, datasets.ClassLabel)]
        named = [name for name in _LABELS if name in features]
        label = asked.get("label") or next((name for name in (*is_class, *named) if name != owner), "")
        if not label:
            raise ConfigError(f"no column of labels; say which: ?label=COLUMN (it has: {', '.join(features)})")
        own = {name: feature for name, feature in features.items() if name not in (label, owner)}
        others = {name: getattr(feature, "dtype", "") for name, feature in own.items() if not _INDEX.fullmatch(name)}
        images = [name for name in others if isinstance(own[name], datasets.Image)]
        texts = [name for name, dtype in others.items() if dtype in _TEXTS]
        inputs = asked["input"].split(",") if "input" in asked else images or texts or [*others]
        rivals = inputs if images else [*texts, *(name for name, dtype in others.items() if dtype.startswith("float"))]
        if missing := [name for name in (*inputs, label, *([owner] if owner else ())) if name not in features]:
            raise ConfigError(f"there is no column {missing[0]} (it has: {', '.join(features)})")
        if "input" not in asked and (images or texts) and len(rivals) > 1:
            raise ConfigError(f"inputs may be {' or '.join(rivals)}; say which: ?input=COLUMN")
        return cls(tuple(inputs), label, owner)


def _splits(path: str, asked: Mapping[str, str]) -> Mapping[str, datasets.Dataset]:
    """The splits "train" and, if there is one, "test"."""
    datasets.disable_progress_bars()  # every process of a run would draw its own
    tqdm.set_lock(RLock())  # killed processes would leave its own lock, of processes, behind
    is_saved = any((Path(path) / file).is_file() for file in ("dataset_dict.json", "state.json"))
    if is_saved:
        found = datasets.load_from_disk(path)
    else:
        found = datasets.load_dataset(path, asked.get("config"), revision=asked.get("revision"))
    splits = found if isinstance(found, dict) else {"train": found}
    if "train" not in splits:
        raise ConfigError(f'it has no split "train" (it has: {", ".join(splits)})')
    return {name: splits[name] for name in ("train", "test") if name in splits}


def _arrays(splits: Mapping[str, datasets.Dataset], columns: _Columns) -> Arrays:
    """The arrays of both splits, without examples that have no label. ConfigError if too few of "train" have one.

    Training examples are in an order that is drawn once for all runs.
    """
    classes = _classes(splits, columns.label)
    found: dict[str, npt.NDArray[Any]] = {"classes": np.array(len(classes))}
    for name, split in splits.items():
        order = generator(0, "hf").permutation(len(split)) if name == "train" else np.arange(len(split))
        own = np.array([classes.get(label, -1) for label in split[columns.label][:]], np.int64)
        order = order[own[order] >= 0]  # the Hub writes -1 where a label is not published
        if name == "train" and len(order) < _LEAST_EXAMPLES:
            raise ConfigError(f"{len(order)} examples of its split train have a label; needs {_LEAST_EXAMPLES}")
        if not order.size:
            continue
        found[f"{name}_labels"] = own[order]
        found[f"{name}_inputs"] = _inputs(split, columns.inputs)[order]
        if columns.owner:
            found[f"{name}_owners"] = np.asarray(split[columns.owner][:])[order]
    return found


def _classes(splits: Mapping[str, datasets.Dataset], column: str) -> dict[Any, int]:
    """The number of each class, by the label that stands for it. ConfigError if labels are no classes."""
    feature = splits["train"].features[column]
    if isinstance(feature, datasets.ClassLabel):
        return {k: k for k in range(feature.num_classes)}
    labels = [label for split in splits.values() for label in split[column][:] if label is not None]
    odd = (label for label in labels if isinstance(label, list | dict) or (type(label) is float and label % 1))
    if (no_class := next(odd, None)) is not None:
        own = "a data set of your own with a task can be of numbers"
        raise ConfigError(f"labels of {column}, such as {no_class}, are no classes; {own}")
    return {label: k for k, label in enumerate(sorted(set(labels)))}


def _inputs(split: datasets.Dataset, names: tuple[str, ...]) -> npt.NDArray[Any]:
    """(n, channels, height, width) of images, in RGB or all grey; (n, words) of texts; (n, ...) float32 of numbers."""
    feature = split.features[names[0]]
    if isinstance(feature, datasets.Image):
        plain = [_plain(image) for image in split[names[0]]]
        mode = "RGB" if any(image.mode == "RGB" for image in plain) else "L"
        images = [np.asarray(image.convert(mode)) for image in plain]
        if len(shapes := {image.shape for image in images}) > 1:
            raise ConfigError(f"images of {names[0]} have {len(shapes)} sizes, and must have one")
        stacked = np.stack(images)
        return stacked[:, None] if stacked.ndim == 3 else np.moveaxis(stacked, 3, 1)
    if getattr(feature, "dtype", "") in _TEXTS:
        return hashed_tokens(split[names[0]][:], AG_NEWS_WORDS)
    numbers = [_numbers(split, name) for name in names]
    return numbers[0] if len(names) == 1 and numbers[0].ndim > 1 else np.stack(numbers, axis=1)


def _numbers(split: datasets.Dataset, name: str) -> npt.NDArray[np.float32]:
    try:
        return np.asarray(split[name][:], np.float32)
    except (TypeError, ValueError) as error:
        no_numbers = f"column {name} holds no numbers of one shape ({in_one_line(error)})"
        raise ConfigError(f"{no_numbers}; name others by input=, or write a data set of your own") from error


def _plain(image: Any) -> Any:
    """The image in grey or in RGB. ConfigError if bytes cannot hold its values: `convert` would cut them off at 255."""
    if image.mode.startswith(("I", "F")):
        raise ConfigError(f"an image has more than 8 bits a channel (mode {image.mode}); store images with 8")
    return image.convert("L" if image.mode in ("1", "L") else "RGB")


def _examples(arrays: Arrays, split: str) -> Examples:
    return Examples(arrays[f"{split}_inputs"], arrays[f"{split}_labels"], arrays.get(f"{split}_owners"))
