"""The bytes between clients and server in a private run, read off the wire."""

import json
import subprocess
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from pausefl.experiment.experiment import load_experiment
from pausefl.runtime.client.plan import client_plan
from pausefl.runtime.client.process import run_client_process
from pausefl.runtime.forks import forked_client
from pausefl_client.privacy.mechanism import NumpyLaplace
from pausefl_client.training.synthetic import SyntheticTrainer
from pausefl_proto.draws import generator
from pausefl_proto.wire import Vector
from rigs.command import PAUSEFL, summary_of, synthetic
from rigs.wiretap import Wiretap

pytestmark = pytest.mark.end_to_end

ROUNDS, CLIENTS, D = 6, 3, 5000
CLIP = 3e-5
"""A thirtieth of an update's values, so an update that is not clipped is conspicuous."""
# Every field of every message that may leave a client: the noised update, and the fields that the report discloses.
FIELDS = {
    "hello": ["protocol_version", "client_id", "n_examples", "agreement"],
    "hello.manifest.tensors": ["name", "shape", "dtype"],
    "hello.ledger": ["schedule", "released", "epsilon_spent"],
    "hello.ledger.at_work": ["round", "attempt"],
    "result": ["round", "attempt", "status", "reason", "resent"],
    "result.release": ["participation", "epsilon", "epsilon_spent"],
    "result.update": ["size_bytes", "frames", "digest"],
    "result.timing": ["download_s", "injected_down_s", "queue_s", "train_s", "privatise_s", "injected_up_s"],
    "result.host": ["loop_lag_s", "timer_overshoot_s", "steal_share", "compute_share"],
    "frame": ["index"],
    "pong": ["nonce"],
}
ALLOWED = {f"{message}.{field}" for message, fields in FIELDS.items() for field in fields} | {"checksum"}


def play(tmp_path: Path, wiretap: Wiretap, unit: str, **privacy: object) -> Any:
    """Play a run with the tap between its server and its clients, forked as in any run; returns the tap."""
    keys = {
        "experiment.seed": 1,
        "selection.policy": "all",
        "privacy": {"epsilon_budget": 200.0, "clip": CLIP, "unit": unit, **privacy},
        "workload.model_bytes": 4 * D,
        "metrics.enabled": False,
    }
    config = synthetic(tmp_path, ROUNDS, CLIENTS, CLIENTS, more=keys)
    serve = [*PAUSEFL, "server", str(config), "--run-dir", str(tmp_path / "run")]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        ready = next(event for event in map(json.loads, server.stdout) if event["kind"] == "ready")
        drain = threading.Thread(target=server.stdout.read)
        drain.start()
        wiretap.upstream = f"127.0.0.1:{ready['port']}"
        address = f"127.0.0.1:{wiretap.port}"
        plan = client_plan(load_experiment(str(config)))
        clients = [
            forked_client(client_id, run_client_process, plan, [client_id], address, tmp_path, needs_torch=False)
            for client_id in (f"client-{k:03}" for k in range(CLIENTS))
        ]
        for client in clients:
            client.start()
        for client in clients:
            client.join(60)
        assert [client.exitcode for client in clients] == [0] * CLIENTS
        assert server.wait(60) == 0
        drain.join()
    return wiretap


def bare(client_id: str, round_: int) -> Vector:
    """The update of a client in a round, before it is clipped."""
    return SyntheticTrainer(D, seed=1, client_id=client_id).train(np.zeros(D, np.float32), round=round_).update


def clipped(update: Vector, unit: str) -> npt.NDArray[np.float64]:
    """The clipped update, computed here independently of the code under test."""
    values: npt.NDArray[np.float64] = update.astype(np.float64)
    if unit == "coordinate":
        return np.asarray(np.minimum(np.maximum(values, -CLIP / 2), CLIP / 2))
    return np.asarray(values / max(1.0, float(np.abs(values).sum()) / CLIP))


def scale(unit: str, epsilon: float) -> float:
    """The scale of the noise on every coordinate."""
    return {"coordinate": CLIP, "vector": 2 * CLIP}[unit] / epsilon


def updates(wiretap: Wiretap) -> list[tuple[str, Any, Vector]]:
    left = [(c, r, np.frombuffer(data, "<f4")) for c, results in wiretap.updates().items() for r, data in results]
    assert len(left) == ROUNDS * CLIENTS
    return left


def fields(message: Any, prefix: str = "") -> set[str]:
    found = set()
    for descriptor, value in message.ListFields():
        name = f"{prefix}{descriptor.name}"
        is_map = descriptor.message_type is not None and descriptor.message_type.GetOptions().map_entry
        if descriptor.type != descriptor.TYPE_MESSAGE or is_map:
            found.add(name)
            continue
        for part in value if descriptor.is_repeated else [value]:
            found |= fields(part, f"{name}.")
    return found


Tapped = tuple[str, Wiretap, Path]
"""A unit, what crossed in a run in this unit, and the run's directory."""


@pytest.fixture(scope="module", params=["coordinate", "vector"])
def tapped(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tapped:
    folder, wiretap = tmp_path_factory.mktemp("tapped"), Wiretap()
    with closing(wiretap):
        return request.param, play(folder, wiretap, request.param), folder / "run"


def test_every_value_that_crosses_is_clipped_and_noised_at_the_charged_epsilon(tapped: Tapped) -> None:
    unit, wiretap, _ = tapped
    noise, raw = [], []
    for client_id, result, vector in updates(wiretap):
        update = bare(client_id, result.round)
        expected = clipped(update, unit)
        assert vector.shape == (D,)
        # In float32, about one Laplace draw in ten million rounds to nothing, so three in one upload never do.
        assert np.count_nonzero(vector == expected.astype(np.float32)) <= 2
        raw.append(update.tobytes())
        noise.append((vector.astype(np.float64) - expected) / scale(unit, result.release.epsilon))
    # Eighteen releases of 5,000 coordinates; a right mechanism fails here once in 10,000 runs.
    assert stats.kstest(np.concatenate(noise), stats.laplace.cdf).pvalue > 1e-4
    # A sum of n absolute values of Laplace(1) follows Gamma(n): this detects an ε that is 4 % off.
    sizes = np.abs(np.concatenate(noise))
    assert sizes.max() < np.log(sizes.size / 1e-6)
    assert stats.gamma.ppf(5e-5, sizes.size) < sizes.sum() < stats.gamma.isf(5e-5, sizes.size)
    assert np.unique([n[0] for n in noise]).size == len(noise)
    # No update, and none of the 16-byte samples of it, appears in what clients sent.
    sent = b"".join(m.SerializeToString() + data for stream in wiretap.streams for m, data in stream.up)
    assert not any(update[i : i + 16] in sent for update in raw for i in range(0, len(update), 1600))


def test_nothing_but_what_is_listed_leaves_a_client(tapped: Tapped) -> None:
    _, wiretap, run_dir = tapped
    sent = set().union(*(fields(message) for stream in wiretap.streams for message, _ in stream.up))
    assert sent - ALLOWED == set(), "name it in docs/privacy.md and DISCLOSURES of the report before it is allowed here"
    assert {"result.update.digest", "result.release.epsilon", "hello.n_examples"} <= sent
    summary = summary_of(run_dir)
    assert (summary["private"], summary["disclosed"]) == (True, ["n_examples", "device_times", "host_load", "answers"])


def test_a_reproducible_run_can_be_undone_and_says_so(tmp_path: Path, wiretap: Wiretap) -> None:
    """The seed is enough to subtract the noise, so such a run is marked as not private."""
    client_id, result, vector = updates(play(tmp_path, wiretap, "coordinate", reproducible_noise=True))[0]
    source = NumpyLaplace(generator(1, "noise", client_id, result.round, result.attempt))
    noise = source.laplace(np.zeros(D), scale("coordinate", result.release.epsilon))
    assert np.abs(vector - noise - clipped(bare(client_id, result.round), "coordinate")).max() < 1e-9
    summary = summary_of(tmp_path / "run")
    assert (summary["private"], summary["noise"]) == (False, "reproducible")
