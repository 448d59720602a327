"""A data set that is nowhere to be fetched: images of MNIST's size to train on where only the time it takes matters."""

import numpy as np

from pausefl_client.data.datasets import Dataset, Examples
from pausefl_proto.draws import generator

CLASSES = 10


def noise_images(seed: int) -> Dataset:
    """15,000 training images of 28 x 28 random pixels, 100 each to validate and test."""
    return Dataset(
        name="noise",
        train=_images(seed, "train", 15_000),
        validation=_images(seed, "validation", 100),
        test=_images(seed, "test", 100),
        classes=CLASSES,
    )


def _images(seed: int, split: str, n: int) -> Examples:
    rng = generator(seed, "bench images", split)
    return Examples(rng.integers(0, 256, (n, 1, 28, 28), np.uint8), rng.integers(0, CLASSES, n))
