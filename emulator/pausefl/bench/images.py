"""Random images for measuring the time of training, so that no data set needs to be fetched."""

import numpy as np

from pausefl_client.data.datasets import Dataset, Examples
from pausefl_proto.draws import generator

CLASSES = 10


def noise_images(seed: int) -> Dataset:
    """15,000 training images of 28 x 28 random pixels, and 100 each for validation and test."""
    return Dataset(
        name="noise",
        train=random_images(seed, "train", 15_000),
        validation=random_images(seed, "validation", 100),
        test=random_images(seed, "test", 100),
        classes=CLASSES,
    )


def random_images(seed: int, split: str, n: int, shape: tuple[int, ...] = (1, 28, 28)) -> Examples:
    """`n` images of random pixels, (n, channels, height, width) uint8, with random labels."""
    rng = generator(seed, "bench images", split)
    return Examples(rng.integers(0, 256, (n, *shape), np.uint8), rng.integers(0, CLASSES, n))
