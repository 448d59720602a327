"""Threads that work in virtual time: they compute in parallel, and virtual time waits for them."""

import heapq
import math
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from pausefl_client.training.pace import TrainingPace, paced_by
from pausefl_client.training.withdrawal import job_at_hand, stop_if_withdrawn
from pausefl_process.machine import available_cores

Result = TypeVar("Result")

# How many jobs may stand still at one virtual moment. Each has a thread, which then costs only its stack.
_MOST_THREADS = 10_000


@dataclass(slots=True)
class _Job:
    """One piece of work: not begun, computing, standing still until it is due, or done."""

    number: int
    run: Callable[[], None]
    not_before_s: float = 0.0
    """While the job computes: the virtual time before which it will not come back."""
    may_go_on: threading.Event = field(default_factory=threading.Event)


class Workers(TrainingPace, Executor):
    """The clock of a virtual loop, and the executor of work that takes time on it.

    A job's own time passes only in `wait`, `compute` and `during`. Its start, its end and its work after a wait happen
    while the loop stands still, in the order in which jobs were submitted. So runs can be repeated exactly.
    """

    def __init__(self, cores: int | None = None) -> None:
        """At most `cores` jobs compute in `during` at the same time; None: the number of available cores."""
        self.now_s = 0.0
        self._changed = threading.Condition()
        self._submitted: deque[_Job] = deque()
        self._computing: set[int] = set()  # the numbers of jobs whose threads run
        self._jobs: dict[int, _Job] = {}
        self._due: list[tuple[float, int]] = []  # heap of (when, number): jobs that stand still, or are done
        self._done: dict[int, Callable[[], None]] = {}  # number -> hands over the result
        self._numbers = 0
        self._is_shut = False
        self._own = threading.local()
        self._cores = threading.BoundedSemaphore(cores or available_cores())
        self._threads = ThreadPoolExecutor(_MOST_THREADS, "virtual")

    def begin_at(self, now_s: float) -> None:
        """Continue from an earlier process's clock, so that differences of times are rounded as they were there."""
        self.now_s = now_s

    # -- the executor

    def submit(self, fn: Callable[..., Result], /, *args: Any, **kwargs: Any) -> "Future[Result]":
        """Submit work that starts at the present virtual moment, once the loop has nothing else to do."""
        future: Future[Result] = Future()

        def run() -> None:
            self._own.job = job
            try:
                with paced_by(self):
                    result = fn(*args, **kwargs)
            except BaseException as error:
                self._end(job, partial(future.set_exception, error))
            else:
                self._end(job, lambda: future.set_result(result))

        self._numbers += 1
        job = _Job(self._numbers, run)
        self._submitted.append(job)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Begin no more jobs. Let jobs that stand still go on; later waits return at once."""
        self._submitted.clear()
        with self._changed:
            self._is_shut = True
            # A job that stands still goes on now, and is due again only at its end.
            self._due = [(due_s, number) for due_s, number in self._due if number in self._done]
            heapq.heapify(self._due)
            for job in self._jobs.values():
                job.may_go_on.set()
        self._threads.shutdown(wait=wait)

    # -- the pace of the work, in a job's thread

    def time_s(self) -> float:
        return self.now_s

    def wait(self, wait_s: float) -> None:
        """Wait for `wait_s` of virtual time. Raises Withdrawn at the virtual moment at which the job is withdrawn."""
        self._wait_until(self.now_s + wait_s)

    def compute(self, compute_s: float) -> None:
        """Let emulated computation take `compute_s` of virtual time only. See `wait`."""
        self.wait(compute_s)

    def during(self, duration_s: float, work: Callable[[], Result]) -> Result:
        """Do the work. It takes `duration_s` of virtual time, however long it really takes. Other work goes on.

        Raises Withdrawn as `wait` does, even if the work itself has failed.
        """
        stop_if_withdrawn()
        job, due_s = self._own.job, self.now_s + duration_s
        with job_at_hand().telling(lambda: self._hurry(job)):
            with self._changed:
                job.not_before_s = due_s
                self._changed.notify()
            try:
                with self._cores:
                    return work()
            finally:
                self._wait_until(due_s)

    def _wait_until(self, due_s: float) -> None:
        job: _Job = self._own.job
        with job_at_hand().telling(lambda: self._hurry(job)):
            with self._changed:
                if self._is_shut:  # no loop passes time any more
                    return
                job.may_go_on.clear()
                self._stand_still(job, self.now_s if job_at_hand().is_set() else due_s)
            job.may_go_on.wait()
        stop_if_withdrawn()

    def _hurry(self, job: _Job) -> None:
        """Let a job that is withdrawn come back at this virtual moment, whether it stands still or computes."""
        with self._changed:
            job.not_before_s = min(job.not_before_s, self.now_s)
            self._due = [(self.now_s if number == job.number else due_s, number) for due_s, number in self._due]
            heapq.heapify(self._due)

    def _stand_still(self, job: _Job, due_s: float) -> None:
        heapq.heappush(self._due, (due_s, job.number))
        self._computing.discard(job.number)
        self._changed.notify()

    def _end(self, job: _Job, hand_over: Callable[[], None]) -> None:
        with self._changed:
            self._done[job.number] = hand_over
            self._stand_still(job, self.now_s)

    # -- the loop's side

    def pass_time_until(self, due_s: float) -> bool:
        """Let time pass until `due_s`, or until an earlier job is due. Returns False if nothing is due."""
        with self._changed:
            while self._submitted:
                job = self._submitted.popleft()
                self._jobs[job.number] = job
                self._set_going(job, partial(self._threads.submit, job.run))
            while True:
                next_s = min(due_s, self._due[0][0] if self._due else math.inf)
                if not self._computing:
                    break
                # A job that computes may come back at the very moment it has promised.
                if next_s < min(self._jobs[number].not_before_s for number in self._computing):
                    break
                self._changed.wait()
            if next_s == math.inf:
                return False
            self.now_s = max(self.now_s, next_s)
            handed_over = self._let_go_on()
        for hand_over in handed_over:
            hand_over()
        return True

    def _let_go_on(self) -> list[Callable[[], None]]:
        """Let due jobs go on, each until it waits, computes or ends. Returns functions that hand over results."""
        handed_over = []
        while self._due and self._due[0][0] <= self.now_s:
            _, number = heapq.heappop(self._due)
            if number in self._done:
                handed_over.append(self._done.pop(number))
                del self._jobs[number]
            else:
                job = self._jobs[number]
                self._set_going(job, job.may_go_on.set)
        return handed_over

    def _set_going(self, job: _Job, go: Callable[[], Any]) -> None:
        """Let a job's thread run until it stands still, ends, or promises not to come back at this moment."""
        job.not_before_s = self.now_s
        self._computing.add(job.number)
        go()
        while job.number in self._computing and job.not_before_s <= self.now_s:
            self._changed.wait()
