"""Malformed messages against a server that plays honest rounds meanwhile, in turns with quiet times."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuzz.attackers import Channels, Insider, Target, send_bad_hellos, send_raw
from fuzz.server_run import MODEL_BYTES, ServerRun
from fuzz.tally import Tally

Say = Callable[[str], None]

_RAW_SENDERS, _HELLO_SENDERS = 4, 12
_SETTLE_S = 0.5


@dataclass(frozen=True)
class Plan:
    """The number of messages and of hostile clients, and the lengths of turns."""

    messages: int
    seed: int = 1
    insiders: int = 200
    mode: str = "rounds"
    warm_up_s: float = 5.0
    quiet_s: float = 5.0
    fuzz_s: float = 15.0


@dataclass
class _Pace:
    """Rounds and seconds of all turns of one kind."""

    rounds: int = 0
    seconds: float = 0.0
    turns: list[float] = field(default_factory=list)

    def add(self, rounds: int, seconds: float) -> None:
        self.rounds += rounds
        self.seconds += seconds
        self.turns.append(rounds / seconds)

    @property
    def per_s(self) -> float:
        return self.rounds / self.seconds if self.seconds else 0.0


class ServerFuzz:
    """One run of the fuzz; `summary` gives the findings so far."""

    def __init__(self, plan: Plan, say: Say) -> None:
        self._plan = plan
        self._say = say
        self._paces = {"quiet": _Pace(), "fuzz": _Pace()}
        self._tally = Tally(plan.messages)
        self._summary: dict[str, Any] = {}

    def summary(self) -> dict[str, Any]:
        """The findings so far."""
        quiet, fuzz = (self._paces[kind].per_s for kind in ("quiet", "fuzz"))
        return {
            "messages": self._tally.total,
            "seed": self._plan.seed,
            "sent": self._tally.by_layer(),
            "active_s": round(self._tally.active_s, 1),
            "rounds_per_s_quiet": round(quiet, 2),
            "rounds_per_s_fuzz": round(fuzz, 2),
            "pace": round(fuzz / quiet, 3) if quiet else None,
            "answers": dict(self._tally.answers.most_common(12)),
            **self._summary,
        }

    async def run(self, folder: Path) -> None:
        """Play to the end. Raises AssertionError if the server ends."""
        with ServerRun(folder, self._plan.insiders, self._plan.mode) as run:
            await self._until_round(run, 3)
            await asyncio.sleep(self._plan.warm_up_s)
            base = run.footprint()
            self._summary["base_rss_bytes"] = base.rss_bytes
            target = Target(run.port, MODEL_BYTES, run.experiment(), self._plan.seed)
            async with self._attackers(target):
                while not self._tally.is_done:
                    await self._turn(run, "quiet", self._plan.quiet_s)
                    self._tally.start()
                    await self._turn(run, "fuzz", self._plan.fuzz_s)
                    self._tally.pause()
                    self._note(run)
                self._tally.start()  # wakes all senders, which then see the end
            await self._turn(run, "quiet", self._plan.quiet_s)
            self._note(run)
            await self._until_round(run, run.rounds() + 3)
            complaints = run.complaints()
            self._summary |= {"tracebacks": len(complaints), "complaints": complaints[:5], "exit_status": run.end()}

    async def _turn(self, run: ServerRun, kind: str, at_most_s: float) -> None:
        """Play a turn of at most `at_most_s` seconds, and count its rounds."""
        await asyncio.sleep(_SETTLE_S)
        rounds, began_s = run.rounds(), time.monotonic()
        while time.monotonic() - began_s < at_most_s and not (kind == "fuzz" and self._tally.is_done):
            await asyncio.sleep(0.2)
            assert run.server.poll() is None, "the server has ended"
        if (seconds := time.monotonic() - began_s) > 1.0:
            self._paces[kind].add(run.rounds() - rounds, seconds)

    def _note(self, run: ServerRun) -> None:
        """Record the server's memory, disk and rounds, and report progress."""
        now = run.footprint()
        self._summary |= {
            "rss_bytes": now.rss_bytes,
            "peak_rss_bytes": now.peak_rss_bytes,
            "disk_bytes": now.disk_bytes,
            "rounds": run.rounds(),
            "cores": os.cpu_count(),
            "load": round(os.getloadavg()[1], 1),
            "rejected": int(run.metric("pausefl_rejected_updates_total")),
        }
        so_far = self.summary()
        self._say(
            f"server: {so_far['messages']:,} of {self._plan.messages:,} messages, {so_far['rounds']} rounds,"
            f" pace {so_far['pace']}, memory {now.rss_bytes / 1e6:.0f} MB (peak {now.peak_rss_bytes / 1e6:.0f}),"
            f" disk {now.disk_bytes / 1e6:.1f} MB"
        )

    @asynccontextmanager
    async def _attackers(self, target: Target) -> AsyncIterator[None]:
        strangers, insiders = Channels(target), Channels(target)
        senders = [
            *(send_raw(number, target, self._tally) for number in range(_RAW_SENDERS)),
            *(send_bad_hellos(number, target, self._tally, strangers) for number in range(_HELLO_SENDERS)),
            *(
                Insider(f"hostile-{number:03d}", target, self._tally, insiders).run()
                for number in range(self._plan.insiders)
            ),
        ]
        tasks = [asyncio.create_task(sender) for sender in senders]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            await strangers.close()
            await insiders.close()
        if failed := [end for end in ended if isinstance(end, Exception)]:
            raise failed[0]

    async def _until_round(self, run: ServerRun, rounds: int) -> None:
        async with asyncio.timeout(60):
            while run.rounds() < rounds:
                assert run.server.poll() is None, "the server has ended"
                await asyncio.sleep(0.1)
