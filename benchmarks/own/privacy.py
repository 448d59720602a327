"""Times a release on the client: clipping, noise, and the durable ledger entry with the bytes that it keeps."""

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pausefl_client.privacy.device_noise import DeviceLaplace, secret_generator
from pausefl_client.privacy.ledger import Ledger, ReleaseKey
from pausefl_client.privacy.mechanism import ExactLaplace, LaplaceSource, Mechanism, NumpyLaplace, entropy_rng
from pausefl_proto.budget import Budget
from pausefl_proto.wire import Vector, digest

# Numbers of parameters: the published runs' fully connected net for MNIST, their two CNNs, and a large model.
_SIZES = (25_818, 208_000, 10_000_000)
# OpenDP takes 20 µs a coordinate.
_EXACT_SIZE = 25_818
_MECHANISM = Mechanism("vector", 1.0)


def cases() -> Iterator[dict[str, Any]]:
    """Yields a case per model size with the default sampler, one on a GPU if there is one, and one with OpenDP's."""
    with tempfile.TemporaryDirectory(prefix="pausefl-bench-") as folder:
        for size in _SIZES:
            yield _case(Path(folder) / f"{size}.db", size, _on_processor, "numpy", 40 if size < 1_000_000 else 8)
        if torch.cuda.is_available():
            yield _case(Path(folder) / "cuda.db", _SIZES[-1], _on_cuda, "cuda", 8)
        yield _case(Path(folder) / "exact.db", _EXACT_SIZE, ExactLaplace, "opendp", 4)


def _on_processor() -> LaplaceSource:
    return NumpyLaplace(entropy_rng())


def _on_cuda() -> LaplaceSource:
    return DeviceLaplace(secret_generator(torch.device("cuda")))


def _case(path: Path, size: int, source: Callable[[], LaplaceSource], sampler: str, repeats: int) -> dict[str, Any]:
    update = np.random.default_rng(1).standard_normal(size, np.float32)
    ledger = Ledger(path, Budget(100.0, 0.01), unit="vector", client_id="bench", data="none")
    times_s = np.array([_release_s(update, ledger, source, i) for i in range(repeats + 1)][1:])
    ledger.close()
    clip_s, noise_s, ledger_s = np.median(times_s, axis=0).tolist()
    whole_s = times_s.sum(axis=1)
    return {
        "name": "privacy",
        "case": f"{size} parameters ({4 * size} bytes), {sampler}",
        "median_s": float(np.median(whole_s)),
        "p99_s": float(np.quantile(whole_s, 0.99)),
        "clip_s": clip_s,
        "noise_s": noise_s,
        "ledger_s": ledger_s,
    }


def _release_s(update: Vector, ledger: Ledger, source: Callable[[], LaplaceSource], i: int) -> tuple[float, ...]:
    """The seconds that a release takes to clip, to add noise, and to write the digest and the ledger entry."""
    charge = ledger.next_charge()
    started_s = time.perf_counter()
    _MECHANISM.clip_update(update)
    clipped_s = time.perf_counter()
    noised = _MECHANISM.privatise(update, charge.epsilon, source())
    noised_s = time.perf_counter()
    ledger.record(ReleaseKey("bench", i, 1, ""), charge, digest(noised), noised.data.cast("B"))
    clip_s = clipped_s - started_s
    return clip_s, noised_s - clipped_s - clip_s, time.perf_counter() - noised_s
