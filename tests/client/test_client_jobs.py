"""The jobs of a client that have no answer yet: each can be withdrawn, and they take no more memory than a few."""

import pytest

from pausefl_client.jobs import Withdrawal, Withdrawals
from pausefl_proto.v1 import federation_pb2 as pb


def withdraw(withdrawals: Withdrawals, round: int) -> None:
    withdrawals.withdraw(pb.Withdraw(round=round, attempt=1))


def begin(withdrawals: Withdrawals, round: int) -> Withdrawal:
    return withdrawals.begin(pb.Job(round=round, attempt=1))


def test_a_job_that_is_given_again_is_withdrawn_only_if_that_is_said_again() -> None:
    withdrawals = Withdrawals()
    first = begin(withdrawals, 1)
    assert begin(withdrawals, 1) is first, "on another stream: it is the same job"
    withdraw(withdrawals, 1)
    again = begin(withdrawals, 1)
    assert (first.is_set(), again.is_set()) == (True, False)
    withdraw(withdrawals, 1)
    assert again.is_set()


def test_an_answered_job_is_withdrawn_no_more() -> None:
    withdrawals = Withdrawals()
    job = begin(withdrawals, 1)
    withdrawals.answered(pb.Job(round=1, attempt=1))
    withdraw(withdrawals, 1)
    withdrawals.withdraw_all()
    assert not job.is_set()


def test_of_64_jobs_without_an_answer_the_first_makes_room() -> None:
    withdrawals = Withdrawals()
    jobs = [begin(withdrawals, t) for t in range(1, 66)]
    for t in range(1, 66):
        withdraw(withdrawals, t)
    assert [job.is_set() for job in jobs] == [False] + [True] * 64


@pytest.mark.parametrize("is_withdrawn_before", [True, False])
def test_a_trainer_hears_of_a_withdrawal_that_came_before_it_asked_as_well(is_withdrawn_before: bool) -> None:
    withdrawal, heard = Withdrawal(), list[str]()
    if is_withdrawn_before:
        withdrawal.set()
    with withdrawal.telling(lambda: heard.append("withdrawn")):
        withdrawal.set()
        assert heard == ["withdrawn"]
