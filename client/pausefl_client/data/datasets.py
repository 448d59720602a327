"""Data sets: read from their published files, held as arrays, split into training, validation and test examples."""

import gzip
import importlib.resources
import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from pausefl_client.data.cache import data_folder, missing_files, published_arrays
from pausefl_client.data.published import AG_NEWS_TEST_EXAMPLES, PUBLISHED
from pausefl_client.data.tasks import LearningTask
from pausefl_process.global_generators import seeded_generators
from pausefl_process.registry import Registry
from pausefl_proto.draws import generator, stable_hash
from pausefl_proto.errors import ConfigError

Inputs = npt.NDArray[np.uint8] | npt.NDArray[np.float32] | npt.NDArray[np.int32]
TargetArray = npt.NDArray[np.int64] | npt.NDArray[np.float32]

Owners = npt.NDArray[np.int64] | npt.NDArray[np.str_]

_KEY = "workload.dataset"


@dataclass(frozen=True, eq=False)
class Examples:
    """n labelled examples. The arrays may be memory-mapped from the cache, and are then read-only."""

    inputs: Inputs
    """(n, channels, height, width) uint8 images in 0..255, (n, words) int32 tokens, or (n, ...) float32 features."""
    labels: TargetArray
    """(n,) int64 in [0, classes). With a task: (n, tokens) int64, or (n,) or (n, outputs) float32."""
    owners: Owners | None = None
    """(n,) the owner of each example, if known: a person or a device, as a text or a whole number."""

    def __post_init__(self) -> None:
        _check_form("inputs", self.inputs, "uint8", "int32", "float32")
        _check_form("labels", self.labels, "int64", "float32")
        shape = self.inputs.shape
        is_channels_last = len(shape) == 4 and min(shape[1:3]) > 4 and shape[3] in (1, 3, 4)  # as most libraries load
        if self.inputs.dtype == np.uint8 and (len(shape) != 4 or is_channels_last):
            images = "uint8 inputs are images of shape (n, channels, height, width); others must be float32 or int32"
            raise ConfigError(f"{_KEY}: {images}, and these have shape {shape}")
        if len(self.inputs) != len(self.labels):
            raise ConfigError(f"{_KEY}: {len(self.inputs)} inputs, but {len(self.labels)} labels")
        if self.owners is None:
            return
        owners = np.asarray(self.owners)
        if owners.dtype == object and all(isinstance(owner, str) for owner in owners):
            owners = owners.astype(np.str_)  # pandas stores texts as objects
        object.__setattr__(self, "owners", owners)
        if owners.dtype.kind not in "iuU" or len(owners) != len(self.labels):
            raise ConfigError(f"{_KEY}: owners must be {len(self.labels)} whole numbers or texts, one for each example")

    def __len__(self) -> int:
        return len(self.labels)

    def not_finite(self) -> tuple[int, str] | None:
        """The row of the first value that is not finite, and its place in words. None if all values are finite."""
        for what, values in (("inputs", self.inputs), ("labels", self.labels)):
            if values.dtype.kind == "f" and not (finite := np.isfinite(values)).all():
                place = tuple(int(i) for i in np.unravel_index(finite.argmin(), finite.shape))
                return place[0], f"{what}{list(place)} is {values[place]}: must be finite"
        return None

    def take(self, rows: npt.NDArray[np.int64] | slice) -> Self:
        """The given rows: a copy in memory, or for a slice a view, so that memory-mapped arrays stay mapped."""
        owners = None if self.owners is None else self.owners[rows]
        return replace(self, inputs=self.inputs[rows], labels=self.labels[rows], owners=owners)


def are_classes(labels: TargetArray, classes: float = math.inf) -> bool:
    """Whether each example has one class, from 0 to below `classes`, by which it can be counted and dealt out."""
    return labels.ndim == 1 and labels.dtype == np.int64 and bool(((labels >= 0) & (labels < classes)).all())


def _check_form(what: str, array: Any, *types: str) -> None:
    """Raise ConfigError unless `array` is a plain numpy array of one of these types."""
    if type(array) not in (np.ndarray, np.memmap):
        raise ConfigError(f"{_KEY}: {what} must be a numpy array; are a {type(array).__name__}")
    if array.dtype not in types:
        raise ConfigError(f"{_KEY}: {what} must be {' or '.join(types)}; are {array.dtype}")


@dataclass(frozen=True, eq=False)
class Dataset:
    """Examples and a task. The best model is chosen on `validation`, which is held-out training data, not on `test`."""

    name: str
    train: Examples
    validation: Examples
    test: Examples
    classes: int
    """The number of a model's outputs for each prediction. Without a task, the number of classes."""
    task: LearningTask | None = None
    """The learning task. None: classification of whole examples, by cross-entropy."""

    def __post_init__(self) -> None:
        if self.task is None and not are_classes(self.train.labels):
            raise ConfigError(f'{_KEY}: "{self.name}" has no class (0 or more) for each example, so it needs a task')
        for split in ("train", "validation", "test"):
            examples: Examples = getattr(self, split)
            if not len(examples):
                raise ConfigError(f"{_KEY}: {split} has no examples")
            for what in ("inputs", "labels"):
                ours, trains = getattr(examples, what), getattr(self.train, what)
                if (ours.dtype, ours.ndim) != (trains.dtype, trains.ndim):
                    found, form = (f"{each.dtype} with {each.ndim} dimensions" for each in (ours, trains))
                    raise ConfigError(f"{_KEY}: {split} has {what} of {found}; must be {form}, as in train")
            if self.task is None and not (examples.labels.min() >= 0 and examples.labels.max() < self.classes):
                raise ConfigError(
                    f"{_KEY}: {split} has labels from {examples.labels.min()} to {examples.labels.max()}; with"
                    f" classes = {self.classes}, must be from 0 to {self.classes - 1}"
                )

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input: (channels, height, width) for images, (words,) for texts."""
        return self.train.inputs.shape[1:]

    @property
    def has_tokens(self) -> bool:
        """Whether inputs are texts as tokens. Models for numbers do not accept them."""
        return self.train.inputs.dtype == np.int32


def load_dataset(name: str, *, examples: int | None = None, seed: int) -> Dataset:
    """Load the data set of a name in `DATASETS`, whose factory is called as factory(seed) and returns a Dataset.

    The last 10,000 published training examples are `validation` (AG-News: a tenth of them; digits: 297 of its 1,797,
    and 300 are `test`). Without AG-News's train.csv, its test.csv alone is split, equally for every seed. `examples`:
    keep only this number of training examples, drawn by the seed. ConfigError if data are missing or malformed.
    """
    factory = DATASETS.find(name, _KEY)
    with seeded_generators(stable_hash(seed, "dataset", "")):
        dataset = factory(seed)
    if not isinstance(dataset, Dataset):
        raise ConfigError(f'{_KEY} = "{name}": returned {type(dataset).__name__}, not a Dataset')
    if examples is None:
        return dataset
    train = dataset.train
    if not 1 <= examples <= len(train):
        raise ConfigError(f"workload.examples = {examples}: must be from 1 to the {len(train)} training examples")
    return replace(dataset, train=sampled(train, examples, generator(seed, "examples")))


def sampled(examples: Examples, n: int, rng: np.random.Generator) -> Examples:
    """`n` random examples in their order; all of them if there are no more."""
    if n >= len(examples):
        return examples
    return examples.take(np.sort(rng.choice(len(examples), n, replace=False)))  # files are read in order


def prepare_dataset(name: str) -> None:
    """Cache a published data set, once before many clients start; check other names. ConfigError as `load_dataset`."""
    DATASETS.check_name(name, _KEY)
    if name in PUBLISHED:
        published_arrays(name)


def check_is_here(name: str) -> None:
    """Raise ConfigError for an unknown data set, or for one whose files must be downloaded first."""
    DATASETS.check_name(name, _KEY)
    if name in PUBLISHED and (missing := missing_files(name)):
        folder = data_folder() / PUBLISHED[name].folder
        raise ConfigError(f'{_KEY} = "{name}": {missing[0]} is not in {folder}; fetch it with: pausefl data {name}')


def split_note(name: str, test_examples: int) -> str:
    """A note for readers of results on this data set, if its split is not the published one. Otherwise empty."""
    if name == "ag-news" and test_examples == AG_NEWS_TEST_EXAMPLES:
        return "the published test split alone: 5,400 to train on, 600 to validate on and 1,600 to test on"
    return ""


def _load_digits(seed: int) -> Dataset:
    """The embedded data set: 1,797 images of 8 x 8 pixels in 0..16 (source: digits.NOTICE), stretched to 0..255."""
    text = gzip.decompress(importlib.resources.files(__package__).joinpath("digits.csv.gz").read_bytes())
    table = np.array(text.decode().replace("\n", ",").rstrip(",").split(","), np.uint16).reshape(-1, 65)
    table = table[generator(seed, "digits").permutation(len(table))]  # it is sorted by writer
    images = (table[:, :64] * 255 // 16).astype(np.uint8).reshape(-1, 1, 8, 8)
    everything = Examples(images, table[:, 64].astype(np.int64))
    splits = np.split(np.arange(len(table)), [-300 - 297, -300])  # the test's 300, before them validation's
    train, validation, test = map(everything.take, splits)
    return Dataset("digits", train, validation, test, classes=10)


def _load_cached(name: str, seed: int) -> Dataset:  # noqa: ARG001  # the split is the same for every seed
    arrays = published_arrays(name)
    train, test = (
        Examples(arrays[f"{split}_inputs"], arrays[f"{split}_labels"].astype(np.int64)) for split in ("train", "test")
    )
    published = PUBLISHED[name]
    n_held_out = published.held_out or max(1, len(train) // 10)
    if len(train) <= n_held_out:
        raise ConfigError(
            f'{_KEY} = "{name}": has {len(train)} training examples, must be more than the {n_held_out:,} held out'
        )
    kept = len(train) - n_held_out
    return Dataset(name, train.take(slice(kept)), train.take(slice(kept, None)), test, published.classes)


DATASETS = Registry("datasets", {"digits": _load_digits, **{name: partial(_load_cached, name) for name in PUBLISHED}})
"""Data sets by name. Each is called with the seed, and returns a Dataset."""
