"""How long a campaign says that it will still take."""

import pytest

from pausefl.campaigns.time_left import TimeLeft, in_words
from rigs.clock import Clock

RUN_S = 600.0


def test_what_is_left_follows_from_the_runs_that_were_played() -> None:
    clock = Clock()
    estimate = TimeLeft(clock=clock)
    for name in ("a", "b"):
        assert estimate.said(5) == ("" if name == "a" else ", about 50 min left")
        estimate.began(name)
        clock.advance(RUN_S)
        estimate.ended(name)
    assert estimate.said(0) == ""


def test_runs_under_way_count_with_what_they_still_take() -> None:
    clock = Clock()
    estimate = TimeLeft(at_once=8, clock=clock)
    for i in range(8):
        estimate.began(f"first-{i}")
    clock.advance(RUN_S)
    estimate.ended("first-0")
    assert estimate.said(8) == ", about 10 min left"
    for i in range(1, 8):
        estimate.ended(f"first-{i}")
    for i in range(8):
        estimate.began(f"second-{i}")
    clock.advance(0.7 * RUN_S)
    assert estimate.said(0) == ", about 3 min left"


def test_a_run_that_went_on_says_nothing_of_the_others() -> None:
    clock = Clock()
    estimate = TimeLeft(clock=clock)
    estimate.began("resumed", is_resumed=True)
    clock.advance(30.0)
    estimate.ended("resumed")
    assert estimate.said(9) == ""


@pytest.mark.parametrize(("seconds", "words"), [(2.0, "1 min"), (89 * 60, "89 min"), (5400, "1.5 h")])
def test_durations_are_told_as_people_say_them(seconds: float, words: str) -> None:
    assert in_words(seconds) == words


def test_fewer_runs_than_can_be_played_at_once_do_not_end_sooner() -> None:
    clock = Clock()
    estimate = TimeLeft(at_once=4, clock=clock)
    estimate.began("a")
    clock.advance(600.0)
    estimate.ended("a")
    assert estimate.said(1) == ", about 10 min left"
    assert estimate.said(8) == ", about 20 min left"
