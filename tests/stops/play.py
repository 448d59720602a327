"""A real federation whose processes are stopped, or whose machines seem to sleep, at random moments.

A stop is SIGSTOP and SIGCONT. A sleep is a stop after which the process's CLOCK_MONOTONIC lacks the time of the stop
(`awake_clock.c`). A pause is what `docker pause` does: the kernel freezes the process's cgroup. The begin and end of
each exchange on the server's clock show which exchanges a stop, sleep or pause touched.
"""

import asyncio
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pausefl_process.events import Ready, from_line
from rigs.command import rounds_in, toml_of

HERE = Path(__file__).parent
CLIENTS, M = 4, 3
SEEN_S = 0.25
"""A stop that overlaps an exchange by less than this need not be marked: load may cause such delays, too."""
WHO = ("server", "client", "both")
FREEZER = Path("/sys/fs/cgroup/freezer")
_MARKS = ("stopped_s", "suspended_s", "deadline_s")
_PATIENCE_S = 120.0
_EXPERIMENT: dict[str, object] = {
    "experiment.rounds": 100_000,
    "clients": {"count": CLIENTS, "minimum": CLIENTS, "connect_timeout_s": 600.0},
    "selection": {"policy": "pause", "m": M},
    "privacy.enabled": False,
    "latency": {"time_scale": 1.0, "delay": {"kind": "constant", "value_s": 0.4}},
    "workload.model": "synthetic",
    "workload.model_bytes": 20_000,
    "workload.training_time": {"kind": "constant", "value_s": 0.4},
    "metrics.enabled": False,
}
# With these timeouts, even a stop of 90 s ends in an observation. With the defaults, long stops end in misses.
_PATIENT = {"round_timeout_s": 300.0, "rejoin_timeout_s": 300.0, "dead_after_s": 300.0}


@dataclass(frozen=True)
class Stop:
    """A planned stop: the processes, the kind, and the length."""

    who: str
    how: str
    seconds: float
    after_s: float


@dataclass(frozen=True)
class Interval:
    """The time for which a process stood still, in true seconds of CLOCK_MONOTONIC."""

    process: str
    how: str
    from_s: float
    to_s: float


def stops(
    count: int,
    seed: int,
    shortest_s: float,
    longest_s: float,
    kinds_of_stop: Sequence[str] = ("stop", "sleep"),
    longest_gap_s: float = 3.0,
) -> list[Stop]:
    """`count` stops, equally many of each kind, in random order. Lengths are spread evenly on a logarithmic scale."""
    rng = random.Random(seed)
    kinds = [(who, how) for who in WHO for how in kinds_of_stop]
    lengths = [shortest_s * (longest_s / shortest_s) ** ((i + rng.random()) / count) for i in range(count)]
    planned = [
        Stop(*kinds[i % len(kinds)], seconds, rng.uniform(0.3, longest_gap_s)) for i, seconds in enumerate(lengths)
    ]
    rng.shuffle(planned)
    return planned


class Process:
    """A process that can be stopped, and whose machine can seem to sleep."""

    def __init__(self, name: str, folder: Path, library: Path, command: Sequence[object]) -> None:
        self.name = name
        self._asleep = folder / f"{name}.asleep"
        self._asleep.write_bytes(bytes(8))
        self._asleep_ns = 0
        env = os.environ | {"LD_PRELOAD": str(library), "PAUSEFL_ASLEEP": str(self._asleep)}
        with (folder / f"{name}.out").open("wb") as said, (folder / f"{name}.err").open("wb") as errors:
            self.popen = subprocess.Popen([sys.executable, *map(str, command)], stdout=said, stderr=errors, env=env)

    async def stand_still(self, how: str, seconds: float) -> Interval:
        """Stop the process for `seconds` or a little more; returns the true interval."""
        self._halt(how)
        while not self._is_halted(how):  # noqa: ASYNC110 - the kernel tells nobody
            await asyncio.sleep(0.002)
        from_s = time.monotonic()
        await asyncio.sleep(seconds)
        to_s = time.monotonic()
        if how == "sleep":
            self._asleep_ns += int((to_s - from_s) * 1e9)
            with self._asleep.open("r+b") as file:
                file.write(self._asleep_ns.to_bytes(8, "little"))
        self._go_on(how)
        return Interval(self.name, how, from_s, to_s)

    def _halt(self, how: str) -> None:
        if how == "pause":
            self._cgroup.mkdir(exist_ok=True)
            (self._cgroup / "cgroup.procs").write_text(str(self.popen.pid))
            (self._cgroup / "freezer.state").write_text("FROZEN")
        else:
            self.popen.send_signal(signal.SIGSTOP)

    def _is_halted(self, how: str) -> bool:
        if how == "pause":
            return (self._cgroup / "freezer.state").read_text().strip() == "FROZEN"
        return Path(f"/proc/{self.popen.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"

    def _go_on(self, how: str) -> None:
        if how == "pause":
            (self._cgroup / "freezer.state").write_text("THAWED")
        else:
            self.popen.send_signal(signal.SIGCONT)

    @property
    def _cgroup(self) -> Path:
        return FREEZER / f"pausefl-stops-{self.popen.pid}"

    def end(self) -> None:
        """Send SIGTERM and, if the process is alive 30 s later, SIGKILL."""
        self.popen.terminate()
        try:
            self.popen.wait(30)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()
        if self._cgroup.exists():
            self._cgroup.rmdir()


async def play(planned: Sequence[Stop], seed: int, folder: Path, *, is_patient: bool) -> list[dict[str, Any]]:
    """Play the stops of a federation; returns a dict per stop, then one of all its observations."""
    library = _built(folder)
    config, notes = folder / "experiment.toml", folder / "notes.jsonl"
    config.write_text(toml_of({**_EXPERIMENT, "server": _PATIENT if is_patient else {}}), "utf-8")
    serve = (HERE / "noting_server.py", notes, "server", config, "--run-dir", folder / "run")
    server, clients, struck = Process("server", folder, library, serve), [], []
    try:
        port = await _port(folder)
        for number in range(CLIENTS):
            join = ("-m", "pausefl", "client", config, "--server", f"127.0.0.1:{port}", "--slot", number)
            clients.append(Process(f"client-{number:03}", folder, library, (*join, "--ledger-dir", folder / "ledgers")))
        await _until_rounds(folder / "run", 3)
        rng = random.Random(seed)
        for stop in planned:
            await asyncio.sleep(stop.after_s)
            client = rng.choice(clients)
            targets = {"server": [server], "client": [client], "both": [server, client]}[stop.who]
            struck.append(await asyncio.gather(*(process.stand_still(stop.how, stop.seconds) for process in targets)))
            await asyncio.sleep(1.0)
        await _until_rounds(folder / "run", 3)
    finally:
        for process in (server, *clients):
            await asyncio.to_thread(process.end)
    return list(_judged(planned, struck, folder))


def _built(folder: Path) -> Path:
    library = folder / "awake_clock.so"
    compiler = shutil.which("cc") or "cc"
    subprocess.run(
        (compiler, "-shared", "-fPIC", "-O1", "-o", library, HERE / "awake_clock.c", "-ldl"), check=True, timeout=60
    )
    return library


async def _port(folder: Path) -> int:
    """The server's port, once it listens."""
    async with asyncio.timeout(_PATIENCE_S):
        while not (port := _port_said(folder / "server.out")):  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.1)
        return port


def _port_said(file: Path) -> int:
    for line in file.read_text("utf-8").splitlines():
        with suppress(ValueError):
            if isinstance(event := from_line(line), Ready):
                return event.port
    return 0


async def _until_rounds(run_dir: Path, more: int) -> None:
    """Wait until `more` further rounds are committed."""
    until = rounds_in(run_dir) + more
    async with asyncio.timeout(_PATIENCE_S):
        while rounds_in(run_dir) < until:  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.1)


def _judged(planned: Sequence[Stop], struck: Sequence[Sequence[Interval]], folder: Path) -> Iterator[dict[str, Any]]:
    """For each stop, the exchanges it touched and those of them not marked; then the marks that no stop explains."""
    intervals = [interval for group in struck for interval in group]
    exchanges = [_true(json.loads(line), intervals) for line in (folder / "notes.jsonl").read_text().splitlines()]
    with closing(sqlite3.connect(f"file:{folder}/run/run.db?mode=ro", uri=True)) as database:
        logged = database.execute("SELECT round, client_id, suspect, teaches FROM observations").fetchall()
        missed = database.execute("SELECT count(*) FROM misses WHERE kind != 'unneeded'").fetchone()[0]
        rejected = database.execute("SELECT count(*) FROM events WHERE kind = 'rejected'").fetchone()[0]
    marks = {(round_, client): _marks(suspect) for round_, client, suspect, _ in logged}
    seen = [exchange for exchange in exchanges if (exchange["round"], exchange["client"]) in marks]
    for stop, group in zip(planned, struck, strict=True):
        touched = [e for e in seen if any(_overlap_s(e, interval) >= SEEN_S for interval in group)]
        unmarked = [e for e in touched if not marks[e["round"], e["client"]]]
        yield {
            "who": stop.who,
            "how": stop.how,
            "seconds": round(stop.seconds, 2),
            "when": _when(group, seen),
            "touched": len(touched),
            "missed": unmarked,
        }
    untouched = [e for e in seen if all(_overlap_s(e, interval) <= 0 for interval in intervals)]
    wrong = [e | {"marks": marks[e["round"], e["client"]]} for e in untouched if marks[e["round"], e["client"]]]
    loads = sum(suspect != "[]" and not _marks(suspect) for _, _, suspect, _ in logged)
    taught = sum(bool(teaches) and bool(_marks(suspect)) for _, _, suspect, teaches in logged)
    yield {
        "observations": len(logged),
        "untouched": len(untouched),
        "wrongly marked": wrong,
        "marked for load alone": loads,
        "marked and counted": taught,
        "misses": missed,
        "rejected": rejected,
    }


def _marks(suspect: str) -> list[str]:
    """The doubts in `suspect` that name a stop or a sleep."""
    return [doubt for doubt in json.loads(suspect) if doubt.endswith(_MARKS)]


def _true(exchange: dict[str, Any], intervals: Sequence[Interval]) -> dict[str, Any]:
    """The exchange with its times on the true clock. The server's clock lacks the time its machine slept."""
    sleeps = [interval for interval in intervals if (interval.process, interval.how) == ("server", "sleep")]

    def true_s(at_s: float) -> float:
        for sleep in sleeps:  # in order; `at_s` includes the earlier sleeps already
            at_s += (sleep.to_s - sleep.from_s) if at_s > sleep.from_s else 0.0
        return at_s

    return exchange | {name: true_s(exchange[name]) for name in ("from_s", "to_s")}


def _overlap_s(exchange: dict[str, Any], interval: Interval) -> float:
    """The time in seconds for which the process stood still during the exchange; 0 or below if it did not."""
    if interval.process not in ("server", exchange["client"]):
        return 0.0
    return float(min(interval.to_s, exchange["to_s"]) - max(interval.from_s, exchange["from_s"]))


def _when(group: Sequence[Interval], exchanges: Sequence[dict[str, Any]]) -> str:
    """The part of the touched exchange in which the stop began."""
    for interval in group:
        for exchange in exchanges:
            if _overlap_s(exchange, interval) > 0:
                since_s = interval.from_s - exchange["from_s"]
                if since_s < 0:
                    return "before the job"
                if since_s < exchange["download"]:
                    return "download"
                return "training" if since_s < exchange["download"] + exchange["training"] else "upload"
    return "between exchanges"
