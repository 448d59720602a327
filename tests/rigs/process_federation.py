"""A federation of real processes that can be killed."""

import multiprocessing
import threading
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from pausefl.experiment.experiment import Experiment
from pausefl.runtime.client.plan import client_plan
from pausefl.runtime.client.process import run_client_process
from pausefl.runtime.plan import plan_of
from pausefl.runtime.server.process import run_server_process
from pausefl_process.events import Ready
from rigs.wiretap import Wiretap

PATIENCE_S = 60.0
SERVER = "server"


class ProcessFederation:
    """A server and three clients, a process each, with a tap between them. Whoever is killed is started again."""

    def __init__(self, experiment: Experiment, folder: Path, wiretap: Wiretap) -> None:
        self.experiment = experiment
        self._folder = folder
        self._wiretap = wiretap
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["pausefl.runtime.client.process", "pausefl.runtime.server.process"])
        self._processes: dict[str, Any] = {}
        self._listening = threading.Event()

    def start(self, name: str) -> None:
        """Start a client, or the server, which goes on with the run it finds; returns when the server listens."""
        if name == SERVER:
            self._listening.clear()
            ours, theirs = self._context.Pipe()
            plan = plan_of(self.experiment, self._folder.name).server
            self._start(name, run_server_process, plan, self._folder, theirs)
            theirs.close()
            threading.Thread(target=self._listen, args=(ours,), daemon=True).start()
            assert self._listening.wait(PATIENCE_S), "the server did not come up"
        else:
            address = f"127.0.0.1:{self._wiretap.port}"
            self._start(name, run_client_process, client_plan(self.experiment), [name], address, self._folder)

    def kill(self, name: str) -> None:
        """kill -9."""
        self._processes[name].kill()
        self._processes[name].join()

    def finish(self, rounds: int) -> None:
        """Start the server to play on until there are so many rounds, and wait until everybody has left in peace."""
        of_rounds = self.experiment.experiment.model_copy(update={"rounds": rounds})
        self.experiment = self.experiment.model_copy(update={"experiment": of_rounds})
        self.start(SERVER)
        for process in self._processes.values():
            process.join(PATIENCE_S)
        assert {name: process.exitcode for name, process in self._processes.items()} == dict.fromkeys(
            self._processes, 0
        ), [path.read_text("utf-8")[-1000:] for path in self._folder.glob("*.log")]

    def end(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.join()

    def _start(self, name: str, function: Any, *arguments: Any) -> None:
        self._processes[name] = self._context.Process(target=function, args=arguments, name=name)
        self._processes[name].start()

    def _listen(self, events: "Connection[Any, Any]") -> None:
        """Take the server's events, or it would wait for somebody to do so."""
        try:
            while True:
                event = events.recv()
                if isinstance(event, Ready):
                    self._wiretap.upstream = f"127.0.0.1:{event.port}"
                    self._listening.set()
        except (EOFError, OSError):
            events.close()
