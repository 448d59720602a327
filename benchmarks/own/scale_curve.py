"""Rounds of ever more clients, of whom as many are chosen: what a round costs for those who are not."""

from collections.abc import Iterator
from typing import Any

from pausefl.bench.scale import played

_COUNTS = (100, 300, 1_000, 3_000, 10_000, 30_000)
_TRAINED = 1_000
_TRAINING = (
    "workload.model=mlp",
    "workload.dataset=pausefl.bench.images:noise_images",
    "evaluation.every=0",
)


def cases(clients: int = _COUNTS[-1]) -> Iterator[dict[str, Any]]:
    """From 100 to `clients`, with a synthetic model of 4 kB; then 1,000 that train an MLP on 28 x 28 images."""
    for count in _COUNTS:
        if count <= clients:
            yield played(count, ["workload.model_bytes=4000"])
    if clients >= _TRAINED:
        yield played(_TRAINED, _TRAINING, ", training")
