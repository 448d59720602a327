"""When a client tries to reach its server again, when it gives up, and what it logs about that."""

import asyncio
import logging
import math
import random
import time
from collections.abc import Callable

from pausefl_proto.errors import ConfigError, DamageError, PauseflError

log = logging.getLogger("pausefl.client")

RETRY_EVERY_S = 0.2
_LONGEST_RETRY_S = 5.0


class Reconnection:
    """The waits between one client's streams. Each is about twice as long as the last, until the server welcomes it."""

    def __init__(
        self,
        client_id: str,
        give_up_after_s: float,
        retry_every_s: float = RETRY_EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """With an infinite `give_up_after_s`, a client waits forever."""
        self._client_id = client_id
        self._patience_s = give_up_after_s
        self._retry_every_s = self._retry_s = retry_every_s
        self._clock = clock
        self._jitter = random.Random(client_id)
        self._last_contact_s = clock()
        self._is_damaged = False  # whether the last stream ended with a damaged message
        self._told = set[str]()  # the reasons that were logged since the last welcome
        self._was_welcome = False

    def connected(self) -> None:
        """Note that the server has welcomed the client. The waits start short again, except after a damaged message."""
        self._was_welcome = True
        if not self._is_damaged:
            self._retry_s = self._retry_every_s
        if self._told:
            self._log(logging.INFO, "connected")
        self._is_damaged, self._told = False, set()

    def disconnected(self) -> None:
        """Note that a stream on which the client was welcomed has ended."""
        self._last_contact_s = self._clock()

    def damaged(self, damage: DamageError) -> None:
        """Note that the client leaves a stream after a damaged message. On a new one the server sends all again."""
        self._is_damaged = True
        self._log(logging.WARNING, f"the server {damage}; connecting again")

    def failed(self, error: OSError | ConfigError) -> None:
        """Note that the server cannot be reached. PauseflError if that has lasted for `give_up_after_s`.

        Certificates and tokens of both sides may go out of date and be renewed during a run, so the client waits for
        that. Before the first welcome, the ConfigError is raised.
        """
        if isinstance(error, ConfigError) and not self._was_welcome:
            raise error
        reason = str(error) or "it gives no welcome"
        if self._clock() - self._last_contact_s > self._patience_s:
            raise PauseflError(f"the server cannot be reached: {reason}") from error
        if reason not in self._told:
            how_long = "until it is back" if math.isinf(self._patience_s) else f"for up to {self._patience_s:g} s"
            self._log(logging.INFO, f"no connection to the server ({reason}); trying {how_long}")
            self._told.add(reason)

    async def wait(self, longest_s: float = _LONGEST_RETRY_S) -> None:
        """Wait until it is time to try again. The wait is random, so that clients do not all reconnect at once."""
        await asyncio.sleep(self._retry_s * self._jitter.uniform(0.5, 1.5))
        self._retry_s = min(2 * self._retry_s, longest_s)

    def _log(self, level: int, text: str) -> None:
        log.log(level, "%s: %s", self._client_id, text, extra={"client_id": self._client_id})
