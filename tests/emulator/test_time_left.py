"""How long a campaign says that it will still take."""

import pytest

from pausefl.studies.time_left import in_words, time_left


@pytest.mark.parametrize(
    ("ended", "left", "under_way", "said"),
    [
        (0, 5, 0, ""),
        (2, 0, 0, ""),
        (2, 5, 0, ", about 50 min left"),
        (1, 15, 7, ", about 51 min left"),  # the first of eight at a time: the others are about to end
        (8, 8, 8, ", about 7 min left"),
    ],
)
def test_what_is_left_follows_from_what_has_ended(ended: int, left: int, under_way: int, said: str) -> None:
    assert time_left(1200.0, ended, left, under_way) == said


@pytest.mark.parametrize(("seconds", "words"), [(0.1, "1 s"), (2.9, "3 s"), (89 * 60, "89 min"), (5400, "1.5 h")])
def test_durations_are_told_as_people_say_them(seconds: float, words: str) -> None:
    assert in_words(seconds) == words
