"""Files that say which clients may join. They are read again during a run, so that a client can be locked out of it."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from pausefl_process.tokens import read_ids, read_token_digests
from pausefl_proto.errors import ConfigError
from pausefl_server.rounds.admission import Admission

_LOOKS_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class AdmissionFiles:
    """The paths of the files; an empty path means that there is no such file."""

    tokens: str = ""
    clients: str = ""

    def read(self, admission: Admission) -> Admission:
        """The admission with the current content of the files; ConfigError names a file that cannot be used."""
        if self.tokens:
            admission = replace(admission, tokens=read_token_digests(self.tokens))
        return replace(admission, listed=read_ids(self.clients)) if self.clients else admission

    def state(self) -> list[tuple[int, int, int]]:
        """A value that changes when a file changes."""
        found = []
        for path in filter(None, (self.tokens, self.clients)):
            with suppress(OSError):  # it is being replaced
                status = Path(path).stat()
                found.append((status.st_ino, status.st_mtime_ns, status.st_size))
        return found


async def follow(
    files: AdmissionFiles, admission: Admission, readmit: Callable[[Admission], None], say: Callable[[str], None]
) -> None:
    """Pass the new admission to `readmit` whenever the files change, until cancelled. `say` reports unusable files.

    A file that still changes from one look to the next is being written: only part of its clients may stand in it.
    """
    seen, used = list[tuple[int, int, int]](), list[tuple[int, int, int]]()
    while files != AdmissionFiles():
        before, seen = seen, await asyncio.to_thread(files.state)
        if before == seen != used:
            used = seen
            try:
                changed = await asyncio.to_thread(files.read, admission)
                if await asyncio.to_thread(files.state) == seen:
                    readmit(changed)
                else:
                    used = []
            except ConfigError as error:
                say(f"{error}; what it said before holds")
        await asyncio.sleep(_LOOKS_EVERY_S)
