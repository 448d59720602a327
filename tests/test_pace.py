"""How long a campaign says that it will still take."""

import pytest

from pausefl.campaigns.pace import Pace, in_words
from rigs.clock import Clock


def test_what_is_left_follows_from_the_runs_that_were_played() -> None:
    clock = Clock()
    pace = Pace(clock)
    clock.advance(600)
    assert pace.left(8) == ""
    pace.note_played()
    clock.advance(600)
    pace.note_played()
    assert pace.left(3) == ", about 30 min left"
    assert pace.left(0) == ""


@pytest.mark.parametrize(("seconds", "words"), [(2.0, "1 min"), (89 * 60, "89 min"), (5400, "1.5 h")])
def test_durations_are_told_as_people_say_them(seconds: float, words: str) -> None:
    assert in_words(seconds) == words
