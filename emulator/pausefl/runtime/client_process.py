"""A client process: clients that share a connection and a pool of trainers, each with its own data, ledger, link."""

import asyncio
import logging
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

from pausefl.config.experiment import Experiment
from pausefl.config.links import make_links
from pausefl.runtime.processes import (
    BAD_INPUT,
    allow_many_files,
    die_with_parent,
    first_error,
    ignore_interrupts,
    keep_freed_memory,
    write_output_to,
)
from pausefl_client.ledger import Ledger, ReleaseKey
from pausefl_client.link import Link
from pausefl_client.privacy import ExactLaplace, LaplaceSource, Mechanism, entropy_rng
from pausefl_client.release import ReleasePrivacy, Releaser
from pausefl_client.session import ClientSession, ClientSettings, Observe
from pausefl_client.synthetic import SyntheticTrainer
from pausefl_client.trainer import Trainer
from pausefl_client.transport import connect
from pausefl_process.host_monitor import HostMonitor
from pausefl_process.http_server import WebServer
from pausefl_proto.draws import generator
from pausefl_proto.errors import ConfigError, LedgerError, PauseflError
from pausefl_proto.wire import MAX_FRAME_BYTES

# Training yields the processor to whatever keeps time.
_TRAINER_NICENESS = 10

Result = TypeVar("Result")

log = logging.getLogger("pausefl.client")


def _ignore(_: object) -> None:
    """Tell nobody."""


def run_host(
    experiment: Experiment,
    client_ids: Sequence[str],
    address: str,
    run_dir: Path,
    roll_calls: "Connection[Any, Any] | None" = None,
    told: "Connection[Any, Any] | None" = None,
) -> None:
    """The main function of a client process that `fleet` started, which calls the rounds where clients come and go.

    `told` gets the HOST:PORT at which the process can be scraped.
    """
    die_with_parent()
    ignore_interrupts()
    allow_many_files()
    keep_freed_memory()
    write_output_to(run_dir / "clients.log")
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO, force=True)
    try:
        if experiment.latency.injection == "netem":
            from pausefl.runtime.netem import enter_namespace

            enter_namespace(experiment, run_dir, client_ids[0])
        with first_error():
            on_metrics = told.send if told is not None else _ignore
            asyncio.run(take_part(experiment, client_ids, address, run_dir / "ledgers", roll_calls, on_metrics))
    except PauseflError as error:
        log.error("%s", error)
        sys.exit(BAD_INPUT if isinstance(error, ConfigError) else 1)


async def take_part(
    experiment: Experiment,
    client_ids: Sequence[str],
    address: str,
    ledgers: Path,
    roll_calls: "Connection[Any, Any] | None" = None,
    on_metrics: Callable[[str], None] = _ignore,
) -> None:
    """Be these clients until the server dismisses them; PauseflError when one of them cannot go on.

    With `roll_calls`, each of them only in the rounds it is there, until nobody calls any more. `on_metrics` hears at
    which HOST:PORT they can be scraped, if they can.
    """
    known = experiment.client_ids
    for client_id in client_ids:
        if client_id not in known:
            raise ConfigError(f"client id {client_id!r}: must be one of {known[0]} to {known[-1]} (clients.count)")
    trainers, sessions = make_trainers(experiment, client_ids), dict[str, ClientSession]()
    links = make_links(experiment.latency, experiment.links(), client_ids, experiment.experiment.seed)
    # Ledgers are closed last, when no trainer can write to them any more.
    with ExitStack() as closing, trainer_pool(experiment) as executor:
        monitor = HostMonitor()
        closing.callback(monitor.close)
        size = trainers[client_ids[0]].manifest.size
        privacies = {c: _open_privacy(experiment, c, size, ledgers, closing) for c in client_ids}
        observe = _expose(experiment, privacies, size, on_metrics, closing)
        async with asyncio.TaskGroup() as group:
            for client_id in client_ids:
                sessions[client_id] = _make_session(
                    *(experiment, client_id, trainers[client_id], privacies[client_id], links[client_id]),
                    *(address, executor, monitor, observe),
                )
            if roll_calls is None:
                for client_id, session in sessions.items():
                    group.create_task(_take_part(client_id, session))
            else:
                await _attend(experiment, sessions, roll_calls)


def make_trainers(experiment: Experiment, client_ids: Sequence[str]) -> dict[str, Trainer]:
    """A trainer for each of these clients, holding nothing but its own part of the data."""
    w, seed = experiment.workload, experiment.experiment.seed
    if w.model == "synthetic":
        size = w.model_bytes // 4
        return {
            c: experiment.chain(c).trainer(SyntheticTrainer(size, seed=seed, client_id=c, train_s=w.train_s))
            for c in client_ids
        }
    # Clients with a synthetic model never import torch.
    from pausefl.runtime.torch_trainers import make_torch_trainers

    return make_torch_trainers(experiment, client_ids)


def _make_session(
    experiment: Experiment,
    client_id: str,
    trainer: Trainer,
    privacy: ReleasePrivacy | None,
    link: Link,
    address: str,
    executor: Executor,
    monitor: HostMonitor,
    observe: Observe,
) -> ClientSession:
    settings = ClientSettings(
        client_id=client_id,
        schedule=experiment.schedule,
        discloses_loss="loss" in experiment.disclosed,
        statistics=trainer.label_counts if "labels" in experiment.disclosed else {},
        give_up_after_s=experiment.clients.connect_timeout_s,
    )
    connecting = partial(connect, address, experiment.tls_files())
    return ClientSession(
        settings, trainer, Releaser(privacy), link, connecting, executor, monitor=monitor, observe=observe
    )


def _open_privacy(
    experiment: Experiment, client_id: str, model_size: int, ledgers: Path, closing: ExitStack
) -> ReleasePrivacy | None:
    budget, mechanism = experiment.budget(), experiment.mechanism()
    if budget is None or mechanism is None:
        return None
    folder = Path(experiment.privacy.ledger_dir or ledgers)
    identity = _ledger_identity(experiment, mechanism, client_id, model_size)
    try:
        ledger = Ledger(folder / f"{client_id}.db", budget, **identity)
    except LedgerError as error:  # before anything was sent it is bad input
        raise ConfigError(str(error)) from error
    closing.callback(ledger.close)
    return ReleasePrivacy(mechanism, ledger, partial(noise_for, experiment, client_id))


def _ledger_identity(experiment: Experiment, mechanism: Mechanism, client_id: str, model_size: int) -> dict[str, str]:
    """Whose ledger it is, and what has to be the same for all of its releases if their ε are to add up."""
    # Both samplers spend alike; noise from the seed protects nobody, whatever is drawn after it.
    noise = "reproducible" if experiment.privacy.reproducible_noise else "fresh"
    identity = {"unit": mechanism.unit, "client_id": client_id, "data": experiment.data_key, "noise": noise}
    # The ε of an upload is d times a coordinate's.
    return identity | {"model_size": str(model_size)} if mechanism.unit == "coordinate" else identity


def _expose(
    experiment: Experiment,
    privacies: Mapping[str, ReleasePrivacy | None],
    model_size: int,
    on_metrics: Callable[[str], None],
    closing: ExitStack,
) -> Observe:
    """Serve this process's metrics if it is to have any; returns who is to be told of its exchanges."""
    settings = experiment.metrics
    if settings.client_port < 0:
        return _ignore
    try:
        from pausefl_client.metrics import HostMetrics
    except ImportError as error:
        raise ConfigError(f"metrics.client_port = {settings.client_port}: needs prometheus-client ({error})") from error
    ledgers = {client_id: privacy.ledger for client_id, privacy in privacies.items() if privacy is not None}
    units = {"vector": model_size, "coordinate": 1} if experiment.privacy.unit == "coordinate" else {"vector": 1}
    metrics = HostMetrics(len(privacies), ledgers, units, settings.client_series_max)
    routes = {"/metrics": metrics.scrape}
    web = WebServer(settings.client_host, settings.client_port, routes, key="metrics.client_port")
    closing.callback(web.close)
    on_metrics(web.address)
    return metrics.exchanged


def noise_for(experiment: Experiment, client_id: str, key: ReleaseKey) -> LaplaceSource:
    """A fresh source for every release, on the device that trains.

    Only a run that is marked "not private" takes it from the seed.
    """
    if experiment.privacy.reproducible_noise:
        return generator(experiment.experiment.seed, "noise", client_id, key.round, key.attempt)
    if experiment.privacy.sampler == "opendp":
        return ExactLaplace()
    return _device_noise(experiment) or entropy_rng()


def _device_noise(experiment: Experiment) -> LaplaceSource | None:
    """The source on the device that trains; None where that is the processor, which numpy serves faster."""
    if experiment.workload.model == "synthetic":
        return None
    from pausefl_client.training import resolve_device

    device = resolve_device(experiment.workload.device)
    if device.type == "cpu":
        return None
    from pausefl_client.device_noise import DeviceLaplace

    return DeviceLaplace(device)


async def _take_part(client_id: str, session: ClientSession) -> None:
    log.info("%s: %s", client_id, await session.run())


async def _attend(
    experiment: Experiment, sessions: Mapping[str, ClientSession], roll_calls: "Connection[Any, Any]"
) -> None:
    """Run the sessions of those who are there in the round last called; end all of them with the calls."""
    presence, running = experiment.presence(), dict[str, asyncio.Task[None]]()
    assert presence is not None
    async with asyncio.TaskGroup() as group:
        async for called in _rounds(roll_calls):
            present = presence.at(called)
            for client_id, session in sessions.items():
                if client_id not in present and client_id in running:
                    running.pop(client_id).cancel()
                elif client_id in present and client_id not in running:
                    running[client_id] = group.create_task(_take_part(client_id, session))
        for task in running.values():
            task.cancel()


async def _rounds(roll_calls: "Connection[Any, Any]") -> AsyncIterator[int]:
    """The rounds called, until the fleet closes its end."""
    calls: asyncio.Queue[int | None] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def read() -> None:
        try:
            calls.put_nowait(roll_calls.recv())
        except EOFError:
            loop.remove_reader(roll_calls.fileno())
            calls.put_nowait(None)

    loop.add_reader(roll_calls.fileno(), read)
    while (called := await calls.get()) is not None:
        yield called


class _AtOnce(Executor):
    """Runs what it is handed at once, for work that is shorter than the way to a thread and back (0.1 ms)."""

    def submit(self, fn: Callable[..., Result], /, *args: Any, **kwargs: Any) -> "Future[Result]":
        future: Future[Result] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def trainer_pool(experiment: Experiment) -> Executor:
    """Training, noise, the ledger and checking a great model have threads of their own, away from the event loop."""
    workload = experiment.workload
    is_idle = workload.model == "synthetic" and workload.train_s == 0 and not experiment.privacy.enabled
    is_honest = not any(group.behaviours for group in experiment.groups.values())
    if is_idle and is_honest and workload.model_bytes <= MAX_FRAME_BYTES:
        return _AtOnce()
    return ThreadPoolExecutor(experiment.clients.trainers, "trainer", _be_nice)


def _be_nice() -> None:
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _TRAINER_NICENESS)
