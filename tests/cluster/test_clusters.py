"""Sweeps on Slurm and on Dask, whose jobs are killed, preempted and out of time: to the last bit as played here.

And a fleet of Slurm's tasks."""

import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import psutil
import pytest

from rigs.clusters import Cluster, dask, processes_of, run_of, slurm
from rigs.command import PAUSEFL, rounds_in, synthetic
from rigs.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

SWEEP = ["demo", "--virtual", "--seeds", "4", "--set", "selection.m=1,2,3", "--set", "experiment.rounds=150"]
SWEEP += ["--set", "clients.count=5", "--set", "workload.model=synthetic", "--set", "privacy.reproducible_noise=true"]


def results(folder: Path) -> dict[str, Any]:
    """All that tells how a sweep and its rounds went, without what tells of interruptions."""
    found: dict[str, Any] = {"sweep.csv": (folder / "sweep.csv").read_bytes()}
    for run_dir in (file.parent for file in sorted(folder.glob("*/summary.json"))):
        found[run_dir.name] = (run_dir / "model.safetensors").read_bytes()
        with closing(sqlite3.connect(run_dir / "run.db")) as log:
            for table in ("rounds", "observations"):
                found[f"{run_dir.name} {table}"] = log.execute(f"SELECT * FROM {table}").fetchall()
    return found


@pytest.fixture(scope="module")
def played_here(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("here") / "sweep"
    subprocess.run([*PAUSEFL, "sweep", *SWEEP, "--jobs", "2", "--run-dir", str(folder)], check=True)
    found = results(folder)
    assert len(found) == 1 + 3 * 12
    return found


@contextmanager
def sweep(cluster: Cluster, folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A sweep that is being played, and has come to its end after the block."""
    words = [*PAUSEFL, "sweep", *SWEEP, *cluster.words, "--run-dir", str(folder)]
    with (
        folder.with_name("said").open("wb") as said,
        subprocess.Popen(words, env=cluster.environment, stdout=said, stderr=said) as process,
    ):
        try:
            yield process
            assert process.wait() == 0
        finally:
            process.kill()


def test_a_sweep_on_dask_survives_a_killed_worker(played_here: dict[str, Any], tmp_path: Path) -> None:
    with dask(tmp_path / "dask") as cluster, sweep(cluster, tmp_path / "sweep") as process:
        lost = cluster.workers[0]
        wait_for(lambda: run_of(lost.children(recursive=True)), "a run on the worker", running=process)
        lost.kill()
    assert results(tmp_path / "sweep") == played_here


def test_a_sweep_on_slurm_survives_preemption_losses_and_limits(played_here: dict[str, Any], tmp_path: Path) -> None:
    with slurm(tmp_path / "slurm") as cluster, sweep(cluster, tmp_path / "sweep") as process:
        for job in ("1", "2"):
            stop_in_a_run(job, process)
        cluster.command("scontrol", "update", "JobId=1", "TimeLimit=1")  # it is over in the next half minute
        tell("2", signal.SIGKILL)
        stop_in_a_run("3", process)
        cluster.command("sbatch", "--partition=urgent", "--nodelist=node2", "--output=/dev/null", "--wrap=true")
        restarted(cluster, "3", process)
        restarted(cluster, "1", process)
        cluster.command("scontrol", "update", "JobId=1", "TimeLimit=30")
    assert (tmp_path / "said").read_text("utf-8").count("it goes on in another job") == 1  # of the killed one
    assert results(tmp_path / "sweep") == played_here


def test_tasks_that_slurm_starts_are_one_fleet(tmp_path: Path) -> None:
    config = synthetic(tmp_path, rounds=5, clients=4)
    with slurm(tmp_path / "slurm") as cluster:
        words = ["srun", "--ntasks=2", "--nodes=2", *PAUSEFL, "allocation", str(config), "--shared", "shared"]
        environment = {**cluster.environment, "TMPDIR": gettempdir()}  # a socket's path is to be short
        subprocess.run(words, env=environment, cwd=tmp_path, check=True)
    assert rounds_in(tmp_path / "shared/run") == 5
    assert len(list(tmp_path.glob("shared/clients-1-of-1/ledgers/*.db"))) == 4


def stop_in_a_run(job: str, process: "subprocess.Popen[Any]") -> None:
    """Stop all processes of a job of Slurm in the midst of its run."""
    wait_for(lambda: run_of(processes_of(job)), f"a run in job {job}", running=process)
    tell(job, signal.SIGSTOP)


def tell(job: str, number: signal.Signals) -> None:
    for one in processes_of(job):
        with suppress(psutil.NoSuchProcess):
            one.send_signal(number)


def restarted(cluster: Cluster, job: str, process: "subprocess.Popen[Any]") -> None:
    """Return once Slurm has queued a job again."""
    wait_for(lambda: "Restarts=1" in cluster.command("scontrol", "show", "job", job), "a restart", running=process)
