"""Times rounds among ever more clients, of which the same number is chosen: what clients cost that are not chosen."""

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
    """Yields 100 to `clients` clients with a synthetic 4 kB model, then 1,000 that train an MLP on 28 x 28 images."""
    for count in _COUNTS:
        if count <= clients:
            yield played(count, ["workload.model_bytes=4000"])
    if clients >= _TRAINED:
        yield played(_TRAINED, _TRAINING, ", training")
