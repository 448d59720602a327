"""Plays a campaign's runs as jobs of Slurm, by submitit (`--on slurm`)."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import submitit

from pausefl.outcomes import RunInterrupted
from pausefl_process.ending import INTERRUPTED
from pausefl_process.plugins import in_one_line
from pausefl_proto.errors import ConfigError

_LOOKS_EVERY_S = 3.0
# A job may for a while be neither in the queue nor have a result: network file systems show new files late.
_LOST_AFTER_LOOKS = 5
# How often a run continues in another job because its job ran out of time.
_MOST_TIMEOUTS = 1000


def slurm(options: Mapping[str, Any], folder: Path, whole_nodes: bool) -> Executor:
    """An executor of Slurm jobs. `options` are those of sbatch; the folder's `jobs` holds scripts and logs."""
    executor = submitit.SlurmExecutor(folder.absolute() / "jobs", max_num_timeout=_MOST_TIMEOUTS)
    known = executor._valid_parameters()
    given = {"job_name": "pausefl", **({"exclusive": True} if whole_nodes else {}), **options}
    more = {key: value for key, value in given.items() if key not in known}
    executor.update_parameters(additional_parameters=more, **{k: v for k, v in given.items() if k in known})
    return _SlurmExecutor(executor)


class _SlurmExecutor(Executor):
    """Runs calls as Slurm jobs and returns futures. One thread watches all the jobs."""

    def __init__(self, executor: submitit.SlurmExecutor) -> None:
        self._executor = executor
        self._jobs: list[_SlurmFuture] = []
        self._is_shut = threading.Event()
        self._thread = threading.Thread(target=self._look, name="slurm", daemon=True)
        self._thread.start()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        """Submit a job by sbatch. ConfigError with sbatch's message if it refuses."""
        try:
            job = self._executor.submit(_SlurmTask(partial(fn, *args, **kwargs)))
        except Exception as error:
            raise ConfigError(f"--on slurm: sbatch refuses the job ({in_one_line(error)})") from error
        future = _SlurmFuture(job)
        self._jobs.append(future)
        return future

    def shutdown(self, *_: object, **__: object) -> None:
        """Wait until all jobs have ended."""
        wait(self._jobs)
        self._is_shut.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._is_shut.wait(_LOOKS_EVERY_S):
            # OSError: the folder of the jobs cannot be read, or no process be started. The next look may succeed.
            with suppress(OSError):
                queued = _queued()
                for job in [job for job in self._jobs if not job.done()]:
                    job.look("unknown" if queued is None else queued.get(job.number, ""))


@dataclass(frozen=True)
class _SlurmTask:
    """Does the work in a Slurm job. If the work is interrupted, no result is left, so that the job can be requeued."""

    work: Callable[[], Any]

    def __call__(self) -> Any:
        outcome = self.work()
        return sys.exit(INTERRUPTED) if isinstance(outcome, RunInterrupted) else outcome

    def checkpoint(self) -> Any:
        """The job to queue if this one runs out of time or is preempted: the same one, as it resumes the run."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


class _SlurmFuture(Future[Any]):
    def __init__(self, job: submitit.Job[Any]) -> None:
        super().__init__()
        self.number = job.job_id
        self._job = job
        self._looks_lost = 0
        self._is_cancelled = False

    def cancel(self) -> bool:
        """Ask Slurm, only once, to end the job. Returns False: the future is done when the job has ended."""
        if not self._is_cancelled:
            self._is_cancelled = True
            self._job.cancel(check=False)
        return False

    def look(self, state: str) -> None:
        """Set the result if the job left one, and note whether it runs. `state` is its state in the queue, "" if none.

        The result of a job in the queue is not read: it may be of an earlier try that Slurm ended and requeued.
        """
        self._looks_lost = 0 if state else self._looks_lost + 1
        if state == "RUNNING" and not self.running():
            self.set_running_or_notify_cancel()
        if not state and self._job.paths.result_pickle.exists():
            try:
                self.set_result(self._job.result())
            except Exception as error:  # the job's own error, or the result cannot be read
                self.set_exception(error)
        elif self._looks_lost > _LOST_AFTER_LOOKS:
            log = self._job.paths.stderr
            self.set_exception(RunInterrupted(f"Slurm's job {self.number} ended without a result, see {log}"))


def _queued() -> dict[str, str] | None:
    """The state of each job in Slurm's queue, by job number; None if Slurm does not answer.

    Slurm's accounting also knows ended jobs, but it may be off.
    """
    words = ["squeue", "--noheader", "--me", "--format=%A %T"]
    whole = {name: value for name, value in os.environ.items() if not name.startswith("SQUEUE_")}  # as SQUEUE_PARTITION
    found = subprocess.run(words, capture_output=True, text=True, check=False, env=whole)
    return None if found.returncode else dict(line.split(maxsplit=1) for line in found.stdout.splitlines())
