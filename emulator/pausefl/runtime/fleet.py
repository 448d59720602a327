"""Starts a run's processes, watches over them, and ends all of them whatever happens."""

import math
import multiprocessing
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess, SpawnProcess
from pathlib import Path
from typing import Any

from pausefl.runtime import composing
from pausefl.runtime.client.failures import report_new
from pausefl.runtime.forks import client_imports, forked_client, forked_run, spawned
from pausefl.runtime.netem import kernel_network
from pausefl.runtime.plan import ProcessPlan, RunPlan
from pausefl.runtime.processes.lifetime import begin_to_import, said_on, start
from pausefl.runtime.processes.log_file import how_it_ended
from pausefl.runtime.processes.logs import add_warning
from pausefl.runtime.processes.resources import allow_many_files
from pausefl.runtime.scrape_targets import SERVER, Targets
from pausefl_process.ending import BAD_INPUT, DRAIN_S, ONE_REQUEST_S, ask_to_end, asking_to_end, end_within, signals_to
from pausefl_process.events import (
    Done,
    Failed,
    Interrupted,
    MetricsServed,
    Notice,
    ProgressEvent,
    Ready,
    Report,
    RollCall,
    RoundCommitted,
)
from pausefl_process.files import Lock
from pausefl_proto.addresses import host_and_port
from pausefl_proto.errors import ConfigError, PauseflError

# Limits after the server's end, or after its DRAIN_S if it is late: `pausefl run` ends within 30 s of a SIGTERM.
_END_WITHIN_S = 8.0
_SERVER_LATE_S = 1.0
_LOOKS_EVERY_S = 1.0
# How often in a row a client process killed in mid-run is restarted, after waits of 1, 2, 4, ... seconds.
_RESTARTS_MAX = 5
# After a process has lasted this long, its restarts are counted from 1 again.
_LASTED_S = 60.0


class ServerLost(PauseflError):
    """The process that plays a run was killed or has crashed. The run can be resumed."""


@dataclass
class _ClientProcess:
    """A client process: its plan and, once it is started, its state."""

    number: int
    plan: ProcessPlan
    process: ForkServerProcess | None = None
    roll_calls: "Connection[Any, Any] | None" = None
    """Sends the process the rounds at which clients join or leave. Closing it asks the process to end."""
    restarts: int = 0
    """How often the process was restarted in a row."""
    starts_at_s: float = 0.0
    """When the process is to be restarted, or was the last time (monotonic clock); 0 if it never was."""

    def has_left(self, round: int) -> bool:
        """Whether its clients have left for good by this round."""
        leave_round = self.plan.group.leave_round
        return leave_round is not None and round >= leave_round

    def stop_calling(self) -> None:
        """Ask the process to end, if it receives roll calls."""
        if self.roll_calls is not None:
            self.roll_calls.close()
            self.roll_calls = None

    def schedule_restart(self) -> bool:
        """Count one more restart and set when it is due. Returns False if there were too many."""
        now_s = time.monotonic()
        self.restarts = 1 if now_s - self.starts_at_s > _LASTED_S else self.restarts + 1
        self.starts_at_s = now_s + 2.0 ** (self.restarts - 1)
        return self.restarts <= _RESTARTS_MAX


class Fleet:
    """One server process and its client processes. `run` lasts until the server is done."""

    def __init__(
        self,
        plan: RunPlan,
        run_dir: Path,
        lock: Lock | None = None,
        back_to: int | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        """`lock` is the run directory's lock. The server holds it too, as it may outlive this process for a moment.

        `back_to` first discards the rounds after that one. `stop` ends the run as SIGTERM does, for callers outside the
        main thread: only that thread handles signals.
        """
        port = plan.clients.metrics.client_port
        if port > 0 and len(plan.processes) > 1:
            raise ConfigError(
                f"metrics.client_port = {port}: {len(plan.processes)} client processes run here, each at a port"
                " of its own; 0 takes any free ones"
            )
        self._plan = plan
        self._client_processes = [_ClientProcess(*numbered) for numbered in enumerate(plan.processes)]
        self._lock = lock
        self._back_to = back_to
        self._run_dir = run_dir
        self._server: ForkServerProcess | SpawnProcess | None = None
        self._presence = plan.clients.presence
        self._server_host = self._address = ""
        self._needs_torch = plan.clients.training.workload.model != "synthetic"
        self._clients_log = run_dir / "clients.log"
        self._running: dict[int, ForkServerProcess] = {}  # by sentinel
        self._returning: list[_ClientProcess] = []  # processes to be restarted
        self._called = 0  # the round of the last roll call
        self._is_playing = False  # whether a round was committed
        self._targets = Targets(run_dir if port >= 0 else None)
        self._lines: dict[Connection[Any, Any], str] = {}  # from client processes, with the process's name
        self._failures: dict[str, Failed] = {}  # why a client process ended, by its name
        self._stop = stop or threading.Event()
        self._limits: list[threading.Timer] = []
        # How a signal's handler wakes `_watch`, which alone reports: the signal may have interrupted a report.
        self._woken, self._wake = multiprocessing.Pipe(duplex=False)
        self._interrupts = 0
        self._asked_s = -math.inf  # when the last signal came
        self._ends_by_s: float | None = None  # when to stop waiting for a server that was asked to end
        self.was_terminated = False
        """Whether SIGTERM or SIGHUP ended the run. The sender does not wait for figures, so none are drawn."""

    def run(self, report: Report) -> None:
        """Run the experiment. Raises the ConfigError or PauseflError that the server reports. Leaves no process behind.

        KeyboardInterrupt if signals ended the server before it could finish normally, for instance a second Ctrl-C.
        """
        allow_many_files()  # each client process has a pipe or two here
        with self._interruptible(), kernel_network(self._plan.network, self._run_dir) as bridge:
            self._server_host = bridge or self._plan.server.endpoints.host
            try:
                self._watch(self._start_server(), report)
            except (OSError, SystemExit):  # the reader of our output has gone; rich raises SystemExit then
                if self._server is not None and self._server.pid is not None and not self._interrupts:
                    self._server.terminate()
                raise
            finally:
                self._end_all()
                self._targets.clear()

    def _start_server(self) -> "Connection[Any, Any]":
        ours, theirs = multiprocessing.Pipe()
        asked, asks = multiprocessing.Pipe()
        given = (self._run_dir, theirs, self._lock)
        server = self._plan.server
        server = replace(server, summary=replace(server.summary, compose=partial(composing.ask, asks)))
        if self._plan.is_virtual:
            played = (replace(self._plan, server=server), self._back_to, *given)
            self._server = forked_run("pausefl-run", _play_virtually, *played, needs_torch=self._needs_torch)
        else:
            from pausefl.runtime.server.process import serve_run, work_for_fleet

            server = replace(server, endpoints=replace(server.endpoints, host=self._server_host))
            serve = partial(serve_run, server, self._run_dir, back_to=self._back_to)
            self._server = spawned(SERVER, work_for_fleet, serve, *given)
        start(self._server)
        if self._client_processes:
            begin_to_import(client_imports(self._needs_torch))  # while the server begins
        theirs.close()
        asks.close()
        if self._plan.clients.privacy is not None:
            threading.Thread(target=composing.answer_all, args=[asked], name="composing", daemon=True).start()
        if self._interrupts:  # a signal came while the server was being started
            self._server.kill()
            raise KeyboardInterrupt
        return ours

    def _watch(self, events: "Connection[Any, Any]", report: Report) -> None:
        """Handle the server's events until it is done. Also handle client processes' ends and metrics addresses."""
        report_failure = partial(report_new, report, set[str]())
        while True:
            due = [client for client in self._returning if client.starts_at_s <= time.monotonic()]
            self._returning = [client for client in self._returning if client not in due]
            self._start_clients(client for client in due if not client.has_left(self._called))
            if self._stop.is_set() and not self._interrupts:
                self._ask_to_end(signal.SIGTERM)
            if self._is_late():
                raise KeyboardInterrupt
            due_s = (client.starts_at_s - time.monotonic() for client in self._returning)
            patience_s = max(0.0, min((*due_s, _LOOKS_EVERY_S)))
            for ready in wait([self._woken, events, *self._running, *self._lines], patience_s):
                if ready is self._woken:
                    self._woken.recv()
                    report(Interrupted("finishing; once more ends it at once"))
                elif ready is events:
                    event = self._next(events)
                    if isinstance(event, (Done, Failed)):
                        self._hear(self._lines, report_failure)
                    if isinstance(event, Done):
                        return
                    self._take(event, report)
                elif isinstance(ready, Connection):
                    self._hear([ready], report_failure)
                else:
                    process = self._running.pop(ready)  # type: ignore[arg-type]  # a sentinel
                    own = [line for line, name in self._lines.items() if name == process.name]
                    self._hear(own, report_failure)  # it may have said why it ends
                    self._on_exit(process, report)

    def _take(self, event: ProgressEvent, report: Report) -> None:
        """Act on the server's event, or show it. Clients are started once the server listens."""
        match event:
            case Ready(port):
                self._address = host_and_port(self._server_host, port)
                if not (self._plan.processes or self._plan.is_virtual):
                    report(event)
                if self._presence is None:
                    self._start_clients(self._client_processes)
            case RollCall(round):
                self._sync_clients(round)
            case Failed(message, bad_input):
                raise (ConfigError if bad_input else PauseflError)(message)
            case _:
                if isinstance(event, MetricsServed):
                    self._targets.add(SERVER, event)
                self._is_playing = self._is_playing or isinstance(event, RoundCommitted)
                report(event)

    def _next(self, events: "Connection[Any, Any]") -> ProgressEvent:
        try:
            event: ProgressEvent = events.recv()
        except (EOFError, OSError):  # OSError: the server died while sending an event
            if self._interrupts:
                raise KeyboardInterrupt from None
            assert self._server is not None
            self._server.join(_SERVER_LATE_S)
            how = how_it_ended(self._server.exitcode, self._run_dir / "server.log")
            raise ServerLost(f"the server ended unexpectedly{how}") from None
        return event

    def _hear(self, lines: "Iterable[Connection[Any, Any]]", report: Report) -> None:
        """Act on all that client processes have said on these lines by now."""
        for name, event in said_on(lines, self._lines):
            match event:
                case MetricsServed():
                    self._targets.add(name, event)
                case Failed():
                    self._failures[name] = event
                case _:
                    report(event)

    def _is_late(self) -> bool:
        """Whether the run was asked to end, and the server should have done so by now."""
        return self._ends_by_s is not None and time.monotonic() > self._ends_by_s

    def _start_clients(self, clients: Iterable[_ClientProcess]) -> None:
        from pausefl.runtime.client.process import run_client_process

        for client in clients:
            theirs, client.roll_calls = multiprocessing.Pipe(duplex=False) if self._presence else (None, None)
            client_ids, torch = client.plan.client_ids, self._needs_torch
            name = f"pausefl-{client_ids[0]}"
            line, events = multiprocessing.Pipe(duplex=False)
            self._lines[line] = name
            own = replace(self._plan.clients, process=client.number)
            arguments = (own, client_ids, self._address, self._run_dir, events, theirs)
            client.process = forked_client(name, run_client_process, *arguments, needs_torch=torch)
            start(client.process)
            self._running[client.process.sentinel] = client.process
            for end in filter(None, (theirs, events)):
                end.close()
            self._call(client)

    def _sync_clients(self, round: int) -> None:
        """Start, notify and end client processes so that the clients of this round are present."""
        assert self._presence is not None
        self._called, present = round, self._presence.at(round)
        for client in self._client_processes:
            if not client.has_left(round):
                self._call(client)
            elif client.process is not None and client.roll_calls is not None:
                if client.plan.group.leave == "kill":
                    client.process.kill()
                client.stop_calling()
        self._start_clients(
            c for c in self._client_processes if c.process is None and not present.isdisjoint(c.plan.client_ids)
        )

    def _call(self, client: _ClientProcess) -> None:
        """Send the process the round called last, if it receives roll calls."""
        if client.roll_calls is not None:
            with suppress(OSError):  # the process has died; `_on_exit` reports it
                client.roll_calls.send(self._called)

    def _on_exit(self, process: ForkServerProcess, report: Report) -> None:
        """Handle a client process's end. A code other than 0 is fatal before round 1, or may cause a restart."""
        process.join()
        if process.exitcode == 0:
            self._targets.forget(process.name)
            return
        if not self._is_playing and (failed := self._failures.get(process.name)) is not None:
            raise (ConfigError if failed.bad_input else PauseflError)(f"{process.name}: {failed.message}")
        message = f"{process.name} ended{how_it_ended(process.exitcode, self._clients_log)}"
        if not self._is_playing:
            raise PauseflError(message)
        client = next(c for c in self._client_processes if c.process is process)
        was_asked_to = self._presence is not None and client.roll_calls is None
        client.stop_calling()
        may_return = not was_asked_to and process.exitcode != BAD_INPUT and not self._interrupts
        if may_return and client.schedule_restart():
            self._returning.append(client)
            message += f"; it is started again in {2 ** (client.restarts - 1)} s ({client.restarts} of {_RESTARTS_MAX})"
        process.close()  # where its fork server was killed it is still at work, and ends as it is let go
        add_warning(self._clients_log, message)  # a display drops some of many messages
        report(Notice(message))

    def _end_all(self) -> None:
        """Wait a while for all processes to end by themselves, then kill those that remain."""
        for client in self._client_processes:
            client.stop_calling()
        # A process without a pid is a server that could not be started.
        processes = [p for p in (self._server, *self._running.values()) if p is not None and p.pid is not None]
        at_once = self._interrupts > 1 or self._is_late()
        until_s = time.monotonic() + (0.0 if at_once else _END_WITHIN_S)
        for process in processes:
            process.join(max(0.0, until_s - time.monotonic()))
            if process.exitcode is None:
                process.kill()
        for process in processes:
            process.join()

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Handle signals in the block: the first Ctrl-C asks the server to finish, the second ends everything at once.

        A timer ends this process even if a display blocks because its reader has stopped reading.
        """
        try:
            with signals_to(lambda number, _: self._ask_to_end(number), signal.SIGINT, *asking_to_end()):
                yield
        finally:
            for limit in self._limits:
                limit.cancel()

    def _ask_to_end(self, number: int) -> None:
        before_s, self._asked_s = self._asked_s, time.monotonic()
        if number == signal.SIGTERM and self._asked_s < before_s + ONE_REQUEST_S:
            return
        self._interrupts += 1
        self._limits.append(end_within(DRAIN_S + _SERVER_LATE_S + _END_WITHIN_S))
        self.was_terminated = number != signal.SIGINT
        self._ends_by_s = time.monotonic() + DRAIN_S + _SERVER_LATE_S
        if self._server is None:
            raise KeyboardInterrupt
        if self._server.pid is None:
            return  # a half-started process cannot be ended yet; `_start_server` does it
        if self._interrupts > 1:
            for process in (self._server, *self._running.values()):
                process.kill()
            raise KeyboardInterrupt
        if self._server.exitcode is None:
            ask_to_end(self._server.pid, number)
        self._wake.send(number)


def _play_virtually(plan: RunPlan, back_to: int | None, run_dir: Path, *given: Any) -> None:
    """Play a run on the virtual clock. Only this process needs the libraries of both sides."""
    from pausefl.runtime.server.process import work_for_fleet
    from pausefl.runtime.virtual.process import play_in_own_process

    work_for_fleet(partial(play_in_own_process, plan, run_dir, back_to=back_to), run_dir, *given)
