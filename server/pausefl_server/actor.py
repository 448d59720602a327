"""Actors on asyncio: private state, a bounded mailbox, `tell` and `ask`; no caller waits for an actor that has ended.

A supervisor, an `asyncio.TaskGroup`, runs an actor: `group.create_task(actor.run())`. An actor that fails ends its
group. Callers blocked in `tell` or `ask` get `ActorStopped`, however the actor ends.

The mailbox is a deque and two kinds of futures, not an `asyncio.Queue`. `stop` must wake both the waiting actor and
every waiting sender (`Queue.shutdown` needs Python 3.13). `pump` waits with a timeout on one future of its own;
`asyncio.wait_for(queue.get())` would start a timeout context for each message of a round.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from pausefl_proto.errors import PauseflError

Message = TypeVar("Message")


class ActorStopped(PauseflError):
    """The actor ended before it accepted the message or answered it."""


class Actor(ABC, Generic[Message]):
    """Base of all actors. Subclasses handle messages in `receive`, one at a time, in the order they came."""

    def __init__(self, name: str, capacity: int = 64) -> None:
        self.name = name
        self.stopped = False
        self._began_s: float | None = None  # when the current message was taken (time.monotonic)
        self._capacity = capacity
        self._mailbox: deque[tuple[Message, asyncio.Future[Any] | None]] = deque()
        self._idle: asyncio.Future[None] | None = None  # the actor's own wait for a message
        self._waiting_senders: deque[asyncio.Future[None]] = deque()  # until the mailbox has room

    @property
    def busy_s(self) -> float:
        """How long the current message has been handled, in seconds; 0 if there is none. Any thread may read it."""
        began_s = self._began_s
        return 0.0 if began_s is None else time.monotonic() - began_s

    async def tell(self, message: Message) -> None:
        """Hand over a message; waits while the mailbox is full, raises ActorStopped if the actor has ended."""
        await self._put(message, None)

    def offer(self, message: Message) -> bool:
        """Hand over a message if the actor runs and its mailbox has room now; False if the message was dropped."""
        if self.stopped or len(self._mailbox) >= self._capacity:
            return False
        self.post(message)
        return True

    def post(self, message: Message) -> None:
        """Hand over a message even if the mailbox is full, for a sender that may be cancelled while it waits.

        Nothing happens if the actor has ended.
        """
        if not self.stopped:
            self._mailbox.append((message, None))
            _wake(self._idle)

    async def ask(self, message: Message) -> Any:
        """Hand over a message and wait for `receive`'s return value (or its exception)."""
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        await self._put(message, reply)
        return await reply

    def drop_offered(self, is_unwanted: Callable[[Message], bool] = lambda _: True) -> None:
        """Drop the unwanted messages in the mailbox whose senders do not wait for an answer."""
        self._mailbox = deque(e for e in self._mailbox if e[1] is not None or not is_unwanted(e[0]))
        for sender in self._waiting_senders:
            _wake(sender)

    def stop(self) -> None:
        """End the actor after the current message; callers that still wait get ActorStopped."""
        self.stopped = True
        _wake(self._idle)
        for sender in self._waiting_senders:
            _wake(sender)

    async def run(self) -> None:
        """Work until the work is done or the actor is stopped, then refuse the messages left in the mailbox."""
        try:
            await self.work()
        finally:
            self.stop()
            for _, reply in self._mailbox:
                _settle(reply, ActorStopped(f"{self.name} has stopped"))
            self._mailbox.clear()
            await self.on_stop()

    async def work(self) -> None:
        """Handle messages until stopped. An actor with other work overrides this and calls `pump` between its steps."""
        while await self.pump():
            pass

    async def pump(self, timeout_s: float | None = None) -> bool:
        """Wait for a message and handle it; False when none came within `timeout_s` or the actor was stopped."""
        if not self._mailbox and not self.stopped:
            loop = asyncio.get_running_loop()
            self._idle = loop.create_future()
            timer = None if timeout_s is None else loop.call_later(timeout_s, _wake, self._idle)
            try:
                await self._idle
            finally:
                self._idle = None
                if timer is not None:
                    timer.cancel()
        if not self._mailbox or self.stopped:
            return False
        await self._handle_next()
        return True

    async def drain(self) -> None:
        """Handle the messages that are in the mailbox, without waiting for more."""
        while self._mailbox and not self.stopped:
            await self._handle_next()

    async def on_stop(self) -> None:
        """Called once after the last message, also after a failure or a cancellation."""

    @abstractmethod
    async def receive(self, message: Message) -> Any:
        """Handle one message; the return value answers an `ask`."""

    async def _handle_next(self) -> None:
        """Handle the first message in the mailbox. If it was asked, the asker gets the error, and the actor goes on."""
        message, reply = self._mailbox.popleft()
        self._let_next_in()
        self._began_s = time.monotonic()
        try:
            answer = await self.receive(message)
        except Exception as error:
            if reply is None:
                raise
            _settle(reply, error)
        except BaseException:
            _settle(reply, ActorStopped(f"{self.name} was stopped"))
            raise
        else:
            if reply is not None and not reply.done():
                reply.set_result(answer)
        finally:
            self._began_s = None

    def _let_next_in(self) -> None:
        """Wake the sender that has waited longest, if the mailbox has room."""
        while self._waiting_senders and len(self._mailbox) < self._capacity:
            if _wake(self._waiting_senders.popleft()):
                break

    async def _put(self, message: Message, reply: asyncio.Future[Any] | None) -> None:
        while len(self._mailbox) >= self._capacity and not self.stopped:
            room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting_senders.append(room)
            try:
                await room
            except asyncio.CancelledError:
                self._let_next_in()  # if this sender was already woken, another takes its place
                raise
        if self.stopped:
            raise ActorStopped(f"{self.name} has stopped")
        self._mailbox.append((message, reply))
        _wake(self._idle)


def _wake(waiter: asyncio.Future[None] | None) -> bool:
    if waiter is None or waiter.done():
        return False
    waiter.set_result(None)
    return True


def _settle(reply: asyncio.Future[Any] | None, error: Exception) -> None:
    if reply is not None and not reply.done():
        reply.set_exception(error)
