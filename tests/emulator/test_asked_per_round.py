"""How many clients a round asked, told as it was: m of them is only what most policies ask."""

from collections.abc import Sequence

import pytest

from pausefl.results.tally import RunTally
from rigs.log import record


@pytest.mark.parametrize(
    ("chosen", "asked"),
    [(["abc", "a", "aab"], [1, 3]), (["ab", "bc"], [2, 2]), ([], None)],
)
def test_each_client_of_a_round_counts_once(chosen: Sequence[str], asked: list[int] | None) -> None:
    rounds = [record(t, chosen=tuple(clients)) for t, clients in enumerate(chosen, start=1)]
    assert RunTally(rounds).asked_per_round == asked
