"""When a client tries to reach its server again, for how long it does so, and what its log tells of that."""

import asyncio
import logging
import math
import random
import time
from collections.abc import Callable

from pausefl_proto.errors import DamageError, PauseflError
from pausefl_proto.tls import OutOfDateError

log = logging.getLogger("pausefl.client")

RETRY_EVERY_S = 0.2
_LONGEST_RETRY_S = 5.0


class Reconnection:
    """The waits between one client's streams, each about twice as long as the one before until a stream is welcome."""

    def __init__(
        self,
        client_id: str,
        give_up_after_s: float,
        retry_every_s: float = RETRY_EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """With an infinite `give_up_after_s`, a client waits for ever, also for a certificate that is valid."""
        self._client_id = client_id
        self._patience_s = give_up_after_s
        self._retry_every_s = self._retry_s = retry_every_s
        self._clock = clock
        self._jitter = random.Random(client_id)
        self._last_contact_s = clock()
        self._is_damaged = False  # whether the last stream ended with a damaged message
        self._is_told = False  # whether the log says that there is no connection
        self._was_welcome = math.isinf(give_up_after_s)

    def connected(self) -> None:
        """Note that the server has welcomed the client; after a damaged message, the waits go on growing."""
        self._was_welcome = True
        if not self._is_damaged:
            self._retry_s = self._retry_every_s
        if self._is_told:
            self._log(logging.INFO, "connected")
        self._is_damaged = self._is_told = False

    def disconnected(self) -> None:
        """Note that a stream whose server had welcomed the client has ended."""
        self._last_contact_s = self._clock()

    def damaged(self, damage: DamageError) -> None:
        """Note that a stream is given up: the server has seen nothing wrong, and says all again on a fresh one."""
        self._is_damaged = True
        self._log(logging.WARNING, f"the server {damage}; connecting again")

    def failed(self, error: OSError | OutOfDateError) -> None:
        """Note that the server cannot be reached; PauseflError where that has been so for `give_up_after_s`.

        An own certificate that is out of date may be renewed in mid-run; before the first welcome, the error is raised.
        """
        if isinstance(error, OutOfDateError) and not self._was_welcome:
            raise error
        reason = str(error) or "it gives no welcome"
        if self._clock() - self._last_contact_s > self._patience_s:
            raise PauseflError(f"the server cannot be reached: {reason}") from error
        if not self._is_told:
            how_long = "until it is back" if math.isinf(self._patience_s) else f"for up to {self._patience_s:g} s"
            self._log(logging.INFO, f"no connection to the server ({reason}); trying {how_long}")
            self._is_told = True

    async def wait(self, longest_s: float = _LONGEST_RETRY_S) -> None:
        """Return when it is time to try again: clients that lost their server at one instant come back at several."""
        await asyncio.sleep(self._retry_s * self._jitter.uniform(0.5, 1.5))
        self._retry_s = min(2 * self._retry_s, longest_s)

    def _log(self, level: int, text: str) -> None:
        log.log(level, "%s: %s", self._client_id, text, extra={"client_id": self._client_id})
