"""`pausefl run` whose processes are killed or stopped, or whose disk is full, and which is resumed until it is done."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import psutil

from chaos.books import Progress, check_books, check_logs, check_nothing_lost, committed, require
from chaos.own_machine import filled, mounted_disk
from chaos.processes import Child, Processes
from chaos.schedule import Choice, Fault, Played, schedule
from rigs.command import toml_of

_PATIENCE_S = 120.0
_LONGEST_PAUSE_S = 4.0
_FULL_FOR_S = 3.0
_ROLES = ("parent", "server", "fork server", "clients", "evaluator")


@dataclass(frozen=True)
class RunShape:
    """The run, and the number and frequency of its faults."""

    rounds: int
    faults: int
    """The greatest number of faults."""
    pause_s: float
    """The mean time between two faults in seconds."""
    is_learning: bool
    """Whether the run uses torch, and an evaluator that faults may strike."""
    disk_bytes: int = 0
    """The size of the run's own disk, which is filled; 0: the run is on a disk with room."""
    peaceful_rounds: int = 5
    """The number of last rounds without faults."""


def _experiment(shape: RunShape) -> dict[str, object]:
    bounds = {"round_timeout_s": 8.0, "rejoin_timeout_s": 1.0, "dead_after_s": 4.0, "rounds_without_update_max": 20}
    return {
        "experiment.rounds": shape.rounds,
        "clients": {"count": 6, "per_process": 2},
        "selection": {"policy": "pause", "m": 3},
        "privacy": {"epsilon_budget": 1000.0, "eta": 0.0001},
        "latency.delay": {"kind": "constant", "value_s": 0.1},
        "server": bounds,
        "evaluation.every": 2 if shape.is_learning else None,
        "workload": None if shape.is_learning else {"model": "synthetic", "model_bytes": 20_000},
    }


class WholeRun:
    """One play of `pausefl run`. `play` returns its counts, and raises Violation if an invariant does not hold."""

    def __init__(self, seed: int, shape: RunShape, folder: Path) -> None:
        self.played = Played()
        self._seed = seed
        self._shape = shape
        self._folder = folder
        self._disk = folder / "disk"
        self._run_dir = (self._disk if shape.disk_bytes else folder) / "run"
        self._processes = Processes(folder, {})
        self._run: Child | None = None
        self._progress = Progress(self._run_dir, _PATIENCE_S)

    async def play(self) -> Played:
        """Play all rounds; the last ones without faults."""
        disk = mounted_disk(self._disk, self._shape.disk_bytes) if self._shape.disk_bytes else nullcontext("")
        with disk as missing:
            if missing:
                self.played.skipped["full disk"] = missing
                return self.played
            try:
                await self._play()
            finally:
                await self._processes.end_all()
        return self.played

    async def _play(self) -> None:
        config = self._folder / "experiment.toml"
        config.write_text(toml_of(_experiment(self._shape)), "utf-8")
        self._run = await self._processes.start("run", "run", config, "--run-dir", self._run_dir)
        await self._progress.until(lambda: self._progress.rounds() >= 1)
        for fault in islice(schedule(self._seed, list(self._menu()), self._shape.pause_s), self._shape.faults):
            await asyncio.sleep(fault.after_s)
            if self._progress.rounds() > self._shape.rounds - self._shape.peaceful_rounds:
                break
            self.played.struck.append(fault)
            before = committed(self._run_dir)
            await self._apply(fault)
            await self._go_on(before)
        while await self._end() != 0:
            await self._go_on(committed(self._run_dir))
        await self._check_end()

    def _menu(self) -> Iterator[Choice]:
        if self._shape.disk_bytes:
            yield Choice("full disk", 1.0, ["disk"])
            return
        roles = _ROLES if self._shape.is_learning else _ROLES[:-1]
        yield Choice("kill", 1.0, roles)
        yield Choice("stop", 0.5, roles)

    async def _apply(self, fault: Fault) -> None:
        if fault.kind == "full disk":
            with filled(self._disk):
                await self._wait_for_end(_FULL_FOR_S * fault.size)
            self.played.faults[fault.kind] += 1
            return
        processes = self._by_role()[fault.target]
        if not processes:
            return
        victim = processes[int(fault.size * len(processes))]
        with suppress(psutil.NoSuchProcess):
            if fault.kind == "kill":
                victim.kill()
            else:
                victim.suspend()
                await asyncio.sleep(_LONGEST_PAUSE_S * fault.size)
                victim.resume()
            self.played.faults[f"{fault.kind} {fault.target}"] += 1

    def _by_role(self) -> dict[str, list[psutil.Process]]:
        """The run's processes by role."""
        assert self._run is not None
        found: dict[str, list[psutil.Process]] = {role: [] for role in _ROLES}
        with suppress(psutil.NoSuchProcess):
            parent = psutil.Process(self._run.pid)
            found["parent"] = [parent]
            for child in parent.children():
                with suppress(psutil.NoSuchProcess):
                    command = " ".join(child.cmdline())
                    if "forkserver" in command:
                        found["fork server"].append(child)
                        found["clients"] += child.children()
                    elif "spawn_main" in command:
                        found["server"].append(child)
                        found["evaluator"] += [c for c in child.children() if "spawn_main" in " ".join(c.cmdline())]
        return found

    async def _go_on(self, before: Mapping[int, str]) -> None:
        """If the run has ended, check that no process is left, a reason given and no round lost; then resume it."""
        assert self._run is not None
        await self._wait_for_end(1.0)
        if (status := self._run.status) is None or status == 0:
            return
        orphans = await self._processes.orphans()
        require(not orphans, f"outlive their run: {orphans}")
        reason = (self._folder / "run.err").read_text("utf-8", "replace").strip().splitlines()[-1:]
        require(status < 0 or "pausefl: " in "".join(reason), f"status {status} without a reason: {reason}")
        self.played.checks["a run that stopped said why" if status > 0 else "no orphan"] += 1
        check_nothing_lost(before, self._run_dir)
        self.played.checks["no committed round lost"] += 1
        rounds = len(committed(self._run_dir))
        self._run = run = await self._processes.start("run", "run", "--resume", self._run_dir)
        await self._progress.until(lambda: run.status is not None or self._progress.rounds() > rounds)

    async def _wait_for_end(self, seconds: float) -> None:
        assert self._run is not None
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._run.ended()), seconds)

    async def _end(self) -> int:
        assert self._run is not None
        run = self._run
        await self._progress.until(lambda: run.status is not None)
        return await run.ended()

    async def _check_end(self) -> None:
        orphans = await self._processes.orphans()
        require(not orphans, f"outlive the run: {orphans}")
        self.played.rounds = check_books(self._run_dir)
        check_logs(self._folder)
        for what in ("ledger = log = summary", "no orphan", "completed"):
            self.played.checks[what] += 1
