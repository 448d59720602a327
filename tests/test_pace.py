"""How long a campaign says that it will still take."""

import pytest

from pausefl.campaigns.pace import CampaignPace, in_words
from rigs.clock import Clock

RUN_S = 600.0


def test_what_is_left_follows_from_the_runs_that_were_played() -> None:
    clock = Clock()
    pace = CampaignPace(clock=clock)
    for name in ("a", "b"):
        assert pace.left(5) == ("" if name == "a" else ", about 50 min left")
        pace.began(name)
        clock.advance(RUN_S)
        pace.ended(name)
    assert pace.left(0) == ""


def test_runs_under_way_count_with_what_they_still_take() -> None:
    clock = Clock()
    pace = CampaignPace(at_once=8, clock=clock)
    for i in range(8):
        pace.began(f"first-{i}")
    clock.advance(RUN_S)
    pace.ended("first-0")
    assert pace.left(8) == ", about 10 min left"
    for i in range(1, 8):
        pace.ended(f"first-{i}")
    for i in range(8):
        pace.began(f"second-{i}")
    clock.advance(0.7 * RUN_S)
    assert pace.left(0) == ", about 3 min left"


def test_a_run_that_went_on_says_nothing_of_the_others() -> None:
    clock = Clock()
    pace = CampaignPace(clock=clock)
    pace.began("resumed", is_resumed=True)
    clock.advance(30.0)
    pace.ended("resumed")
    assert pace.left(9) == ""


@pytest.mark.parametrize(("seconds", "words"), [(2.0, "1 min"), (89 * 60, "89 min"), (5400, "1.5 h")])
def test_durations_are_told_as_people_say_them(seconds: float, words: str) -> None:
    assert in_words(seconds) == words
