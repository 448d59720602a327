"""An example of your own data set and model: breast cancer, malignant or benign, from 30 measured features.

Run it: pausefl run examples/model_and_data/experiment.toml
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import nn

from pausefl_client.data.datasets import Dataset, Examples

FILE = Path(__file__).with_name("breast_cancer.csv.gz")
ENDS = (100, 200)
"""The rows at which the validation examples and the test examples end. All rows after them are for training."""


def diagnoses(seed: int) -> Dataset:
    """All 569 examples, split by the seed, and standardised by the training examples' mean and standard deviation."""
    table = np.loadtxt(FILE, delimiter=",", skiprows=1)
    table = table[np.random.default_rng(seed).permutation(len(table))]
    features, labels = table[:, :-1], table[:, -1].astype(np.int64)
    seen = features[ENDS[-1] :]
    inputs = ((features - seen.mean(axis=0)) / seen.std(axis=0)).astype(np.float32)
    every = Examples(inputs, labels)
    validation, test, training = (every.take(rows) for rows in np.split(np.arange(len(every)), ENDS))
    return Dataset("breast-cancer", training, validation, test, classes=2)


def small_network(input_shape: Sequence[int], outputs: int) -> nn.Module:
    """A network with one hidden layer. `input_shape` is (30,), the shape of one input; `outputs` is the class count."""
    return nn.Sequential(nn.Linear(input_shape[0], 16), nn.ReLU(), nn.Linear(16, outputs))
