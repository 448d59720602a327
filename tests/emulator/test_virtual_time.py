"""Virtual time: an event loop that jumps to the next timer, and threads that work in its time."""

import asyncio
import random
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pausefl.runtime.virtual.event_loop import VirtualTimeLoop
from pausefl.runtime.virtual.workers import Workers
from pausefl_client.link import hold_until
from pausefl_client.training.pace import TrainingPace, pace
from pausefl_client.training.withdrawal import Withdrawal, Withdrawn, stop_if_withdrawn, withdrawable

HOUR_S = 3600.0


def run(main: Callable[[Workers], Coroutine[Any, Any, Any]], cores: int = 2) -> Any:
    """The value that `main` returns on a virtual loop."""
    workers = Workers(cores)
    with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(workers)) as runner, workers:
        return runner.run(main(workers))


def test_timers_fire_in_their_order_and_a_timeout_is_exact() -> None:
    async def main(_: Workers) -> list[tuple[str, float]]:
        clock, seen = asyncio.get_running_loop().time, list[tuple[str, float]]()

        async def note(name: str, after_s: float) -> None:
            await asyncio.sleep(after_s)
            seen.append((name, clock()))

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2.5):
                await asyncio.gather(note("c", 3.0), note("a", 1.0), note("b", 2.0))
        seen.append(("timeout", clock()))
        return seen

    assert run(main) == [("a", 1.0), ("b", 2.0), ("timeout", 2.5)]


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e-9))
def test_a_hold_ends_when_it_is_due_whatever_rounding_does(start_s: float, due_s: float, before_s: float) -> None:
    """An event loop takes timers up to its clock's resolution before they are due, along with one that is due."""

    async def main(_: Workers) -> float:
        clock = asyncio.get_running_loop().time
        await asyncio.sleep(start_s)
        other = asyncio.sleep(due_s - start_s - before_s)
        await asyncio.gather(other, hold_until(due_s, clock, spin_s=0.0))
        return clock()

    assert run(main) == pytest.approx(max(start_s, due_s), rel=1e-12, abs=1e-9)


def test_time_waits_for_work_and_the_work_takes_what_was_said() -> None:
    """A timer that is due during the work fires then; a timer due after the work's end fires after it."""

    async def main(workers: Workers) -> list[tuple[str, float]]:
        clock, seen = asyncio.get_running_loop().time, list[tuple[str, float]]()
        may_end = threading.Event()

        def work() -> str:
            return "done" if pace().during(2.0, lambda: may_end.wait(20)) else "never told to end"

        async def timer(after_s: float) -> None:
            await asyncio.sleep(after_s)
            seen.append(("timer", clock()))
            may_end.set()  # the work may really take any time before that

        async def working() -> None:
            seen.append((await asyncio.wrap_future(workers.submit(work)), clock()))

        await asyncio.gather(working(), timer(1.0), timer(3.0))
        return seen

    assert run(main) == [("timer", 1.0), ("done", 2.0), ("timer", 3.0)]


def test_jobs_of_one_moment_compute_side_by_side() -> None:
    async def main(workers: Workers) -> list[bool]:
        both = threading.Barrier(2, timeout=20)
        work = [workers.submit(lambda: pace().during(1.0, lambda: both.wait() >= 0)) for _ in range(2)]
        return await asyncio.gather(*map(asyncio.wrap_future, work))

    assert run(main) == [True, True]


def test_what_an_executor_does_takes_no_time_and_the_error_of_a_job_comes_when_its_time_is_over() -> None:
    async def main(workers: Workers) -> tuple[float, float, int]:
        seen, clock = await asyncio.to_thread(lambda: 7), asyncio.get_running_loop().time
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 / 0)
        at_once_s = clock()
        with pytest.raises(ZeroDivisionError):
            await asyncio.wrap_future(workers.submit(lambda: pace().during(1.5, lambda: 1 / 0)))
        return at_once_s, clock(), seen

    assert run(main) == (0.0, 1.5, 7)


def _compute_until_withdrawn() -> None:
    while True:
        stop_if_withdrawn()
        time.sleep(0.001)


TAKES_AN_HOUR: dict[str, Callable[[TrainingPace], None]] = {
    "waits": lambda pace: pace.wait(HOUR_S),
    "computes": lambda pace: pace.compute(HOUR_S),
    "has trained and waits": lambda pace: pace.during(HOUR_S, lambda: None),
    "trains": lambda pace: pace.during(HOUR_S, _compute_until_withdrawn),
    "waits within": lambda pace: pace.during(HOUR_S, lambda: pace.wait(HOUR_S / 2)),
}


@pytest.mark.parametrize("work", TAKES_AN_HOUR.values(), ids=TAKES_AN_HOUR.keys())
def test_a_job_ends_at_the_moment_in_which_it_is_withdrawn(work: Callable[[TrainingPace], None]) -> None:
    async def main(workers: Workers) -> float:
        withdrawal, begun = Withdrawal(), threading.Event()

        def job() -> None:
            with withdrawable(withdrawal):
                begun.set()
                work(pace())

        done = asyncio.wrap_future(workers.submit(job))
        await asyncio.sleep(1.5)
        assert begun.is_set()
        withdrawal.set()
        with pytest.raises(Withdrawn):
            await done
        return asyncio.get_running_loop().time()

    assert run(main) == 1.5


STEPS = st.lists(st.tuples(st.sampled_from(["wait", "during"]), st.sampled_from([0.0, 0.5, 1.0, 1.5])), max_size=4)


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0]), STEPS), max_size=6), st.integers(1, 4), st.randoms())
@settings(max_examples=25)
def test_the_same_jobs_do_the_same_in_the_same_order_however_long_they_really_take(
    jobs: list[tuple[float, list[tuple[str, float]]]], cores: int, rng: random.Random
) -> None:
    def trace(delays: list[float], cores: int) -> list[tuple[int, str, float]]:
        seen: list[tuple[int, str, float]] = []

        def work(number: int) -> None:
            for kind, seconds in jobs[number][1]:
                if kind == "wait":
                    pace().wait(seconds)
                else:
                    pace().during(seconds, lambda: time.sleep(delays[number]))
                seen.append((number, kind, pace().time_s()))

        async def main(workers: Workers) -> None:
            async def one(number: int) -> None:
                await asyncio.sleep(jobs[number][0])
                await asyncio.wrap_future(workers.submit(work, number))
                seen.append((number, "end", asyncio.get_running_loop().time()))

            await asyncio.gather(*(one(number) for number in range(len(jobs))))

        run(main, cores)
        return seen

    hurried = trace([0.0] * len(jobs), 1)
    assert trace([rng.random() * 0.003 for _ in jobs], cores) == hurried
    ends = {number: at_s for number, kind, at_s in hurried if kind == "end"}
    assert ends == {n: begin_s + sum(s for _, s in steps) for n, (begin_s, steps) in enumerate(jobs)}


def test_a_job_that_computes_while_all_ends_does_not_wait_for_ever() -> None:
    """Its wait begins after the end, when no loop advances time any more."""
    workers, begun, may_end, ended = Workers(1), threading.Event(), threading.Event(), threading.Event()

    def compute() -> None:
        begun.set()
        may_end.wait()

    def job() -> None:
        workers.during(1.0, compute)
        ended.set()

    workers.submit(job)
    assert workers.pass_time_until(0.5)
    assert begun.wait(10)
    workers.shutdown(wait=False)
    may_end.set()
    assert ended.wait(10)


def test_time_goes_on_after_a_job_that_stood_still_was_let_go() -> None:
    """A server's time goes on without clients, for example while its metrics stay up."""

    def job() -> str:
        pace().wait(2.0)
        return "ended"

    async def main(workers: Workers) -> tuple[str, float]:
        future = asyncio.wrap_future(workers.submit(job))
        await asyncio.sleep(1.0)
        workers.shutdown()
        await asyncio.sleep(5.0)
        return await future, workers.now_s

    assert run(main) == ("ended", 6.0)
