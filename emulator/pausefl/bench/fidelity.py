"""Compares measured latency with drawn delays: error = measured − drawn − the median exchange alone without delays."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pausefl.bench.runs import play
from pausefl_server.records import RoundRecord

_M = 5
_TIME_SCALE = 0.2
# The size of the mlp for images of 28 x 28 pixels.
_MLP_BYTES = 4 * 25_818
_TRAINING = ["workload.model=mlp", "workload.dataset=pausefl.bench.images:noise_images", "evaluation.every=0"]


def cases(clients: int = 30, payload_bytes: int = 4_096, exchanges: int = 630) -> Iterator[dict[str, Any]]:
    """Two cases with a fifth of the published latencies and m = 5: a synthetic model, and the mlp with training."""
    # The first run starts the fork server, which must have torch before any client that trains is forked.
    training = _case(clients, exchanges, _MLP_BYTES, f"{_MLP_BYTES} bytes, training", _TRAINING)
    yield _case(clients, exchanges, payload_bytes, f"{payload_bytes} bytes", [f"workload.model_bytes={payload_bytes}"])
    yield training


def _case(clients: int, exchanges: int, payload_bytes: int, what: str, workload: list[str]) -> dict[str, Any]:
    """Measure one case against an undelayed exchange of as many bytes without training, of one client at a time.

    Undelayed clients of one round would answer at once and wait for each other. Delays spread the answers.
    """
    common = [f"clients.count={clients}", "selection.policy=random"]
    delayed = [*common, f"selection.m={_M}", f"experiment.rounds={exchanges // _M}"]
    delays = ["latency.delay.kind=halves", f"latency.time_scale={_TIME_SCALE}"]
    overheads_s = _overheads_s(play([*delayed, *delays, *workload]))
    alone = [*common, "selection.m=1", f"experiment.rounds={exchanges}", f"workload.model_bytes={payload_bytes}"]
    undelayed_s = float(np.median(_overheads_s(play(alone))))
    error_p50_s, error_p99_s = np.quantile(np.abs(overheads_s - undelayed_s), (0.5, 0.99))
    return {
        "name": "fidelity",
        "case": f"{clients} clients, m = {_M}, {what}, {overheads_s.size} exchanges, time scale {_TIME_SCALE}",
        "median_s": undelayed_s,
        "p99_s": float(np.quantile(overheads_s, 0.99)),
        "error_p50_s": float(error_p50_s),
        "error_p99_s": float(error_p99_s),
    }


def _overheads_s(records: Sequence[RoundRecord]) -> npt.NDArray[np.float64]:
    """Communication minus drawn delay of every exchange after its client's first, which fills caches."""
    exchanges = [o for record in records for o in record.observations]
    first = {o.client_id: o for o in reversed(exchanges)}
    later = (o for o in exchanges if o is not first[o.client_id])
    return np.array([o.timing.communication_s - o.drawn_down_s - o.drawn_up_s for o in later])
