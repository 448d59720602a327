"""What a server may say to a client costs it neither its memory nor its process."""

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor

import pytest

from pausefl_client.link import Delays
from pausefl_proto.errors import PauseflError
from pausefl_proto.v1 import federation_pb2 as pb
from pausefl_proto.wire import MOST_ROUNDS, PROTOCOL_VERSION
from rigs.session import SessionRig

FLOOD = 20


async def test_a_session_keeps_few_models_of_jobs_it_cannot_answer_yet() -> None:
    with ThreadPoolExecutor(1) as executor:
        rig = SessionRig(executor=executor)
        rig.trainer.gate.clear()
        async with rig.welcomed() as stream:
            for t in range(1, FLOOD + 1):
                stream.give_job(rig.model, round=t)
            for _ in range(20 * FLOOD):
                await asyncio.sleep(0)
            n_unread = stream.unread()
            rig.trainer.gate.set()
            assert [(await stream.upload())[0].round for _ in range(FLOOD)] == list(range(1, FLOOD + 1))
            assert n_unread > FLOOD / 2


async def test_a_name_of_a_run_that_would_fill_the_ledger_is_not_taken() -> None:
    rig = SessionRig()
    async with rig.running() as session:
        for after_s in (0.0, 100.0):
            stream = await rig.server.accept()
            await stream.heard()
            rig.clock.advance(after_s)
            stream.say(welcome=pb.Welcome(protocol_version=PROTOCOL_VERSION, run_id="run" * 101))
        with pytest.raises(PauseflError, match="cannot be reached: its name of the run has 303 characters"):
            await session


@pytest.mark.parametrize("round_", [0, MOST_ROUNDS + 1, 2**32 - 1])
async def test_a_round_that_no_run_reaches_is_refused_before_anything_is_drawn(round_: int) -> None:
    drawn: list[int] = []

    def draw(round: int) -> Delays:
        drawn.append(round)
        return Delays()

    rig = SessionRig(delays=draw)
    async with rig.welcomed() as stream:
        refusal = await stream.refusal(rig.model, round_)
    assert (refusal.status, refusal.reason) == (pb.STATUS_FAILED, f"round {round_}: must be from 1 to 1000000")
    assert not drawn
    assert not rig.trainer.rounds


async def test_a_reason_that_is_no_unicode_is_told_as_far_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "pausefl.client")  # processes of pytest-xdist cannot send such a text
    rig = SessionRig()
    rig.trainer.fails_in = {1: ValueError("bad \udcff byte")}
    async with rig.welcomed() as stream:
        assert "bad ? byte" in (await stream.refusal(rig.model)).reason


async def test_a_session_whose_worker_is_dead_does_not_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would answer pings, and no job ever again."""

    async def write(_: bytes) -> None:
        raise RuntimeError("cannot be written")

    rig = SessionRig()
    with pytest.raises(RuntimeError, match="cannot be written"):
        async with rig.running() as task:
            stream = await rig.server.welcome()
            monkeypatch.setattr(stream, "write", write)
            stream.give_job(rig.model, round=1)
            await asyncio.wait_for(task, 20)


async def test_a_session_that_cannot_write_comes_back_on_a_fresh_stream() -> None:
    """Also where reading says nothing of it."""
    rig = SessionRig()
    async with rig.welcomed() as stream:
        stream.writes_until_break = 0
        stream.give_job(rig.model, round=1)
        await rig.server.welcome()
