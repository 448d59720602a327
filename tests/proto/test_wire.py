"""Vectors survive the wire, exactly or in fewer bits. Anything damaged is a WireError, never a wrong vector."""

import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pausefl.bench.runs import play
from pausefl_client.privacy.ledger import Ledger, ReleaseKey
from pausefl_client.privacy.mechanism import Mechanism, NumpyLaplace, entropy_rng
from pausefl_client.privacy.release import ReleasePrivacy, Releaser
from pausefl_proto.budget import Budget
from pausefl_proto.encoding import ENCODINGS, Encoding, TopShare
from pausefl_proto.errors import DamageError, WireError
from pausefl_proto.v1 import federation_pb2 as pb
from pausefl_proto.wire import (
    MAX_FRAME_BYTES,
    MAX_MESSAGE_BYTES,
    Assembler,
    Manifest,
    TensorSpec,
    Vector,
    cut,
    decode,
    digest,
    pack,
    pack_job,
    unpack,
)
from pausefl_server.model.norm_bound import NormBound

FRAME = MAX_FRAME_BYTES // 4
SIZES = [0, 1, 2, 31, 32, 4095, 4096, FRAME - 1, FRAME, FRAME + 1, 2 * FRAME - 1, 2 * FRAME, 2 * FRAME + 1, 3 * FRAME]
FLOATS = st.floats(-float(np.float32(1e30)), float(np.float32(1e30)), width=32)


def random_vector(size: int) -> Vector:
    return np.random.default_rng(1).standard_normal(size, np.float32)


def frames_of(vector: Vector) -> tuple[pb.Vector, list[memoryview]]:
    return cut(vector, digest(vector))


def assemble(
    header: pb.Vector,
    frames: Sequence[bytes | memoryview],
    size: int,
    encoding: Encoding = ENCODINGS["float32"],
    *,
    check_finite: bool = True,
) -> Vector:
    """The vector that a receiver assembles from these frames."""
    assembler = Assembler(header, size, encoding)
    for index, frame in enumerate(frames):
        assembler.add(index, memoryview(frame))
    return assembler.finish(check_finite=check_finite)


def through_the_wire(messages: Sequence[bytes], size: int) -> Vector:
    """The model that a client assembles from a job's messages."""
    parts = [unpack(data) for data in messages]
    first, *others = (pb.ServerMessage.FromString(rest) for rest, _ in parts)
    assert [message.frame.index for message in others] == [*range(1, len(parts))]
    return assemble(first.job.model, [payload for _, payload in parts], size)


@pytest.mark.parametrize("size", SIZES)
def test_a_vector_of_any_size_survives_and_cannot_be_changed_by_mistake(size: int) -> None:
    vector = random_vector(size)
    messages = pack_job(1, 1, vector, digest(vector))
    assert all(len(message) <= MAX_MESSAGE_BYTES for message in messages)
    assert len(messages) == max(1, -(-size // FRAME))
    received = through_the_wire(messages, size)
    assert received.tobytes() == vector.tobytes()
    assert (received.flags.writeable, received.flags.aligned) == (False, True)


@given(hnp.arrays(np.float32, st.integers(0, 300), elements=FLOATS))
def test_any_finite_values_survive_bit_by_bit(vector: Vector) -> None:
    received = through_the_wire(pack_job(3, 2, vector, digest(vector)), vector.size)
    assert (received.dtype.name, received.tobytes()) == ("float32", vector.tobytes())


def test_strided_and_big_endian_vectors_travel_as_their_values() -> None:
    values = random_vector(1000)
    strided, swapped = np.repeat(values, 2)[::2], values.astype(">f4")
    for odd in (strided, swapped):
        assert digest(odd) == digest(values)
        header, frames = cut(odd, digest(odd))
        assert assemble(header, frames, 1000).tobytes() == values.tobytes()


def test_frames_are_views_and_nothing_is_copied() -> None:
    vector = random_vector(FRAME + 10)
    _, frames = frames_of(vector)
    assert all(np.shares_memory(np.frombuffer(frame, np.float32), vector) for frame in frames)


@given(st.permutations(range(4)).filter(lambda order: order != [0, 1, 2, 3]))
def test_frames_out_of_order_are_refused(order: list[int]) -> None:
    header, frames = frames_of(random_vector(3 * FRAME + 5))
    assembler = Assembler(header, 3 * FRAME + 5)
    with pytest.raises(WireError, match="was due"):
        for index in order:
            assembler.add(index, frames[index])


@pytest.mark.parametrize(
    ("size", "came", "checksum", "message"),
    [
        *((10, [0], text, "checksum") for text in ("", "0", "not hexadecimal", digest(random_vector(10)).upper())),
        (2 * FRAME, [1, 0], None, "checksum"),
        (3, [0, 0], None, "was due"),
        (FRAME + 3, [0, 1, 0], None, "was due"),
        (FRAME + 5, [], digest(random_vector(0)), "ends after 0 of 2 frames"),  # whose checksum is right
        (FRAME + 5, [0], digest(random_vector(FRAME)), "ends after 1 of 2 frames"),
    ],
)
def test_frames_that_are_not_those_announced_are_refused(
    size: int, came: list[int], checksum: str | None, message: str
) -> None:
    vector = random_vector(size)
    header, frames = cut(vector, digest(vector) if checksum is None else checksum)
    with pytest.raises(WireError, match=message):
        assemble(header, [frames[index] for index in came], size)


@pytest.mark.parametrize("frame", [0, 1])
@pytest.mark.parametrize("change", [-4, -1, 1, 4])
def test_a_frame_of_the_wrong_length_is_refused(frame: int, change: int) -> None:
    header, frames = frames_of(random_vector(FRAME + 50))
    lengths: list[bytes | memoryview] = list(frames)
    lengths[frame] = (bytes(frames[frame]) + b"\0" * 4)[: len(frames[frame]) + change]
    with pytest.raises(WireError, match=f"frame {frame} has"):
        assemble(header, lengths, FRAME + 50)


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), st.sampled_from([0, 1, 25, FRAME, FRAME + 1]))
def test_a_header_that_announces_anything_else_is_refused(size_bytes: int, n_frames: int, size: int) -> None:
    header = pb.Vector(size_bytes=size_bytes, frames=n_frames)
    if (size_bytes, n_frames) != (4 * size, max(1, -(-size // FRAME))):
        with pytest.raises(WireError, match="announces"):
            Assembler(header, size)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e31, -1e31])
@pytest.mark.parametrize("place", [0, -1])
def test_values_that_are_not_finite_or_too_great_are_refused_when_asked(value: float, place: int) -> None:
    vector = random_vector(FRAME + 1)
    vector[place] = value
    header, frames = frames_of(vector)
    with pytest.raises(WireError, match="not finite"):
        assemble(header, frames, vector.size)
    assert assemble(header, frames, vector.size, check_finite=False).tobytes() == vector.tobytes()


SHAPES = st.lists(st.integers(1, 5), max_size=3).map(tuple)
TENSORS = st.lists(st.builds(TensorSpec, st.text(max_size=8), SHAPES), max_size=4)
MANIFESTS = st.builds(lambda tensors, constants: Manifest(tuple(tensors), constants), TENSORS, st.text(max_size=8))


def test_a_control_variate_begins_at_zero_between_the_parameters_and_their_statistics() -> None:
    manifest = Manifest((TensorSpec("w", (2,)),)).with_statistics({"running_mean": (1,)}).with_control()
    whole = manifest.with_no_control(np.array([1, 2, 3], np.float32))
    assert (whole.tolist(), manifest.without_control(whole).tolist()) == ([1, 2, 0, 0, 3], [1, 2, 3])


@given(MANIFESTS)
def test_a_manifest_survives_and_its_size_is_that_of_its_tensors(manifest: Manifest) -> None:
    message = pb.Manifest.FromString(manifest.to_message().SerializeToString())
    assert Manifest.from_message(message) == manifest
    assert manifest.size == sum(int(np.prod(t.shape)) for t in manifest.tensors)


@pytest.mark.parametrize("dtype", ["float64", "float16", "int32", "", "Float32"])
def test_only_float32_travels(dtype: str) -> None:
    message = pb.Manifest(tensors=[pb.Tensor(name="w", shape=[2], dtype=dtype)])
    with pytest.raises(WireError, match="only float32"):
        Manifest.from_message(message)


def test_splitting_gives_views_by_name_in_shape() -> None:
    manifest = Manifest((TensorSpec("w", (2, 3)), TensorSpec("b", (3,)), TensorSpec("s", ())))
    vector = np.arange(10, dtype=np.float32)
    parts = manifest.split(vector)
    assert {name: p.tolist() for name, p in parts.items()} == {"w": [[0, 1, 2], [3, 4, 5]], "b": [6, 7, 8], "s": 9}
    assert all(np.shares_memory(part, vector) for part in parts.values())


@given(st.binary(max_size=300), st.integers(0, 2**32 - 1))
def test_payload_and_message_come_apart_as_they_were_put_together(payload: bytes, round: int) -> None:
    message = pb.ClientMessage(result=pb.Result(round=round, reason="why"))
    rest, found = unpack(pack(message, memoryview(payload)))
    assert (bytes(found), pb.ClientMessage.FromString(rest)) == (payload, message)


@pytest.mark.parametrize("n_bytes", [0, 1, 127, 128, 16_383, 16_384, MAX_FRAME_BYTES])
def test_what_is_packed_is_protobuf_for_everybody_else(n_bytes: int) -> None:
    message = pb.ClientMessage(frame=pb.Frame(index=7))
    known = pb.ClientMessage.FromString(pack(message, memoryview(bytes(n_bytes))))
    assert (known.frame.index, known.payload) == (7, bytes(n_bytes))


def test_what_travels_in_0_1_0_has_its_number_and_type() -> None:
    """Otherwise its peers would misread it without an error. A release adds its new fields to the file."""
    messages = pb.DESCRIPTOR.message_types_by_name.values()
    fields = {f"{m.name}.{f.name} {f.number} {f.type} {f.is_repeated}" for m in messages for f in m.fields}
    fields |= {f"{name} {number}" for name, number in pb.Status.items()}
    assert {*Path(__file__).with_name("fields.txt").read_text("utf-8").splitlines()} <= fields


def test_a_checksum_of_0_is_a_checksum() -> None:
    message = pb.ClientMessage(pong=pb.Pong(nonce=3), checksum=0)
    with pytest.raises(DamageError, match="does not match its checksum"):
        decode(pb.ClientMessage, message.SerializeToString())


def test_a_message_without_payload_is_left_as_it_is() -> None:
    data = pb.ClientMessage(pong=pb.Pong(nonce=3)).SerializeToString()
    rest, payload = unpack(data)
    assert (rest, bytes(payload)) == (data, b"")


@pytest.mark.parametrize(
    "data",
    [
        b"\x7a",
        b"\x7a\x05abc",
        b"\x7a\x80",
        b"\x7a\x80\x80\x80\x80\x80\x80",
        b"\x7a\x80\x80\x80\x80\x80\x00",  # its length takes too many bytes
        b"\x7a\xff\xff\xff\xff\x7f",
        b"\x7a\x80\x01",
    ],
)
def test_a_payload_that_ends_before_its_length_is_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        unpack(data)


@settings(max_examples=150)
@given(st.one_of(st.binary(max_size=200), st.binary(max_size=60).map(lambda tail: b"\x7a" + tail)))
def test_arbitrary_bytes_become_a_message_or_a_known_error(data: bytes) -> None:
    try:
        rest, payload = unpack(data)
        pb.ClientMessage.FromString(rest)
    except (WireError, DecodeError):
        return
    assert len(rest) + len(payload) <= len(data)


@settings(max_examples=150)
@given(st.data())
def test_a_damaged_upload_never_becomes_another_vector(data: st.DataObject) -> None:
    """Overwrite, cut or lengthen the bytes of a whole upload anywhere: header, length, payload."""
    vector = random_vector(20)
    header, frames = frames_of(vector)
    sound = pack(pb.ClientMessage(result=pb.Result(round=1, update=header)), frames[0])
    damaged = bytearray(sound)
    place = data.draw(st.integers(0, len(sound)))
    damaged[place : place + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    try:
        rest, payload = unpack(bytes(damaged))
        message = pb.ClientMessage.FromString(rest)
        received = assemble(message.result.update, [payload], 20)
    except (WireError, DecodeError):
        return
    assert received.tobytes() == vector.tobytes()


TOP_SHARES = [("float32", 0.5), ("float16", 0.3), ("int8", 0.01)]
ENCODED = {**ENCODINGS, **{f"top {share:g} of {name}": TopShare(share, ENCODINGS[name]) for name, share in TOP_SHARES}}
NAMES = st.sampled_from(sorted(ENCODED))
VECTORS = hnp.arrays(np.float32, st.integers(0, 600), elements=st.floats(-60_000, 60_000, width=32))


def as_places(places: list[int]) -> bytes:
    """The bytes of four indices, and of the scale and four values of int8."""
    return np.array(sorted(places), "<u4").tobytes() + np.float32(1).tobytes() + bytes([1, 2, 3, 4])


def sent(vector: Vector, encoding: Encoding, receiver: Encoding | None = None) -> Vector:
    """The vector as the server decodes it."""
    encoded = encoding.encode(vector)
    header, frames = cut(encoded, digest(encoded))
    return assemble(header, frames, vector.size, receiver or encoding)


@given(VECTORS, st.sampled_from(sorted(ENCODINGS)))
def test_no_value_changes_by_more_than_is_said(vector: Vector, name: str) -> None:
    encoding = ENCODINGS[name]
    received = sent(vector, encoding)
    assert (received.dtype.name, received.shape) == ("float32", vector.shape)
    greatest = float(np.abs(vector).max(initial=0.0))
    smallest = 2.0**-25 if name == "float16" else 2.0**-120  # half of float16's smallest number
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
    if np.isnan(harm):  # any bit pattern of NaN
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


def test_bfloat16_rounds_ties_to_even_and_no_nan_to_a_number() -> None:
    ties = np.array([1 + 2**-8, 1 + 3 * 2**-8], np.float32)
    assert sent(ties, ENCODINGS["bfloat16"]).tolist() == [1.0, 1 + 2**-6]
    with pytest.raises(WireError, match="not finite"):
        sent(np.array([0x7FFFFFFF], np.uint32).view(np.float32), ENCODINGS["bfloat16"])  # rounded up, it would be -0


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
    """Four indices into 1,000 values. They may be out of range, repeated or out of order."""
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
    """After a crash, the release is rebuilt from the vector that the ledger keeps."""
    mechanism, key, update = Mechanism("vector", 1.0), ReleaseKey("run", 1, 1, "model"), np.ones(600, np.float32)

    def release(*, afresh: bool) -> tuple[bytes, str]:
        with closing(Ledger(tmp_path / "a.db", Budget(10.0, 0.5), unit="vector", client_id="a", data="none")) as ledger:
            releaser = Releaser(ReleasePrivacy(mechanism, ledger, lambda _: NumpyLaplace(entropy_rng())), ENCODED[name])
            released = releaser.release(update, key) if afresh else releaser.recall(key)
            assert released is not None
            assert ledger.spent.released == 1
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
    """On the virtual clock, only the link takes time. The upload has 40 kB at 100 kB/s."""

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
    assert (whole_s, half_s) == pytest.approx((0.4, 0.2), rel=0.01)
    assert int8_s == pytest.approx(0.1, rel=0.05)
    assert latency_s("int8", 0.1)[0] == pytest.approx(0.1 * 0.1 + 0.125 * 0.1, rel=0.1)
    assert whole_bytes > 1.9 * half_bytes > 3.6 * int8_bytes
