"""Answers of several frames on their way to the server: begun again, out of place, broken off, checked for long."""

import asyncio
import gc

import pytest

from pausefl_proto.v1 import federation_pb2 as pb
from pausefl_proto.wire import MAX_FRAME_BYTES, Assembler, Vector, pack, unpack
from pausefl_server.connections.client_actor import ClientActor
from pausefl_server.release_checks import Release
from pausefl_server.rounds.messages import Withdraw
from rigs.client_actor import ClientActorRig, upload, vector

BIG = MAX_FRAME_BYTES // 4 + 100


@pytest.mark.parametrize("frames", [[2], [0, 1], [1, 1]])
async def test_frames_out_of_place_are_asked_for_again_once(frames: list[int]) -> None:
    rig = ClientActorRig(2 * BIG)
    sound = upload(vector(2 * BIG))
    assert len(sound) == 3
    async with rig.at_work():
        rig.stream.give(sound[0])
        for index in frames:
            rig.stream.give(frame(index, sound[min(index, 2)]))
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
        for data in (sound[0], *sound) if again else (*sound, frame(3, sound[2])):
            rig.stream.give(data)
        await rig.updated()
        await rig.accepts_the_next_job()
    assert rig.coordinator.told.empty()


def frame(index: int, of: bytes) -> bytes:
    """A frame of this index with the payload of another message."""
    return pack(pb.ClientMessage(frame=pb.Frame(index=index)), unpack(of)[1])


async def test_the_round_trip_runs_on_while_an_answer_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that breaks meanwhile leaves the job, and when it was first handed over, to the next one."""
    rig, begun, may_end = ClientActorRig(BIG), asyncio.Event(), asyncio.Event()

    async def check_slowly(_: ClientActor, frames: Assembler, release: Release) -> Vector:
        begun.set()
        await may_end.wait()
        return frames.finish(check_finite=True)

    monkeypatch.setattr(ClientActor, "_check", check_slowly)
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
            rig.actor.offer(Withdraw(t, 1))
        await rig.dispatch(round=5)
        rig.stream.give(upload(vector(BIG), round=5)[0])
        rig.stream.give(upload(vector(BIG), attempt=0)[0])  # once it is rejected, all before it has been read
        assert (await rig.refused()).attempt == 0
        assert not [each for each in gc.get_objects() if type(each) is Assembler and id(each) not in known]
