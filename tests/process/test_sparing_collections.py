"""The garbage collector of a server process: it looks seldom, and not at what belongs to connected clients."""

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from pausefl.runtime.processes.resources import collect_seldom
from pausefl.runtime.server.process import sparing_clients
from pausefl_process.events import Notice, ProgressEvent, RoundCommitted


@pytest.fixture(autouse=True)
def own_collector() -> Iterator[None]:
    thresholds = gc.get_threshold()
    gc.set_threshold(700, *thresholds[1:])  # Python's own, whatever servers earlier tests have run in this process
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


def committed(connected: int) -> RoundCommitted:
    numbers: dict[str, Any] = dict.fromkeys(
        ("round", "rounds", "round_latency_s", "total_latency_s", "max_epsilon_spent", "rejected"), 1
    )
    unknown: dict[str, Any] = dict.fromkeys(("epsilon_budget", "privacy_unit", "budgets_end_after_round"))
    return RoundCommitted(
        chosen=(), connected=connected, wall_clock_s=1.0, selection_s=0.0, suspect=(), suspect_rounds=0,
        **numbers, **unknown,
    )  # fmt: skip


def test_a_process_of_many_objects_looks_for_garbage_seldom() -> None:
    before, *others = gc.get_threshold()
    collect_seldom()
    assert gc.get_threshold() == (10_000, *others)
    assert before < 10_000


def test_clients_are_spared_once_a_round_was_played_and_again_when_more_are_there() -> None:
    reported: list[ProgressEvent] = []
    report = sparing_clients(reported.append)
    spared = []
    for event in (Notice("no round yet"), committed(3), committed(3), committed(2), committed(4)):
        lasting: Any = [[] for _ in range(1000)]  # what a client brings
        report(event)
        spared.append(gc.get_freeze_count())
        del lasting
    assert spared[0] == 0
    assert spared[1] > 1000
    assert spared[1] >= spared[2] >= spared[3]
    assert spared[4] > spared[3]
    assert len(reported) == 5
