"""Threads that train: so many compute at once, and those that wait for a stated time keep nobody from computing."""

import threading
from concurrent.futures import Executor, Future, ThreadPoolExecutor

import pytest

from pausefl_client.jobs import Withdrawal
from pausefl_client.training.pace import TrainingPace, pace
from pausefl_client.training.trainer_pool import TrainerPool
from pausefl_client.training.withdrawal import Withdrawn, withdrawable
from rigs.session import SessionRig

HOUR_S = 3600.0


def begin_hour(pool: Executor) -> tuple[Withdrawal, "Future[None]"]:
    """A job that trains for an hour, of which it computes nothing; with what ends it."""
    withdrawal = Withdrawal()

    def train() -> None:
        with withdrawable(withdrawal):
            pace().during(HOUR_S, lambda: None)

    return withdrawal, pool.submit(train)


def test_who_waits_lets_others_compute() -> None:
    with TrainerPool(1) as pool:
        hours = [begin_hour(pool) for _ in range(3)]
        assert pool.submit(lambda: 7).result(20) == 7
        for withdrawal, done in hours:
            assert not done.done()
            withdrawal.set()
            with pytest.raises(Withdrawn):
                done.result(20)
        assert pool.submit(lambda: 8).result(20) == 8


async def test_clients_that_share_a_process_wait_for_their_stated_times_side_by_side() -> None:
    with TrainerPool(1) as pool:
        slow, fast = SessionRig(executor=pool), SessionRig(executor=pool)
        slow.state_time(HOUR_S)
        async with slow.running(), fast.running():
            (await slow.server.welcome()).give_job(slow.model, 1)
            stream = await fast.server.welcome()
            assert (await stream.ask(fast.model, 1))[0].round == 1


@pytest.mark.parametrize("trainers", [1, 3])
def test_no_more_compute_at_once_than_there_are_trainers(trainers: int) -> None:
    """Waits that are over, or take no time, change nothing of that."""
    computing, most, lock = 0, 0, threading.Lock()
    all_there = threading.Barrier(trainers, timeout=20)

    def compute(pace: TrainingPace) -> None:
        nonlocal computing, most
        with lock:
            computing += 1
            most = max(most, computing)
        all_there.wait()
        with lock:
            computing -= 1
        pace.wait(0.0)
        for _ in range(2):
            pace.wait(1e-6)

    with TrainerPool(trainers) as pool:
        for done in [pool.submit(lambda: compute(pace())) for _ in range(4 * trainers)]:
            done.result(20)
    assert most == trainers


def test_one_trainer_takes_jobs_in_their_order_and_goes_on_after_one_that_failed() -> None:
    seen: list[int] = []
    with TrainerPool(1) as pool:
        failing = pool.submit(lambda: 1 / 0)
        for done in [pool.submit(seen.append, number) for number in range(20)]:
            done.result(20)
        with pytest.raises(ZeroDivisionError):
            failing.result(20)
    assert seen == list(range(20))


def test_what_was_not_begun_is_cancelled_with_the_pool() -> None:
    gate, begun = threading.Event(), threading.Event()

    def compute() -> bool:
        begun.set()
        return gate.wait(20)

    pool = TrainerPool(1)
    first, second = pool.submit(compute), pool.submit(lambda: True)
    assert begun.wait(20)
    is_cancelled = threading.Event()
    second.add_done_callback(lambda _: is_cancelled.set())
    with ThreadPoolExecutor(1) as other:
        ending = other.submit(pool.shutdown)
        assert is_cancelled.wait(20)
        gate.set()
        ending.result(20)
    assert first.result(20)
    assert second.cancelled()
