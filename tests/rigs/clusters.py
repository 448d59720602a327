"""Slurm and Dask on this machine, two workers each. The daemons are real and use their own ports and folders."""

import getpass
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from rigs.command import rounds_in
from rigs.waiting import free_port, wait_for

_SLURM = """
ClusterName=pausefl
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/linear
MpiDefault=none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SchedulerParameters=sched_min_interval=100000,bf_interval=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=10
ReturnToService=2
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[0]} CPUs=1
NodeName=node2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=1
PartitionName=usual Nodes=ALL Default=YES PriorityTier=1 MaxTime=INFINITE
PartitionName=urgent Nodes=ALL PriorityTier=2 PreemptMode=OFF MaxTime=INFINITE
"""


@dataclass(frozen=True)
class Cluster:
    """A cluster on which `pausefl` plays runs."""

    words: Sequence[str]
    """The options of the `pausefl` command that choose this cluster."""
    environment: Mapping[str, str]
    """Environment variables. They name Slurm's configuration and the folder that serves as the workers' local disk."""
    workers: Sequence[psutil.Popen] = ()
    """Dask's worker processes; empty for Slurm."""

    def command(self, *words: str) -> str:
        """The output of one of Slurm's commands; empty if it fails."""
        return subprocess.run(words, env=self.environment, check=False, capture_output=True, text=True).stdout


def processes_of(job: str) -> list[psutil.Process]:
    """All processes of a Slurm job, also those whose parent has changed."""
    every = psutil.process_iter(["environ"])  # None where it may not be read
    return [one for one in every if (one.info["environ"] or {}).get("SLURM_JOB_ID") == job]


def run_of(processes: Sequence[psutil.Process]) -> str | None:
    """The name of a run that one of these processes plays and that has committed a round; else None."""
    for one in processes:
        with suppress(psutil.Error):
            for file in map(Path, (opened.path for opened in one.open_files())):
                if file.name == "run.db" and rounds_in(file.parent):
                    return file.parent.name
    return None


@contextmanager
def slurm(folder: Path) -> Iterator[Cluster]:
    """Yield Slurm with two nodes of one core. Jobs of partition `urgent` preempt those of `usual`."""
    for name in ("sbatch", "slurmctld", "slurmd", "munged"):
        if shutil.which(name) is None:
            pytest.skip(f"no {name} here: apt-get install slurm-wlm munge")
    for name in ("state", "node1", "node2", "disk"):
        (folder / name).mkdir(parents=True)
    (key := folder / "munge.key").write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    ports = [free_port(), free_port()]
    host, user = os.uname().nodename.partition(".")[0], getpass.getuser()
    text = _SLURM.format(folder=folder, host=host, user=user, port=free_port(), ports=ports)
    (folder / "slurm.conf").write_text(text, "utf-8")
    environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf"), "TMPDIR": str(folder / "disk")}
    of_munge = ["socket", "pid-file", "log-file", "seed-file"]
    munge = [f"--{what}={folder}/munge.{what.removesuffix('-file')}" for what in of_munge]
    cluster = Cluster(["--on", "slurm"], environment)
    idle = "sinfo", "--noheader", "--partition=usual", "--states=idle", "--format=%D"
    with _daemons(environment, folder) as start:
        start("munged", "--foreground", "--force", f"--key-file={key}", *munge)
        wait_for((folder / "munge.socket").exists, "munged")
        start("slurmctld", "-D", "-c")
        for node in ("node1", "node2"):
            start("slurmd", "-D", "-N", node)
        wait_for(lambda: cluster.command(*idle).strip() == "2", "both nodes")
        try:
            yield cluster
        finally:
            cluster.command("scancel", f"--user={user}")  # a failed test may leave jobs behind
            wait_for(lambda: not cluster.command("squeue", "--noheader").strip(), "the end of all jobs")


@contextmanager
def dask(folder: Path) -> Iterator[Cluster]:
    """Yield Dask's scheduler and two worker processes. A worker that ends is not restarted."""
    pytest.importorskip("distributed")
    (folder / "disk").mkdir(parents=True)
    python = sys.executable, "-m"
    address = f"tcp://127.0.0.1:{free_port()}"
    environment = {**os.environ, "TMPDIR": str(folder / "disk")}
    with _daemons(environment, folder) as start:
        start(*python, "distributed.cli.dask_scheduler", "--host", address, "--no-dashboard")
        worker = *python, "distributed.cli.dask_worker", address, "--nthreads=1", "--no-nanny", "--no-dashboard"
        yield Cluster(["--on", f"dask={address}"], environment, [start(*worker) for _ in range(2)])


@contextmanager
def _daemons(environment: Mapping[str, str], folder: Path) -> Iterator[Callable[..., psutil.Popen]]:
    """Yield a function that starts programs. At the end they are killed, with all their child processes."""
    with ExitStack() as ending:

        def start(*words: str) -> psutil.Popen:
            with (folder / f"{Path(words[0]).name}.out").open("ab") as out:
                process = psutil.Popen(words, env=environment, cwd=folder, stdout=out, stderr=out)
            ending.callback(_end, process)
            return process

        yield start


def _end(process: psutil.Popen) -> None:
    family = [process, *process.children(recursive=True)]
    for one in family:
        one.kill()
    process.wait()
