"""Updates in fewer bits: equal bytes for equal vectors, a bounded change of every value, nothing made finite."""

import math
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pausefl.bench.runs import play
from pausefl_client.privacy.ledger import Ledger, ReleaseKey
from pausefl_client.privacy.mechanism import Mechanism, NumpyLaplace, entropy_rng
from pausefl_client.privacy.release import ReleasePrivacy, Releaser
from pausefl_proto.budget import Budget
from pausefl_proto.encoding import ENCODINGS, Encoding, TopShare
from pausefl_proto.errors import DamageError, WireError
from pausefl_proto.wire import MAX_FRAME_BYTES, Assembler, Vector, cut, digest
from pausefl_server.model.norm_bound import NormBound

TOP_SHARES = [("float32", 0.5), ("float16", 0.3), ("int8", 0.01)]
ENCODED = {**ENCODINGS, **{f"top {share:g} of {name}": TopShare(share, ENCODINGS[name]) for name, share in TOP_SHARES}}
NAMES = st.sampled_from(sorted(ENCODED))
ROUNDED = st.sampled_from(sorted(ENCODINGS))
VECTORS = hnp.arrays(np.float32, st.integers(0, 600), elements=st.floats(-60_000, 60_000, width=32))
SMALLEST = 2.0**-25  # half of float16's smallest number


def as_places(places: list[int]) -> bytes:
    """Four indices, and the scale and four values of int8."""
    return np.array(sorted(places), "<u4").tobytes() + np.float32(1).tobytes() + bytes([1, 2, 3, 4])


def sent(vector: Vector, encoding: Encoding, receiver: Encoding | None = None) -> Vector:
    """What the server makes of a vector that travels so."""
    encoded = encoding.encode(vector)
    header, frames = cut(encoded, digest(encoded))
    assembler = Assembler(header, vector.size, receiver or encoding)
    for index, frame in enumerate(frames):
        assembler.add(index, frame)
    return assembler.finish(check_finite=True)


@given(VECTORS, ROUNDED)
def test_no_value_changes_by_more_than_is_said(vector: Vector, name: str) -> None:
    encoding = ENCODINGS[name]
    received = sent(vector, encoding)
    assert received.dtype == np.float32
    assert received.shape == vector.shape
    greatest = float(np.abs(vector).max(initial=0.0))
    smallest = SMALLEST if name == "float16" else 2.0**-120
    assert float(np.abs(received - vector).max(initial=0.0)) <= encoding.step * greatest + smallest


@given(VECTORS, NAMES)
def test_equal_vectors_are_equal_bytes_of_the_size_that_is_said(vector: Vector, name: str) -> None:
    encoding = ENCODED[name]
    first, second = (np.ascontiguousarray(encoding.encode(v)).tobytes() for v in (vector, vector.copy()))
    assert first == second
    assert len(first) == encoding.size_bytes(vector.size)


@given(VECTORS.filter(len), NAMES, st.sampled_from([np.nan, np.inf, -np.inf]), st.integers(0, 2**22 - 1), st.data())
def test_what_is_infinite_is_rejected(vector: Vector, name: str, harm: float, bits: int, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, vector.size - 1))
    vector[place] = harm
    if np.isnan(harm):  # any of the numbers that are none
        vector.view(np.uint32)[place] |= np.uint32(bits | 0x80000000 * (bits & 1))
    with pytest.raises(WireError, match="not finite"):
        sent(vector, ENCODED[name])


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_half_width_values_are_the_nearest_and_stay_as_they_are(name: str) -> None:
    vector = np.random.default_rng(1).laplace(0, 0.01, 3 * MAX_FRAME_BYTES // 4 + 5).astype(np.float32)
    once = sent(vector, ENCODINGS[name])
    assert np.array_equal(sent(once, ENCODINGS[name]), once)
    if name == "float16":
        assert np.array_equal(once, vector.astype(np.float16).astype(np.float32))


def test_values_beyond_float16_become_its_greatest() -> None:
    vector = np.array([1e6, -1e6, 65_504, 65_519, 1.0], np.float32)
    assert sent(vector, ENCODINGS["float16"]).tolist() == [65_504, -65_504, 65_504, 65_504, 1.0]


@given(VECTORS, st.sampled_from([0.01, 0.3, 0.5, 1.0]))
def test_the_greatest_values_arrive_and_the_others_as_zero(vector: Vector, share: float) -> None:
    k = math.ceil(share * vector.size)
    received = sent(vector, TopShare(share, ENCODINGS["float32"]))
    kept = sorted(range(vector.size), key=lambda i: (-abs(vector[i]), i))[:k]
    expected = np.zeros_like(vector)
    expected[kept] = vector[kept]
    assert np.array_equal(received, expected)


@given(st.binary(min_size=24, max_size=24) | st.lists(st.integers(0, 1100), min_size=4, max_size=4).map(as_places))
def test_places_that_cannot_be_are_refused(data: bytes) -> None:
    """Four indices of 1,000 values, which may be none, or the same, or out of order."""
    encoding = TopShare(0.004, ENCODINGS["int8"])
    assert encoding.size_bytes(1000) == 4 * 4 + 8
    places = np.frombuffer(data, "<u4", 4)
    if list(places) == sorted({*places}) and places[-1] < 1000:
        assert set(np.flatnonzero(encoding.decode(data, 1000))) <= {*places.tolist()}
    else:
        with pytest.raises(WireError, match="does not say where its 4 values belong among 1000"):
            encoding.decode(data, 1000)


def test_an_update_in_another_encoding_is_not_taken() -> None:
    with pytest.raises(DamageError, match="announces 20 bytes, the model has 40"):
        sent(np.ones(10, np.float32), ENCODINGS["float16"], ENCODINGS["float32"])


@pytest.mark.parametrize("name", sorted(ENCODED))
def test_a_release_is_repeated_byte_by_byte_and_charged_once(name: str, tmp_path: Path) -> None:
    """After a crash, from the vector that the ledger keeps."""
    mechanism, key, update = Mechanism("vector", 1.0), ReleaseKey("run", 1, 1, "model"), np.ones(600, np.float32)

    def release(*, afresh: bool) -> tuple[bytes, str]:
        with closing(Ledger(tmp_path / "a.db", Budget(10.0, 0.5), unit="vector", client_id="a", data="none")) as ledger:
            releaser = Releaser(ReleasePrivacy(mechanism, ledger, lambda _: NumpyLaplace(entropy_rng())), ENCODED[name])
            released = releaser.release(update, key) if afresh else releaser.recall(key)
            assert released is not None
            assert ledger.released == 1
        assert released.digest == digest(released.vector)
        return np.ascontiguousarray(released.vector).tobytes(), released.digest

    assert release(afresh=True) == release(afresh=False)


@given(st.integers(0, 2**32), NAMES, st.sampled_from([0.1, 1.0, 10.0, 1e6]), st.sampled_from([0.01, 6e-8]))
def test_an_honest_update_is_in_bounds_in_every_encoding(seed: int, name: str, epsilon: float, clip: float) -> None:
    bound, rng = NormBound("coordinate", clip), np.random.default_rng(seed)
    clipped = rng.uniform(-clip / 2, clip / 2, 500)
    noised = (clipped + rng.laplace(0, clip / epsilon, 500)).astype(np.float32)
    encoding = ENCODED[name]
    bound.check(sent(noised, encoding), epsilon, encoding)


def test_fewer_bytes_take_less_time_on_a_narrow_link() -> None:
    """On the virtual clock, where nothing but the link takes time: 40 kB up at 100 kB/s."""

    def latency_s(dtype: str, top_share: float = 1) -> tuple[float, int]:
        overrides: Mapping[str, object] = {
            "experiment.clock": "virtual",
            "experiment.rounds": 3,
            "clients.count": 2,
            "selection.m": 2,
            "workload.model_bytes": 40_000,
            "latency.bandwidth": "{up_bytes_per_s=100_000, burst_bytes=1}",
            "wire.dtype": dtype,
            "wire.top_share": top_share,
        }
        records = play([f"{key}={value}" for key, value in overrides.items()])
        observations = [o for record in records for o in record.observations]
        return observations[-1].timing.injected_up_s, max(o.bytes_up for o in observations)

    (whole_s, whole_bytes), (half_s, half_bytes), (int8_s, int8_bytes) = map(latency_s, ("float32", "bfloat16", "int8"))
    assert whole_s == pytest.approx(0.4, rel=0.01)
    assert half_s == pytest.approx(0.2, rel=0.01)
    assert int8_s == pytest.approx(0.1, rel=0.05)
    assert latency_s("int8", 0.1)[0] == pytest.approx(0.1 * 0.1 + 0.125 * 0.1, rel=0.1)
    assert whole_bytes > 1.9 * half_bytes > 3.6 * int8_bytes
