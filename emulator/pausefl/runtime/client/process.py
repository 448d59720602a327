"""A client process: clients that share a connection and a pool of trainers, each with its own data, ledger, link."""

import asyncio
import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pausefl.experiment.population.availability import Presence
from pausefl.experiment.population.behaviours import BehaviourChain
from pausefl.runtime.client.connecting import connect_over_grpc
from pausefl.runtime.client.failures import telling_failures
from pausefl.runtime.client.host_page import HostPage, host_page
from pausefl.runtime.client.links import make_links
from pausefl.runtime.client.plan import ClientPlan, TrainingPlan
from pausefl.runtime.client.privacy import open_privacies
from pausefl.runtime.processes.lifetime import die_with_parent, ignore_interrupts
from pausefl.runtime.processes.log_file import write_output_to
from pausefl.runtime.processes.logs import is_asked_for, set_up_log
from pausefl.runtime.processes.resources import allow_many_files, keep_freed_memory, own_device
from pausefl.runtime.processes.waits import run_telling_waits
from pausefl_client.jobs import AnsweredJob, OnAnswered
from pausefl_client.link import SPIN_S
from pausefl_client.privacy.release import Releaser
from pausefl_client.reconnection import Reconnection
from pausefl_client.session import ClientSession
from pausefl_client.session_settings import ClientSettings, Connect, HostResources
from pausefl_client.training.synthetic import SyntheticTrainer
from pausefl_client.training.trainer import Trainer
from pausefl_client.training.trainer_pool import TrainerPool
from pausefl_client.training.trainer_state import TrainerStates
from pausefl_process.ending import BAD_INPUT
from pausefl_process.events import Failed, Report
from pausefl_process.host_monitor import Clock, HostMonitor, HostWatch
from pausefl_process.plugins import errors_of_own_code
from pausefl_proto.errors import ConfigError, PauseflError, first_error
from pausefl_proto.privacy_unit import PrivacyUnit
from pausefl_proto.wire import MAX_FRAME_BYTES

if TYPE_CHECKING:  # clients with a synthetic model need no torch
    from pausefl_client.batched.host import BatchedHost

# Training has a lower priority than code that keeps time.
_TRAINER_NICENESS = 10

log = logging.getLogger("pausefl.client")
rounds_log = logging.getLogger("pausefl.client.rounds")

# The waits after refusals grow to this: a refusal is repeated until settings are changed.
LONGEST_AFTER_REFUSAL_S = 30.0
# How long a server may take to welcome a client, unless the configuration makes it shorter or longer.
_WELCOME_WITHIN_S = 30.0


def spare_exchanges() -> None:
    """Log single exchanges in verbose mode only: the run's server reports enough about them."""
    if not is_asked_for("verbose"):
        rounds_log.setLevel(logging.WARNING)


def run_client_process(
    plan: ClientPlan,
    client_ids: Sequence[str],
    address: str,
    run_dir: Path,
    events: "Connection[Any, Any] | None" = None,
    roll_calls: "Connection[Any, Any] | None" = None,
) -> None:
    """The main function of a client process that `fleet` started.

    `events` receives `MetricsServed`, in a private run notices why jobs failed, and `Failed` for an error that ends the
    process. `roll_calls` delivers the rounds at which clients join or leave, if any.
    """
    die_with_parent()
    ignore_interrupts()
    allow_many_files()
    keep_freed_memory()
    report = events.send if events is not None else lambda _: None
    try:
        write_output_to(run_dir / "clients.log")
        set_up_log(run_dir.name)
        spare_exchanges()
        if plan.latency.injection == "netem":
            from pausefl.runtime.netem import enter_namespace

            enter_namespace(plan.latency, plan.links, run_dir, client_ids[0], address.rpartition(":")[0])
        with errors_of_own_code(), first_error(), telling_failures(plan, report):
            run_telling_waits(run_clients_over_grpc(plan, client_ids, address, run_dir / "ledgers", report, roll_calls))
    except PauseflError as error:
        log.error("%s", error)
        is_bad_input = isinstance(error, ConfigError)
        report(Failed(str(error), is_bad_input))
        sys.exit(BAD_INPUT if is_bad_input else 1)


@dataclass(frozen=True)
class ClientPlatform:
    """What the clients of one process run on: their connection to the server, threads, a clock, a host monitor."""

    connect: Callable[[str], Connect]
    """client id -> a function that opens its stream to the server."""
    executor: Executor | None
    """Trains for all clients, until they end; None: the event loop does, as the work takes no time."""
    clock: Clock = time.monotonic
    watch: Callable[[Clock], HostWatch] = HostMonitor
    spin_s: float = SPIN_S
    """The seconds at the end of a wait in which a link polls the clock."""
    refused: dict[str, str] = field(default_factory=dict)
    """Client -> the refusal that was logged last. It outlives runs, so that a client that stays logs each once."""


async def run_clients_over_grpc(
    plan: ClientPlan,
    client_ids: Sequence[str],
    address: str,
    ledgers: Path,
    report: Report = lambda _: None,
    roll_calls: "Connection[Any, Any] | None" = None,
) -> None:
    """Run these clients over gRPC until the server at HOST:PORT dismisses them. Raises errors as `run_clients` does.

    With `roll_calls`, each client takes part only in rounds in which it is present, until the calls end. `report`
    receives the address of their metrics, if these are served.
    """
    called = None if roll_calls is None else _rounds(roll_calls)
    certificates = [plan.connection.tls.in_use(client_id) for client_id in client_ids]
    with host_page(plan.metrics, report, certificates) as page:
        await play_over_grpc(plan, client_ids, address, ledgers, page, called)


async def play_over_grpc(
    plan: ClientPlan,
    client_ids: Sequence[str],
    address: str,
    ledgers: Path,
    page: HostPage | None,
    rounds: asyncio.Queue[int | None] | None = None,
    refused: dict[str, str] | None = None,
) -> None:
    """Run these clients over gRPC. `page` and `refused` may outlive the run. See `run_clients`, `ClientPlatform`."""
    executor = None if takes_no_time(plan) else TrainerPool(plan.training.trainers, _be_nice)
    connect = partial(connect_over_grpc, plan.connection, address)
    platform = ClientPlatform(connect, executor, refused={} if refused is None else refused)
    await run_clients(plan, client_ids, ledgers, platform, rounds, page)


async def run_clients(
    plan: ClientPlan,
    client_ids: Sequence[str],
    ledgers: Path,
    platform: ClientPlatform,
    rounds: asyncio.Queue[int | None] | None = None,
    page: HostPage | None = None,
) -> None:
    """Run these clients until the server dismisses them. If one of them fails, the others go on.

    Raises the first client's PauseflError at the end. `rounds` gets the rounds at which clients join and leave, at last
    None; without it, all stay. `page` shows the clients.
    """
    known = plan.training.client_ids
    for client_id in client_ids:
        if client_id not in known:
            raise ConfigError(f"client id {client_id!r}: must be one of {known[0]} to {known[-1]} (clients.count)")
    plan = plan.on_own_device(client_ids)
    batched = None
    if plan.training.batched == "on":
        from pausefl_client.batched.host import BatchedHost

        batched = BatchedHost()
    trainers, sessions = make_trainers(plan.training, client_ids, batched), dict[str, ClientSession]()
    links = make_links(plan.latency, plan.links, client_ids, plan.latency_seed, platform.spin_s)
    # Ledgers are closed last, when no trainer can write to them any more.
    with ExitStack() as closing:
        size = trainers[client_ids[0]].manifest.charged.size
        privacies = open_privacies(plan, trainers, ledgers, closing)
        if platform.executor is not None:
            closing.callback(platform.executor.shutdown, cancel_futures=True)
        monitor = platform.watch(platform.clock)
        closing.callback(monitor.close)
        on_answered: OnAnswered | None = None
        if page is not None:
            owed = {client_id: privacy.ledger for client_id, privacy in privacies.items() if privacy is not None}
            unit: PrivacyUnit = plan.privacy.mechanism.unit if plan.privacy is not None else "vector"
            on_answered = page.show(client_ids, owed, unit, size, sessions)
        host = HostResources(platform.executor, monitor, partial(_log_and_pass_on, on_answered))
        if batched is not None:
            host = replace(host, expecting=batched.expecting)
        for c in client_ids:
            states = TrainerStates(trainers[c], ledgers / c)
            releaser = Releaser(privacies[c], plan.encoding, trainers[c].manifest.statistics.size)
            settings = ClientSettings(
                client_id=c,
                schedule=plan.schedule,
                agreement=plan.agreement,
                own_code=plan.own_code,
                discloses_loss="loss" in plan.disclosed,
                statistics=trainers[c].label_counts if "labels" in plan.disclosed else {},
                run_id=plan.run_id,
                give_up_after_s=plan.give_up_after_s,
                welcome_within_s=max(plan.connection.dead_after_s, min(_WELCOME_WITHIN_S, plan.give_up_after_s)),
            )
            sessions[c] = ClientSession(settings, trainers[c], releaser, links[c], platform.connect(c), host, states)
        out: dict[str, PauseflError | None] = {}
        async with asyncio.TaskGroup() as group:
            if rounds is None:
                waits = set[asyncio.Future[None]]() if plan.run_id else None
                for client_id in sessions:
                    group.create_task(_run_session(client_id, sessions, out, platform.refused, waits))
            else:
                await _run_present(plan.presence, sessions, out, rounds)
        for error in filter(None, out.values()):
            raise error


def make_trainers(
    plan: TrainingPlan, client_ids: Sequence[str], batched: "BatchedHost | None" = None
) -> dict[str, Trainer]:
    """A trainer for each of these clients, by id. It holds only its client's part of the data.

    With `batched`, clients whose training can be batched train together.
    """
    w, seed = plan.workload, plan.seed
    if w.model == "synthetic":
        size = w.model_bytes // 4
        return {
            c: BehaviourChain(plan.behaviours[c], seed=seed, client_id=c).trainer(
                plan.paced(SyntheticTrainer(size, seed=seed, client_id=c, train_s=w.train_s), c)
            )
            for c in client_ids
        }
    if w.device == "cpu":
        own_device(w.device, 0)
    # Clients with a synthetic model never import torch.
    from pausefl.runtime.client.torch_trainers import make_torch_trainers

    return make_torch_trainers(plan, client_ids, batched)


def _log_and_pass_on(on_answered: OnAnswered | None, job: AnsweredJob) -> None:
    """Log an answered job in one line, and pass it to `on_answered`, if given."""
    said = "%s: round %d: %s after %.3f s in the queue, %.3f s of training, %.3f s of privatising"
    result, timing = job.result, job.result.timing
    told = (job.client_id, result.round, job.status, timing.queue_s, timing.train_s, timing.privatise_s)
    rounds_log.info(said, *told, extra={"client_id": job.client_id, "round": result.round})
    if on_answered is not None:
        on_answered(job)


async def _run_session(
    client_id: str,
    sessions: Mapping[str, ClientSession],
    out: dict[str, PauseflError | None],
    refused: dict[str, str],
    waits: set[asyncio.Future[None]] | None = None,
) -> None:
    """Run one client to its end. Its error, or None, is then in `out`, so that the others go on.

    With `waits`, those of refused clients, it tries again while others take part or may do so: it may be let in again.
    """
    refusals = Reconnection(client_id, math.inf)
    while True:
        try:
            log.info("%s: %s", client_id, await sessions[client_id].run(), extra={"client_id": client_id})
            out[client_id] = None
            for wait in waits or ():
                wait.cancel()
            return
        except PauseflError as error:
            out[client_id] = error
            if len(sessions) > 1 and str(error) != refused.get(client_id):
                refused[client_id] = str(error)
                log.error("%s: %s", client_id, error, extra={"client_id": client_id})
            if waits is None or all(c in out and not session.is_connected for c, session in sessions.items()):
                return
        waits.add(waiting := asyncio.ensure_future(refusals.wait(LONGEST_AFTER_REFUSAL_S)))
        await asyncio.wait([waiting])
        waits.remove(waiting)
        if waiting.cancelled():
            return


async def _run_present(
    presence: Presence | None,
    sessions: Mapping[str, ClientSession],
    out: dict[str, PauseflError | None],
    rounds: asyncio.Queue[int | None],
) -> None:
    """Run the sessions of the clients present in the round last called. End all sessions when the calls end."""
    assert presence is not None
    running: dict[str, asyncio.Task[None]] = {}
    async with asyncio.TaskGroup() as group:
        while (called := await rounds.get()) is not None:
            present = presence.at(called)
            for client_id in sessions:
                if client_id not in present and client_id in running:
                    running.pop(client_id).cancel()
                elif client_id in present and client_id not in running:
                    running[client_id] = group.create_task(_run_session(client_id, sessions, out, {}))
        for task in running.values():
            task.cancel()


def _rounds(roll_calls: "Connection[Any, Any]") -> asyncio.Queue[int | None]:
    """A queue that gets the rounds called, and None once the fleet closes its end of the pipe."""
    calls: asyncio.Queue[int | None] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def read() -> None:
        try:
            calls.put_nowait(roll_calls.recv())
        except EOFError:
            loop.remove_reader(roll_calls.fileno())
            calls.put_nowait(None)

    loop.add_reader(roll_calls.fileno(), read)
    return calls


def takes_no_time(plan: ClientPlan) -> bool:
    """Whether training, noise, the ledger and checks of models take less time than handing them to a thread."""
    training, workload = plan.training, plan.training.workload
    is_idle = workload.model == "synthetic" and workload.train_s == 0 and plan.privacy is None
    is_honest = not any(training.behaviours.values()) and not training.training_times
    return is_idle and is_honest and workload.model_bytes <= MAX_FRAME_BYTES


def _be_nice() -> None:
    """Lower this thread's priority. Never raise it: only root may, and a pool whose initializer fails is broken."""
    if sys.platform == "linux":
        niceness = max(_TRAINER_NICENESS, os.getpriority(os.PRIO_PROCESS, 0))
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)
