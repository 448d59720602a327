"""A client's stream at the server: it breaks, reads nothing, has many frames or floods; and its rest afterwards."""

import asyncio
import gc
import hashlib
import struct
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from fuzz.http2 import DATA, END_STREAM, HEADERS, PING, SETTINGS, call, frame, message, opening
from pausefl_proto.errors import DamageError, TryLaterError
from pausefl_proto.v1 import federation_pb2 as pb
from pausefl_proto.wire import MAX_FRAME_BYTES, SERVICE, Assembler, Vector, pack, unpack
from pausefl_server.connections import client_actor
from pausefl_server.connections.peer_limits import AbuseError, ClientRateLimit
from pausefl_server.connections.stream_handler import ClientStreamHandler, PeerIdentity
from pausefl_server.connections.transport import GrpcStreamToClient
from pausefl_server.records import Ping
from pausefl_server.rounds.admission import Admission
from pausefl_server.rounds.messages import Lost, Register
from pausefl_server.selection.policies.baselines import All
from rigs.client_actor import ClientActorRig, upload, vector
from rigs.clock import Clock
from rigs.coordinator import MakeRig
from rigs.federation import SIZE, answer_of, clients, federation, hello, log_of, raw_stream, take_a_job
from rigs.one_job import ENDPOINTS, OneJob, listening, stream_handler

PONG = pb.ClientMessage(pong=pb.Pong(nonce=9)).SerializeToString()


class BreakingContext:
    """A gRPC context whose core fails a read or a write, as it does when a stream ends at that moment."""

    def __init__(self, given: bytes, breaks_at: str) -> None:
        self._given, self._breaks_at = given, breaks_at

    async def read(self) -> bytes:
        self._break("read")
        return self._given

    async def write(self, message: bytes) -> None:
        self._break("write")

    def _break(self, what: str) -> None:
        if what == self._breaks_at:
            raise grpc.aio.InternalError('Failed "execute_batch": (SendMessageOperation,)')


@pytest.mark.parametrize(("given", "breaks_at"), [(b"", "read"), (b"\xff", "write"), (hello("client"), "write")])
async def test_a_stream_that_breaks_ends_its_coroutine_in_silence(given: bytes, breaks_at: str) -> None:
    async with stream_handler() as handler:
        stream = GrpcStreamToClient(BreakingContext(given, breaks_at))  # type: ignore[arg-type]  # a stand-in
        await handler.handle(stream, PeerIdentity("peer"))


class SilentStream:
    """A client's stream that says hello, accepts `takes` messages, and `closes` once a second one is written."""

    def __init__(self, takes: int, *, closes: bool = True) -> None:
        self.taken: list[pb.ServerMessage] = []
        self._takes, self._closes = takes, closes
        self.says = [hello("client")]
        self.second = asyncio.Event()

    async def read(self) -> bytes | None:
        if self.says:
            return self.says.pop()
        await (self.second if self._closes else asyncio.Event()).wait()
        return None

    async def write(self, message: bytes) -> None:
        self.taken.append(pb.ServerMessage.FromString(unpack(message)[0]))
        if len(self.taken) == 2:
            self.second.set()
        if len(self.taken) > self._takes:
            await asyncio.Event().wait()


async def test_nothing_is_read_from_a_peer_that_can_be_none_of_the_run() -> None:
    endpoints = replace(ENDPOINTS, admission=Admission(tokens={"a": b""}), hello_timeout_s=60.0)
    stream = SilentStream(takes=9)
    async with stream_handler(None, endpoints) as handler, asyncio.timeout(20):  # shorter than the wait for a hello
        await handler.handle(stream, PeerIdentity("peer", token="a guess"))
    (answer,) = stream.taken
    assert (answer.goodbye.final, "one of the run's" in answer.goodbye.reason) == (True, True)
    assert stream.says == [hello("client")], "it was not read"


async def test_a_client_of_another_run_hears_which_this_is_and_its_ledger_counts_for_nothing() -> None:
    async with stream_handler() as handler:
        stream = SilentStream(takes=9)
        stream.says = [hello("client", run_id="the last one")]
        await handler.handle(stream, PeerIdentity("peer"))
    assert [answer.WhichOneof("kind") for answer in stream.taken] == ["welcome"], "and no job"


async def test_a_client_that_takes_nothing_leaves_few_streams_behind() -> None:
    coordinator = OneJob(SIZE)
    async with stream_handler(coordinator) as handler:
        stuck = []
        for _ in range(4):
            stuck.append(asyncio.create_task(handler.handle(SilentStream(takes=1), PeerIdentity("peer"))))
            await coordinator.lost.get()
        last = SilentStream(takes=1)
        async with asyncio.timeout(20):
            await handler.handle(last, PeerIdentity("peer"))
        (answer,) = last.taken
        assert (answer.goodbye.final, "takes nothing" in answer.goodbye.reason) == (False, True)
        assert not any(task.done() for task in stuck)
        for task in stuck:
            task.cancel()
        await asyncio.gather(*stuck, return_exceptions=True)
        again = SilentStream(takes=9)
        await handler.handle(again, PeerIdentity("peer"))
        assert again.taken[0].WhichOneof("kind") == "welcome"


class Busy(OneJob):
    """Welcomes a client, then has a full mailbox and handles no message until it `goes_on`."""

    goes_on = asyncio.Event()

    async def receive(self, message: Any) -> None:
        await super().receive(message)
        while not self.goes_on.is_set() and self.offer(Ping("client", 0.0)):
            pass
        if isinstance(message, Ping):
            await self.goes_on.wait()


async def test_a_client_is_lost_although_its_stream_is_cancelled_again_while_the_coordinator_is_busy() -> None:
    async with stream_handler(coordinator := Busy(SIZE)) as handler, asyncio.timeout(20):
        serving = asyncio.create_task(handler.handle(stream := SilentStream(takes=9, closes=False), PeerIdentity("p")))
        await stream.second.wait()
        for _ in range(2):  # a read that failed, and gRPC, which cancels the coroutine of a broken stream
            serving.cancel()
            await asyncio.sleep(0)
        coordinator.goes_on.set()
        assert (await coordinator.lost.get()).reason == "its connection broke"


class LockingOut(OneJob):
    """Welcomes a client after the admission has changed since its hello."""

    handler: ClientStreamHandler

    async def receive(self, message: Any) -> None:
        if isinstance(message, Register):
            self.handler.readmit(Admission(ids=frozenset()))
        await super().receive(message)


async def test_a_client_that_is_locked_out_while_it_is_registered_does_not_stay() -> None:
    async with stream_handler(coordinator := LockingOut(SIZE)) as handler, asyncio.timeout(20):
        coordinator.handler = handler
        await handler.handle(SilentStream(takes=9, closes=False), PeerIdentity("peer"))
    lost = await coordinator.lost.get()
    assert (lost.reason, lost.may_return) == ("is admitted no longer", False)


async def test_a_client_that_takes_nothing_can_be_locked_out_and_the_file_change_again_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pausefl_server.connections.stream_handler._GOODBYE_WITHIN_S", 0.1)
    async with stream_handler(coordinator := OneJob(SIZE)) as handler, asyncio.timeout(20):
        stuck = SilentStream(takes=1, closes=False)
        serving = asyncio.create_task(handler.handle(stuck, PeerIdentity("peer")))
        await stuck.second.wait()
        for _ in range(5):
            handler.readmit(Admission(ids=frozenset()))
            await asyncio.sleep(0)
        assert (await coordinator.lost.get()).reason == "is admitted no longer"
        serving.cancel()


@pytest.mark.parametrize("method", ["Join", "Offer"])
@pytest.mark.parametrize(("connections", "kept"), [(1, 16), (64, 32)])
async def test_goodbyes_and_offers_that_nobody_takes_are_few(connections: int, kept: int, method: str) -> None:
    """A peer may set its flow-control windows to 0. gRPC then keeps streams with unsent messages, even cancelled ones.

    Such a stream keeps its connection, and strangers must not occupy all 64 spare connections.
    """
    opened = 64
    ended: asyncio.Queue[int] = asyncio.Queue()
    async with listening() as port, asyncio.timeout(20):
        peers = [await asyncio.open_connection("127.0.0.1", port) for _ in range(connections)]
        readers = [asyncio.create_task(note_ends(*peer, ended)) for peer in peers]
        try:
            for _, writer in peers:
                writer.write(opening(struct.pack(">HI", 4, 0)))
                for stream in range(1, 2 * opened // connections, 2):
                    writer.write(call(stream, f"/{SERVICE}/{method}") + message(stream, b"no hello"))
            for _ in range(opened - kept):
                await ended.get()
        finally:
            for reader, (_, writer) in zip(readers, peers, strict=True):
                reader.cancel()
                writer.transport.abort()
            await asyncio.gather(*readers, return_exceptions=True)


async def test_a_connection_may_have_a_stream_for_each_client_and_sixteen_more() -> None:
    async with listening(most_clients=4) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(opening())
        head = await reader.readexactly(9)
        settings = dict(struct.iter_unpack(">HI", await reader.readexactly(int.from_bytes(head[:3]))))
        writer.close()
    assert (head[3], settings[MAX_CONCURRENT_STREAMS]) == (SETTINGS, 4 + 16)


async def note_ends(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ended: asyncio.Queue[int]) -> None:
    """Put the id of each stream that the server ends into `ended`. Assert that the server sends no data."""
    while True:
        head = await reader.readexactly(9)
        kind, flags = head[3], head[4]
        payload = await reader.readexactly(int.from_bytes(head[:3]))
        if kind == HEADERS and flags & END_STREAM:
            ended.put_nowait(int.from_bytes(head[5:]))
        if kind == PING and not flags:
            writer.write(frame(PING, 1, 0, payload))
        assert kind != DATA


BIG = MAX_FRAME_BYTES // 4 + 100
MAX_CONCURRENT_STREAMS = 3
"""The number of this setting in HTTP/2."""


@pytest.mark.parametrize("frames", [[2], [0, 1], [1, 1]])
async def test_frames_out_of_place_are_asked_for_again_once(frames: list[int]) -> None:
    rig = ClientActorRig(2 * BIG)
    sound = upload(vector(2 * BIG))
    assert len(sound) == 3
    async with rig.at_work():
        rig.stream.give(sound[0])
        for index in frames:
            rig.stream.give(numbered(index, sound[min(index, 2)]))
        for _ in range(6):  # the job's three messages, twice
            await rig.stream.heard_bytes()
        for data in sound:
            rig.stream.give(data)
        await rig.updated()
    assert rig.coordinator.told.empty()
    assert rig.stream.is_silent()


@pytest.mark.parametrize("again", [False, True])
async def test_a_frame_too_many_and_an_update_begun_again_count_once(again: bool) -> None:
    rig = ClientActorRig(2 * BIG)
    sound = upload(vector(2 * BIG))
    async with rig.at_work():
        for data in (sound[0], *sound) if again else (*sound, numbered(3, sound[2])):
            rig.stream.give(data)
        await rig.updated()
        await rig.accepts_the_next_job()
    assert rig.coordinator.told.empty()


def numbered(index: int, of: bytes) -> bytes:
    """A frame with this index and the payload of another message."""
    return pack(pb.ClientMessage(frame=pb.Frame(index=index)), unpack(of)[1])


async def test_the_round_trip_runs_on_while_an_answer_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the stream breaks meanwhile, the next stream takes over the job and the time of its first hand-over."""
    rig, begun, may_end = ClientActorRig(BIG), asyncio.Event(), asyncio.Event()

    async def check_slowly(quick: bool, checked: object, frames: Assembler, *_: object) -> Vector:
        begun.set()
        await may_end.wait()
        return frames.finish(check_finite=True)

    monkeypatch.setattr(client_actor, "off_loop", check_slowly)
    async with rig.running():
        handed_over_s = rig.clock()
        await rig.dispatch()
        rig.answer()
        await begun.wait()
        assert rig.actor.handed_over_s == handed_over_s
        may_end.set()
        await rig.updated()
        await rig.accepts_the_next_job()


async def test_updates_that_were_begun_and_left_hold_no_memory() -> None:
    # isinstance would ask lazy modules for their class
    of_other_tests = [each for each in gc.get_objects() if type(each) is Assembler]
    known = {*map(id, of_other_tests)}
    async with ClientActorRig(BIG).running() as rig:
        for t in range(1, 5):
            await rig.dispatch(round=t)
            rig.stream.give(upload(vector(BIG), round=t)[0])
            rig.actor.offer(pb.Withdraw(round=t, attempt=1))
        await rig.dispatch(round=5)
        rig.stream.give(upload(vector(BIG), round=5)[0])
        rig.stream.give(upload(vector(BIG), attempt=0)[0])  # once it is rejected, all before it has been read
        assert (await rig.refused()).attempt == 0
        assert not [each for each in gc.get_objects() if type(each) is Assembler and id(each) not in known]


@pytest.mark.parametrize("breaks", [0, 4])
async def test_a_client_that_may_not_return_or_keeps_breaking_is_not_waited_for(rig: MakeRig, breaks: int) -> None:
    async with rig(rounds=1, round_timeout_s=60.0, rejoin_timeout_s=60.0).playing("a") as r:
        b = await r.join("b", manual=True)
        for _ in range(breaks):
            await b.next_job()
            await r.lose(b)
            b = await r.join("b", manual=True)
        await b.next_job()
        b.stop()
        await r.coordinator.tell(Lost(b, "once too often", may_return=breaks > 0))
    (miss,) = r.store.rounds()[0].misses
    assert (miss.client_id, miss.kind) == ("b", "lost")


@pytest.mark.parametrize("way", ["floods", "says goodbye"])
async def test_a_round_goes_on_without_a_client_that(way: str, tmp_path: Path) -> None:
    """The run waits neither for the round's timeout nor for the client's return."""
    patience = {"round_timeout_s": 60.0, "rejoin_timeout_s": 60.0, "connect_timeout_s": 20.0}
    async with federation(tmp_path / "run", All(2), minimum_clients=2, rounds=1, **patience) as run, clients() as some:
        some.start("a", await run.port)
        async with raw_stream(await run.port) as call:
            await take_a_job(call)
            if way == "floods":
                with suppress(grpc.aio.AioRpcError):  # it may be cut off while it writes
                    for _ in range(75):
                        await call.write(PONG)
                    await call.read()
            else:
                await call.write(pb.ClientMessage(goodbye=pb.Goodbye(reason="enough")).SerializeToString())
                await call.read()
        await run.finished()
    (record,) = log_of(tmp_path / "run")
    assert [miss.client_id for miss in record.misses] == ["raw"]


@pytest.mark.parametrize(
    ("messages", "streams", "reason"),
    [((PONG, PONG, None), 100, "sent more messages than it was asked for"), ((b"\xff\xff\xff",), 9, "no message")],
)
async def test_a_fresh_stream_brings_no_fresh_allowance(messages: Any, streams: int, reason: str) -> None:
    rig = ClientActorRig()
    rate_limit = ClientRateLimit(rig.clock)
    with pytest.raises(AbuseError, match=f"{reason}, once too often: rests for 1 s"):
        for _ in range(streams):
            for message in messages:
                rig.stream.give(message)
            with suppress(DamageError):
                await rig.actor_of(rate_limit).listen()


@pytest.mark.parametrize("said", [hello(), hello(run_id="another run"), hello(size=1)], ids=["sound", "run", "model"])
async def test_a_client_that_comes_and_goes_all_the_time_has_to_rest(said: bytes, tmp_path: Path) -> None:
    known = Admission(frozenset({"raw"}), tokens={"raw": hashlib.sha256(b"its own").digest()})
    async with federation(tmp_path / "run", All(2), minimum_clients=2, connect_timeout_s=60.0, admission=known) as run:
        reasons = [""]
        while "rests for" not in reasons[-1] and len(reasons) < 300:
            async with raw_stream(await run.port, "its own") as call:
                await call.write(said)
                reasons.append((await answer_of(call)).goodbye.reason)  # empty for a welcome
    assert 30 < len(reasons) < 300


async def test_a_client_that_sends_too_much_that_is_rejected_rests_longer_each_time() -> None:
    rig = ClientActorRig()
    running = asyncio.ensure_future(rig.coordinator.run())
    rate_limit = ClientRateLimit(rig.clock)
    for rest_s in (1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300):
        for _ in range(9):
            rig.answer()
        with pytest.raises(AbuseError, match=f"was not asked for now, once too often: rests for {rest_s} s"):
            await rig.actor_of(rate_limit).listen()
        rig.clock.advance(rest_s - 1.0)
        with pytest.raises(TryLaterError):
            rate_limit.check_allowed()
        rig.clock.advance(1.0)
        rate_limit.check_allowed()
    rig.coordinator.stop()
    await running


@pytest.mark.parametrize(("what", "most"), [("unsolicited", 64), ("rejection", 8)])
def test_a_client_may_send_so_much_however_long_it_was_quiet_and_again_after_a_rest(what: str, most: int) -> None:
    clock = Clock()
    count = getattr(ClientRateLimit(clock), f"count_{what}")
    for quiet_s, rest_s in ((1e6, 1), (1.0, 2), (21.9, 4), (44.1, 1)):
        clock.advance(quiet_s)
        for _ in range(most):
            count("garbage")
        with pytest.raises(AbuseError, match=f"rests for {rest_s} s"):
            count("garbage")


@pytest.mark.parametrize(
    ("what", "every_s", "is_forgiven"),
    [("unsolicited", 1.0, True), ("rejection", 5.1, True), ("rejection", 4.9, False)],
)
def test_what_comes_seldom_enough_is_forgiven_for_ever(what: str, every_s: float, is_forgiven: bool) -> None:
    clock = Clock()
    count = getattr(ClientRateLimit(clock), f"count_{what}")
    with nullcontext() if is_forgiven else pytest.raises(AbuseError):
        for _ in range(1000):
            count("garbage")
            clock.advance(every_s)
