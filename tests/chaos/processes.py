"""The processes of a play: started, killed and stopped one by one, and found even after their parent has ended."""

import asyncio
import os
import signal
import sys
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from pausefl_process.events import Finished, ProgressEvent, Ready, from_line

_MARK = "PAUSEFL_CHAOS"
_GONE_WITHIN_S = 15.0
_LOOK_EVERY_S = 0.2


class Child:
    """A process of the `pausefl` command, with the port and end from its printed events."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.port: int | None = None
        self.finished: Finished | None = None
        self.is_doomed = False
        """Whether it was killed or asked to end."""
        self._process = process
        self._ready = asyncio.Event()
        self._listening = asyncio.ensure_future(self._listen())

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status(self) -> int | None:
        """The exit status; None while the process runs."""
        return self._process.returncode

    async def ready(self) -> None:
        """Wait until the process listens or has ended."""
        await self._ready.wait()

    async def ended(self) -> int:
        """Wait for the process's end; returns its exit status."""
        await asyncio.shield(self._listening)  # a caller that is cancelled must not stop the reading
        return await self._process.wait()

    async def kill(self) -> None:
        """Kill the process by SIGKILL, and wait for its end."""
        self.is_doomed = True
        with suppress(ProcessLookupError):
            self._process.kill()
        await self.ended()

    async def pause(self, seconds: float) -> None:
        """Stop the process for `seconds`: SIGSTOP, then SIGCONT."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(seconds)
            self._process.send_signal(signal.SIGCONT)

    async def _listen(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            with suppress(ValueError):
                self._take(from_line(line.decode()))
        self._ready.set()

    def _take(self, event: ProgressEvent) -> None:
        match event:
            case Ready(port):
                self.port = port
                self._ready.set()
            case Finished():
                self.finished = event


class Processes:
    """Starts the processes of one play. All have a mark in their environment, which their children inherit."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        """The processes' standard error is appended to `folder`/NAME.err."""
        self._folder = folder
        self._children: list[Child] = []
        self._mark = uuid.uuid4().hex
        self._environment = {**os.environ, **environment, _MARK: self._mark}

    async def start(self, name: str, *arguments: object) -> Child:
        """Start `pausefl` with these arguments."""
        command = [sys.executable, "-m", "pausefl", *map(str, arguments)]
        with (self._folder / f"{name}.err").open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                env=self._environment,
                start_new_session=True,
                limit=1 << 24,
            )
        child = Child(process)
        self._children.append(child)
        return child

    def alive(self) -> list[psutil.Process]:
        """All processes with the mark that have not ended."""
        return [process for process in psutil.process_iter() if self._is_ours(process)]

    async def orphans(self) -> list[str]:
        """Descriptions of the processes that are alive 15 s after the play's end."""
        for _ in range(int(_GONE_WITHIN_S / _LOOK_EVERY_S)):
            if not self.alive():
                return []
            await asyncio.sleep(_LOOK_EVERY_S)
        return [repr(process) for process in self.alive()]

    async def tell_waits(self) -> None:
        """Make all running processes log what their tasks wait for."""
        for process in self.alive():
            with suppress(psutil.Error):
                process.send_signal(signal.SIGUSR1)
        await asyncio.sleep(_LOOK_EVERY_S)

    async def end_all(self) -> None:
        """Kill all remaining processes."""
        for process in self.alive():
            with suppress(psutil.Error):
                process.kill()
        for child in self._children:
            await child.ended()

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            return process.status() != psutil.STATUS_ZOMBIE and process.environ().get(_MARK) == self._mark
        except psutil.Error:
            return False
