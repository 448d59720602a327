"""The subcommand that every task of an allocation runs: `srun pausefl allocation CONFIG --shared DIR`.

The first task serves, and the others run its clients. The files that they exchange lie in a folder that they share.
"""

import argparse
import multiprocessing
import os
import re
import socket
import time
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from pausefl.cli.arguments import add_config, add_log, add_set, folder
from pausefl.cli.option_values import experiment_of
from pausefl.experiment.experiment import Experiment
from pausefl.experiment.links import processes_of
from pausefl.outcomes import check_outcome
from pausefl.runtime.standing_fleet import StandingFleet, refuse_whole_runs
from pausefl.terminal_table import plain_console
from pausefl_process.events import Failed, ProgressEvent, Ready
from pausefl_process.files import reason, write_durably
from pausefl_proto.addresses import host_and_port
from pausefl_proto.errors import ConfigError, PauseflError

_LOOKS_EVERY_S = 0.2
_DIALS_FOR_S = 5.0


def allocation_arguments(sub: argparse.ArgumentParser) -> None:
    """Add the arguments of `pausefl allocation`."""
    add_config(sub)
    text = "a folder that all tasks see: for the server's address, certificates, the run, and what clients keep"
    sub.add_argument("--shared", type=folder, required=True, metavar="DIR", help=text)
    text = "which task this is, from 0 (default: as Slurm's srun says)"
    sub.add_argument("--rank", type=int, metavar="N", help=text)
    sub.add_argument("--ranks", type=int, metavar="N", help="how many tasks there are (default: as Slurm's srun says)")
    add_set(sub)
    add_log(sub)


def allocation(options: argparse.Namespace) -> None:
    """Serve the run as the first task, or run some of its clients as another."""
    experiment, (rank, ranks) = experiment_of(options), _place_of(options)
    refuse_whole_runs(experiment, "pausefl allocation")
    if ranks - 1 > (count := experiment.clients.count):
        raise ConfigError(f"--ranks {ranks}: one serves, and the others have too few clients (clients.count = {count})")
    shared = Path(options.shared).absolute()
    start = (os.environ.get(f"SLURM_{name}", "0") for name in ("JOB_ID", "STEP_ID", "RESTART_COUNT"))
    notice = shared / f"server-{'-'.join(start)}"
    if others := [each for each in shared.glob("clients-*-of-*") if not each.name.endswith(f"-of-{ranks - 1}")]:
        raise ConfigError(f"--ranks {ranks}: goes on with clients of other tasks, {others[0]}; take another --shared")
    if rank == 0:
        _serve(experiment, notice)
    else:
        _take_part(experiment, notice, rank, ranks - 1)


def _place_of(options: argparse.Namespace) -> tuple[int, int]:
    """This task's number, from 0, and the number of tasks. ConfigError if neither options nor Slurm state them."""
    given = options.rank, options.ranks
    rank, ranks = given if given != (None, None) else map(os.environ.get, ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"))
    if rank is None or ranks is None:
        raise ConfigError("--rank and --ranks: are needed, both, where srun does not start this command")
    are_numbers = all(re.fullmatch("[0-9]{1,9}", str(text)) for text in (rank, ranks))
    if not are_numbers or not int(rank) < int(ranks) or int(ranks) < 2:
        raise ConfigError(f"--rank {rank} --ranks {ranks}: must count 2 tasks or more, from 0 on")
    return int(rank), int(ranks)


def _secured(experiment: Experiment, certs: Path, **tls: str) -> Experiment:
    """The experiment with the allocation's own tokens and these files for TLS."""
    files = {f"tls.{key}": str(certs / tls[key]) if key in tls else "" for key in ("certificate", "key", "ca")}
    tokens = {"admission.tokens": f"{certs}/tokens.txt", "admission.token": f"{certs}/clients/{{client_id}}.token"}
    return experiment.replace({**files, **tokens, "admission.by_certificate": False})


def _serve(experiment: Experiment, notice: Path) -> None:
    """Play the run, or resume it, with certificates and tokens made for this allocation."""
    from pausefl.certificates import make_certificates
    from pausefl.cli.experiments import print_summary
    from pausefl.runtime.run import run_experiment
    from pausefl.runtime.terminal import make_view
    from pausefl.studies.job import on_own_disk

    console, fleet, host = plain_console(), StandingFleet("0.0.0.0:0"), socket.gethostname()
    shared, certs = notice.parent, notice.parent / "certs"
    shared.mkdir(parents=True, exist_ok=True)
    notice.write_text("", "utf-8")
    try:
        (certs / "server.pem").unlink(missing_ok=True)  # it may be of another machine, on which the run began
        make_certificates(certs, [host], experiment.client_ids)
        served = _secured(experiment, certs, certificate="server.pem", key="server.key")
        with on_own_disk(shared / "run") as run_dir, make_view(console, experiment.title) as report:

            def announce(event: ProgressEvent) -> None:
                if isinstance(event, Ready):
                    write_durably(notice, host_and_port(host, event.port))
                report(event)

            # Without a report: drawing it would occupy all machines.
            summary = run_experiment(served, run_dir, announce, resume=True, fleet=fleet, has_report=False)
    finally:
        notice.unlink(missing_ok=True)
    print_summary(console, summary, shared / "run")
    check_outcome(summary["outcome"], summary["stopped_because"], "the same command in another allocation")


def _take_part(experiment: Experiment, notice: Path, rank: int, tasks: int) -> None:
    """Run the clients of task `rank`, one of `tasks` tasks with clients, until the server dismisses them."""
    from pausefl.runtime.client.plan import client_plan
    from pausefl.runtime.client.process import run_client_process
    from pausefl.runtime.forks import forked_client
    from pausefl.runtime.processes.lifetime import said_on, start
    from pausefl.runtime.processes.log_file import how_it_ended

    address = _server_at(notice, experiment.clients.connect_timeout_s)
    plan = client_plan(_secured(experiment, notice.parent / "certs", ca="ca.pem"))
    together = processes_of(plan.links, 1)  # clients behind one access point together, every other client alone
    part = together[len(together) * (rank - 1) // tasks : len(together) * rank // tasks]
    links = {client_id: plan.links[client_id] for client_ids in part for client_id in client_ids}
    needs_torch = plan.training.workload.model != "synthetic"
    folder = notice.parent / f"clients-{rank}-of-{tasks}"
    folder.mkdir(exist_ok=True)
    running, lines = [], dict[Any, str]()
    refusals = list[tuple[str, Failed]]()
    try:
        for number, client_ids in enumerate(processes_of(links, experiment.per_process_of(len(links)))):
            # Tasks may share a machine: each begins with another GPU.
            name, own = f"pausefl-{client_ids[0]}", replace(plan, process=rank - 1 + number)
            ours, theirs = multiprocessing.Pipe(duplex=False)
            # The folder is shared, but ledgers are held exclusively: locks are enough.
            arguments = own, client_ids, address, folder, theirs
            process = forked_client(name, run_client_process, *arguments, needs_torch=needs_torch)
            running.append(process)
            start(process)  # an interrupt may come as this ends
            theirs.close()
            lines[ours] = name
        while lines:  # a process that says much would wait for ever if it were not heard
            said = said_on(wait(lines), lines)
            refusals += ((name, event) for name, event in said if isinstance(event, Failed))
        for process in running:
            process.join()
    finally:
        for process in (each for each in running if each.pid is not None):
            process.kill()
            process.join()
    for name, failed in refusals:
        raise (ConfigError if failed.bad_input else PauseflError)(f"{name}: {failed.message}")
    if ended := next((process for process in running if process.exitcode), None):
        raise PauseflError(f"{ended.name} ended{how_it_ended(ended.exitcode, folder / 'clients.log')}")


def _server_at(notice: Path, patience_s: float) -> str:
    """The server's HOST:PORT, once it listens. ConfigError if none does, for instance if the folder is not shared."""
    until_s, has_begun, why = time.monotonic() + patience_s, False, "; must be one folder for all tasks"
    while time.monotonic() < until_s:
        has_ended, has_begun = has_begun and not notice.exists(), notice.exists()
        if has_ended:
            raise PauseflError("the server has ended before it listened; the first task says why")
        with suppress(OSError):  # no notice yet
            if address := notice.read_text("utf-8"):
                host, _, port = address.rpartition(":")
                try:
                    socket.create_connection((host, int(port)), _DIALS_FOR_S).close()
                except OSError as error:  # its name is unknown here, or it was killed
                    why = f": {address} cannot be reached ({reason(error)})"
                else:
                    return address
        time.sleep(_LOOKS_EVERY_S)
    waited = f"no server listened there within {patience_s:g} s (clients.connect_timeout_s)"
    raise ConfigError(f"--shared {notice.parent}: {waited}{why}")
