"""How a client behaves over its streams: how often what it sent was rejected, and how long its id rests after that."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from pausefl_proto.errors import TryLaterError

# Messages a client may send beyond what it was asked for, its hellos among them, and how many more each second.
_FREE_MESSAGES, _FREE_MESSAGES_PER_S = 64.0, 4.0
_MOST_OFFENCES = 8
_FORGIVEN_EVERY_S = 5.0
_SHORTEST_REST_S, _LONGEST_REST_S = 1.0, 300.0
# After so many times its last rest without another, a client's next rest is the shortest again.
_REHABILITATED_AFTER = 10.0
# gRPC keeps a stream until its last message is taken, or its connection ends.
_MOST_STUCK = 4


class AbuseError(TryLaterError):
    """The client has sent too much, or too much that is rejected; it may come back after its rest."""


class Conduct:
    """One client's account, kept over its streams. All times are `clock`'s, in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._offences = 0.0
        self._counted_s = self._rests_until_s = clock()
        self._rest_s = 0.0
        self._free_messages, self._refilled_s = _FREE_MESSAGES, self._counted_s
        self._stuck = 0

    def check_rested(self) -> None:
        """TryLaterError while the client rests, or too many of its streams cannot end."""
        if self._stuck >= _MOST_STUCK:
            raise TryLaterError("it left streams from which it takes nothing")
        if (left_s := self._rests_until_s - self._clock()) > 0:
            raise TryLaterError(f"too much of what it sent was rejected: come back in {left_s:.0f} s")

    @contextmanager
    def parting(self) -> Iterator[None]:
        """Count a stream that has ended but for what the client has not taken yet."""
        self._stuck += 1
        try:
            yield
        finally:
            self._stuck -= 1

    def greet(self) -> None:
        """Count a hello. AbuseError when the client comes and goes all the time."""
        self.spend_free_message("came and went")

    def spend_free_message(self, reason: str = "sent more messages than it was asked for") -> None:
        """Count a message that was not asked for. AbuseError when there are too many."""
        now_s = self._clock()
        gained = (now_s - self._refilled_s) * _FREE_MESSAGES_PER_S
        self._free_messages, self._refilled_s = min(_FREE_MESSAGES, self._free_messages + gained) - 1, now_s
        if self._free_messages < 0:
            self._free_messages = _FREE_MESSAGES
            self.rest(reason)

    def offend(self, reason: str) -> None:
        """Count a message that was rejected; one is forgiven every few seconds. AbuseError when it is one too many."""
        now_s = self._clock()
        self._offences = max(0.0, self._offences - (now_s - self._counted_s) / _FORGIVEN_EVERY_S) + 1
        self._counted_s = now_s
        if self._offences > _MOST_OFFENCES:
            self._offences = 0.0
            self.rest(reason)

    def rest(self, reason: str) -> NoReturn:
        """Raise AbuseError; the client may come back after a while, which grows each time."""
        now_s = self._clock()
        is_again = now_s - self._rests_until_s < _REHABILITATED_AFTER * self._rest_s
        self._rest_s = min(2 * self._rest_s, _LONGEST_REST_S) if is_again else _SHORTEST_REST_S
        self._rests_until_s = now_s + self._rest_s
        raise AbuseError(f"{reason}, once too often: rests for {self._rest_s:g} s")
