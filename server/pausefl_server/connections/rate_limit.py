"""The rate limit of one client id: unsolicited and rejected messages are counted, and too many bring a backoff."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from pausefl_proto.errors import TryLaterError

# Messages a client may send beyond what it was asked for, its hellos among them, and how many more each second.
_UNSOLICITED_BURST, _UNSOLICITED_PER_S = 64.0, 4.0
_MOST_REJECTIONS = 8
_REJECTION_EXPIRES_S = 5.0
_SHORTEST_BACKOFF_S, _LONGEST_BACKOFF_S = 1.0, 300.0
# After so many times its last backoff without another, a client's next one is the shortest again.
_BACKOFF_RESET_AFTER = 10.0
# gRPC keeps a stream until its last message is taken, or its connection ends.
_MOST_DRAINING = 4


class AbuseError(TryLaterError):
    """The client has sent too much, or too much that is rejected; it may come back after its backoff."""


class ClientRateLimit:
    """One client's counts, kept over its streams. All times are `clock`'s, in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._rejections = 0.0
        self._counted_s = self._blocked_until_s = clock()
        self._backoff_s = 0.0
        self._tokens, self._refilled_s = _UNSOLICITED_BURST, self._counted_s
        self._draining = 0

    def check_allowed(self) -> None:
        """TryLaterError during the client's backoff, and while too many of its streams cannot end."""
        if self._draining >= _MOST_DRAINING:
            raise TryLaterError("it left streams from which it takes nothing")
        if (left_s := self._blocked_until_s - self._clock()) > 0:
            raise TryLaterError(f"too much of what it sent was rejected: come back in {left_s:.0f} s")

    @contextmanager
    def draining(self) -> Iterator[None]:
        """Count a stream that has ended but for what the client has not taken yet."""
        self._draining += 1
        try:
            yield
        finally:
            self._draining -= 1

    def count_unsolicited(self, reason: str = "sent more messages than it was asked for") -> None:
        """Count a message that was not asked for. AbuseError when there are too many."""
        now_s = self._clock()
        gained = (now_s - self._refilled_s) * _UNSOLICITED_PER_S
        self._tokens, self._refilled_s = min(_UNSOLICITED_BURST, self._tokens + gained) - 1, now_s
        if self._tokens < 0:
            self._tokens = _UNSOLICITED_BURST
            self._back_off(reason)

    def count_rejection(self, reason: str) -> None:
        """Count a message that was rejected; one expires every few seconds. AbuseError when it is one too many."""
        now_s = self._clock()
        self._rejections = max(0.0, self._rejections - (now_s - self._counted_s) / _REJECTION_EXPIRES_S) + 1
        self._counted_s = now_s
        if self._rejections > _MOST_REJECTIONS:
            self._rejections = 0.0
            self._back_off(reason)

    def _back_off(self, reason: str) -> NoReturn:
        """Raise AbuseError; the client may come back after a while, which grows each time."""
        now_s = self._clock()
        is_again = now_s - self._blocked_until_s < _BACKOFF_RESET_AFTER * self._backoff_s
        self._backoff_s = min(2 * self._backoff_s, _LONGEST_BACKOFF_S) if is_again else _SHORTEST_BACKOFF_S
        self._blocked_until_s = now_s + self._backoff_s
        raise AbuseError(f"{reason}, once too often: rests for {self._backoff_s:g} s")
