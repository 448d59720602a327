"""A server and client processes, each behind a TCP line of its own, played to the last round under faults."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from chaos.books import Progress, check_books, check_logs, check_nothing_lost, committed, require
from chaos.line import KINDS, Line
from chaos.own_machine import WallClock
from chaos.processes import Child, Processes
from chaos.schedule import Choice, Fault, Played, schedule
from rigs.command import toml_of

# Some damaged bytes make gRPC's own code abort the process that reads them. This project cannot prevent it.
_GRPC_ABORTS = "UNREACHABLE CODE"
# Without a further round for so long, with or without faults, an invariant is violated.
_PATIENCE_S = 90.0
# A client that is away during the last rounds finds no server any more. Its last try may take 30 s more.
_GIVE_UP_AFTER_S = 40.0
_LONGEST_PAUSE_S = 6.0
_LONGEST_JUMP_S = 10**8


@dataclass(frozen=True)
class Shape:
    """The size of a federation, and the kinds and frequency of its faults."""

    rounds: int
    faults: int
    """The greatest number of faults; rounds after them have no faults."""
    hosts: int
    """The number of client processes."""
    clients_each: int
    m: int
    pause_s: float
    """The mean time between two faults in seconds."""
    policy: str = "random"
    mode: str = "rounds"
    """`server.mode`; an asynchronous step takes half as many updates as clients are at work."""
    rule: str = "fedbuff"
    """`asynchronous.rule`; "fedat" needs the policy `fedat`, with two tiers."""
    delay_s: float = 0.1
    model_bytes: int = 20_000
    line_weight: float = 1.0
    """The weight of each kind of fault on a line, relative to the other weights."""
    clients_weight: float = 0.1
    """The weight of kills and of stops of client processes."""
    server_weight: float = 0.03
    """The weight of kills and of stops of the server."""
    peaceful_rounds: int = 40
    """The number of last rounds without faults."""


def _experiment(shape: Shape) -> dict[str, object]:
    clients = shape.hosts * shape.clients_each
    policy = "fedat" if (shape.mode, shape.rule) == ("asynchronous", "fedat") else shape.policy
    bounds = {"round_timeout_s": 4.0, "rejoin_timeout_s": 0.5, "dead_after_s": 3.0, "rounds_without_update_max": 20}
    return {
        "experiment.rounds": shape.rounds,
        "clients": {"count": clients, "minimum": shape.m, "connect_timeout_s": 300.0},
        "selection": {"policy": policy, "m": shape.m, "fedat": {"tiers": 2}},
        "privacy": {"epsilon_budget": 1000.0, "eta": 0.0001},
        "latency.delay": {"kind": "constant", "value_s": shape.delay_s},
        "workload": {"model": "synthetic", "model_bytes": shape.model_bytes},
        "server": {"mode": shape.mode, "pings_per_s": 60.0, **bounds},
        "asynchronous": {"concurrency": shape.m, "buffer": max(1, shape.m // 2), "rule": shape.rule},
        "metrics.enabled": False,
    }


class Federation:
    """One play. `play` returns its counts, and raises Violation as soon as an invariant does not hold."""

    def __init__(self, seed: int, shape: Shape, folder: Path) -> None:
        self.played = Played()
        self._seed = seed
        self._shape = shape
        self._run_dir = folder / "run"
        self._config = folder / "experiment.toml"
        self._folder = folder
        self._clock = WallClock(folder)
        self._processes = Processes(folder, self._clock.environment)
        self._lines = [Line(self.played.faults) for _ in range(shape.hosts)]
        self._hosts: dict[int, Child] = {}
        self._server: Child | None = None
        self._busy: set[str] = set()
        """Targets that are being killed or stopped."""
        self._progress = Progress(self._run_dir, _PATIENCE_S)
        if self._clock.missing:
            self.played.skipped["clock jump"] = self._clock.missing

    async def play(self) -> Played:
        """Play all rounds; the last ones without faults."""
        self._config.write_text(toml_of(_experiment(self._shape)), "utf-8")
        try:
            for line in self._lines:
                await line.open()
            await self._start_server()
            await asyncio.gather(*(self._start_host(number) for number in range(self._shape.hosts)))
            await self._progress.until(lambda: self._progress.rounds() >= 2)
            await self._strike()
            await self._make_peace()
            await self._end()
        finally:
            await self._processes.end_all()
            for line in self._lines:
                await line.close()
        return self.played

    async def _strike(self) -> None:
        """Let scheduled faults strike until there were enough, or until the last rounds begin."""
        async with asyncio.TaskGroup() as group:
            for fault in islice(schedule(self._seed, list(self._menu()), self._shape.pause_s), self._shape.faults):
                await asyncio.sleep(fault.after_s)
                if self._progress.rounds() > self._shape.rounds - self._shape.peaceful_rounds:
                    break
                self._revive_hosts(group)
                if self._server is not None and self._server.status is not None and "server" not in self._busy:
                    group.create_task(self._revive_server())
                self.played.struck.append(fault)
                self._apply(fault, group)

    def _menu(self) -> Iterator[Choice]:
        hosts = [str(number) for number in range(self._shape.hosts)]
        yield from (Choice(kind, self._shape.line_weight, hosts) for kind in KINDS)
        yield from (Choice(f"{what} server", self._shape.server_weight, ["server"]) for what in ("kill", "stop"))
        yield from (Choice(f"{what} clients", self._shape.clients_weight, hosts) for what in ("kill", "stop"))
        if not self._clock.missing:
            yield Choice("clock jump", 0.2, ["every"])

    def _apply(self, fault: Fault, group: asyncio.TaskGroup) -> None:
        if fault.kind in KINDS:
            self._lines[int(fault.target)].strike(fault)
        elif fault.kind == "clock jump":
            self._clock.jump(int((2 * fault.size - 1) * _LONGEST_JUMP_S))
            self.played.faults[fault.kind] += 1
        elif fault.target not in self._busy:
            self._busy.add(fault.target)
            self.played.faults[fault.kind] += 1
            group.create_task(self._strike_process(fault))

    async def _strike_process(self, fault: Fault) -> None:
        try:
            child = self._server if fault.target == "server" else self._hosts[int(fault.target)]
            assert child is not None
            if fault.kind.startswith("stop"):
                await child.pause(_LONGEST_PAUSE_S * fault.size)
            elif fault.target == "server":
                await self._kill_server(child)
            else:
                await child.kill()
                await self._start_host(int(fault.target))
        finally:
            self._busy.discard(fault.target)

    async def _kill_server(self, server: Child) -> None:
        before = committed(self._run_dir)
        await server.kill()
        await self._start_server()
        check_nothing_lost(before, self._run_dir)
        self.played.checks["no committed round lost"] += 1

    async def _revive_server(self) -> None:
        """Restart a server that has ended by itself. It must have given a reason."""
        self._busy.add("server")
        try:
            assert self._server is not None
            finished = self._server.finished
            require(finished is not None, f"the server ended with status {self._server.status} and no reason")
            self.played.checks["a run that stopped said why"] += 1
            before = committed(self._run_dir)
            await self._start_server()
            check_nothing_lost(before, self._run_dir)
        finally:
            self._busy.discard("server")

    async def _start_server(self) -> None:
        for line in self._lines:
            line.upstream = None
        arguments = (self._config, "--run-dir", self._run_dir, "--resume")
        self._server = await self._processes.start("server", "server", *arguments)
        await asyncio.wait_for(self._server.ready(), _PATIENCE_S)
        for line in self._lines:
            line.upstream = self._server.port

    async def _start_host(self, number: int) -> None:
        address, count = f"127.0.0.1:{self._lines[number].port}", self._shape.clients_each
        patience = f"clients.connect_timeout_s={_GIVE_UP_AFTER_S}"
        words = ["client", self._config, "--server", address, "--slot", number, "--count", count]
        words += ["--ledger-dir", self._run_dir / "ledgers", "--set", patience]
        self._hosts[number] = await self._processes.start(f"clients-{number}", *words)

    def _revive_hosts(self, group: asyncio.TaskGroup) -> None:
        """Restart client processes that have ended by themselves."""
        for number, host in self._hosts.items():
            if host.status is not None and not host.is_doomed and str(number) not in self._busy:
                self._check_reason(number, host.status)
                host.is_doomed = True
                group.create_task(self._start_host(number))

    def _check_reason(self, number: int, status: int) -> None:
        """Check that a failed client process gave a reason; aborts by gRPC are counted apart."""
        last_line = (self._folder / f"clients-{number}.err").read_text("utf-8").splitlines()[-1]
        reason = f"clients-{number} ended with status {status}: {last_line}"
        is_told = status > 0 and last_line.startswith("pausefl: ")
        require(is_told or _GRPC_ABORTS in last_line, reason)
        self.played.checks["a client process that failed said why" if is_told else "gRPC aborted a client process"] += 1
        self.played.reasons.append(reason)

    async def _make_peace(self) -> None:
        """Remove all faults, and cut all connections so that every client reports its ledger again."""
        for line in self._lines:
            line.heal()
            line.cut()

    async def _end(self) -> None:
        """Play the last rounds, and check that nothing is left over."""
        server = self._server
        assert server is not None
        await self._progress.until(lambda: server.status is not None)
        finished = server.finished
        require(finished is not None and finished.outcome == "completed", f"the run did not complete: {finished}")
        assert finished is not None
        require(not any(finished.left.values()), f"the server did not give back: {finished.left}")
        ends = {number: asyncio.ensure_future(host.ended()) for number, host in self._hosts.items()}
        await asyncio.wait(ends.values(), timeout=_PATIENCE_S)
        late = [f"clients-{number}" for number, end in ends.items() if not end.done()]
        if late:
            await self._processes.tell_waits()
        require(not late, f"outlive the server by {_PATIENCE_S:g} s, and their logs say what they wait for: {late}")
        for number, end in ends.items():
            if status := end.result():
                self._check_reason(number, status)
        orphans = await self._processes.orphans()
        require(not orphans, f"outlive the run: {orphans}")
        self.played.rounds = check_books(self._run_dir)
        check_logs(self._folder)
        for what in ("ledger = log = summary", "no task or descriptor left", "no orphan", "completed"):
            self.played.checks[what] += 1
