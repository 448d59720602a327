"""Actors: order of messages, back pressure, and no caller left waiting."""

import asyncio
from typing import Any

import pytest

from pausefl_server.actor import Actor, ActorStopped


class Recorder(Actor[Any]):
    def __init__(self, capacity: int = 64) -> None:
        super().__init__("recorder", capacity)
        self.seen: list[Any] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.events: list[str] = []

    async def on_stop(self) -> None:
        self.events.append("stop")

    async def receive(self, message: Any) -> Any:
        await self.gate.wait()
        if message == "fail":
            raise ValueError("asked to fail")
        self.seen.append(message)
        return message


async def test_messages_are_taken_in_order_and_asks_are_answered_also_after_one_that_fails() -> None:
    async with asyncio.TaskGroup() as group:
        actor = Recorder()
        group.create_task(actor.run())
        for i in range(5):
            await actor.tell(i)
        with pytest.raises(ValueError, match="asked to fail"):
            await actor.ask("fail")
        assert await actor.ask("last") == "last"
        assert actor.seen == [0, 1, 2, 3, 4, "last"]
        actor.stop()
    assert actor.events == ["stop"]


async def test_an_asker_that_is_gone_ends_no_actor() -> None:
    async with asyncio.TaskGroup() as group:
        actor = Recorder()
        actor.gate.clear()
        group.create_task(actor.run())
        for message in ("answered", "fail"):
            asker = asyncio.ensure_future(actor.ask(message))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            asker.cancel()
        actor.gate.set()
        assert (await actor.ask("end"), actor.busy_s) == ("end", 0.0)
        actor.stop()


async def test_a_failing_tell_takes_the_group_down_and_askers_are_told() -> None:
    actor = Recorder()
    actor.gate.clear()
    with pytest.raises(ExceptionGroup) as caught:
        async with asyncio.TaskGroup() as group:
            group.create_task(actor.run())
            await actor.tell("fail")
            asker = asyncio.ensure_future(actor.ask("behind it"))
            await asyncio.sleep(0)
            actor.gate.set()
            with pytest.raises(ActorStopped):
                await asker
    assert caught.group_contains(ValueError)
    with pytest.raises(ActorStopped):
        await actor.tell("too late")
    assert actor.events == ["stop"]


async def test_a_full_mailbox_holds_its_tellers_back_until_there_is_room() -> None:
    async with asyncio.TaskGroup() as group:
        actor = Recorder(capacity=2)
        actor.gate.clear()
        group.create_task(actor.run())
        tellers = [group.create_task(actor.tell(i)) for i in range(6)]
        for _ in range(5):
            await asyncio.sleep(0)
        assert sum(t.done() for t in tellers) == 3  # one being handled, two in the mailbox
        actor.gate.set()
        await asyncio.gather(*tellers)
        assert await actor.ask("end") == "end"
        assert actor.seen == [0, 1, 2, 3, 4, 5, "end"]
        actor.stop()


async def test_an_offer_never_waits() -> None:
    async with asyncio.TaskGroup() as group:
        actor = Recorder(capacity=2)
        assert [actor.offer(i) for i in range(3)] == [True, True, False]
        group.create_task(actor.run())
        assert await actor.ask("last") == "last"
        assert actor.offer("more")
        assert await actor.ask("end") == "end"
        assert actor.seen == [0, 1, "last", "more", "end"]
        actor.stop()
    assert not actor.offer("too late")


async def test_tellers_waiting_for_room_have_it_where_what_was_offered_is_dropped() -> None:
    actor = Recorder(capacity=2)
    assert actor.offer("dropped")
    async with asyncio.TaskGroup() as group:
        asking, telling = group.create_task(actor.ask("asked")), group.create_task(actor.tell("told"))
        await asyncio.sleep(0)
        actor.drop_offered()
        async with asyncio.timeout(20):
            await telling
        group.create_task(actor.run())
        assert [await asyncio.wait_for(asking, 20), await actor.ask("end")] == ["asked", "end"]
        actor.stop()
    assert actor.seen == ["asked", "told", "end"]


async def test_tellers_waiting_for_room_are_freed_when_the_actor_is_cancelled() -> None:
    actor = Recorder(capacity=1)
    actor.gate.clear()
    task = asyncio.ensure_future(actor.run())
    tellers = [asyncio.ensure_future(actor.ask(i)) for i in range(4)]
    for _ in range(5):
        await asyncio.sleep(0)
    task.cancel()
    assert all(isinstance(r, ActorStopped) for r in await asyncio.gather(*tellers, return_exceptions=True))
    assert actor.events == ["stop"]


async def test_room_that_a_cancelled_teller_was_granted_goes_to_the_next() -> None:
    actor = Recorder(capacity=1)
    actor.offer(0)
    cancelled, waiting = (asyncio.ensure_future(actor.tell(i)) for i in (1, 2))
    await asyncio.sleep(0)
    await actor.drain()
    cancelled.cancel()
    await asyncio.wait_for(waiting, 20)
    await actor.drain()
    assert actor.seen == [0, 2]


class Planner(Recorder):
    """An actor whose `work` decides when it handles messages."""

    async def work(self) -> None:
        self.events.append(f"first {await self.pump(20)}, seen {self.seen}")
        await self.drain()
        self.events.append(f"drained, seen {self.seen}")
        self.events.append(f"late {await self.pump(0.01)}")
        self.stop()
        self.events.append(f"stopped {await self.pump()}")


async def test_an_actor_pumps_one_message_drains_the_rest_and_waits_no_longer_than_its_timeout() -> None:
    actor = Planner()
    for i in range(3):
        actor.offer(i)
    await asyncio.wait_for(actor.run(), 20)
    assert actor.events == ["first True, seen [0]", "drained, seen [0, 1, 2]", "late False", "stopped False", "stop"]


async def test_a_drain_handles_nothing_more_once_the_actor_is_stopped() -> None:
    class Quitter(Recorder):
        async def work(self) -> None:
            await self.drain()

        async def receive(self, message: Any) -> Any:
            await super().receive(message)
            self.stop()

    actor = Quitter()
    for i in range(3):
        actor.offer(i)
    await asyncio.wait_for(actor.run(), 20)
    assert actor.seen == [0]


async def test_an_ask_that_is_left_when_the_work_is_done_is_refused() -> None:
    class Idler(Recorder):
        async def work(self) -> None:
            await asyncio.sleep(0)

    actor = Idler()
    asked = asyncio.ensure_future(actor.ask("too late"))
    await asyncio.sleep(0)
    await actor.run()
    with pytest.raises(ActorStopped):
        await asked
