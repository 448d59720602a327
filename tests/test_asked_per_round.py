"""How many clients a round asked, told as it was: m of them is only what most policies ask."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pausefl.cli.summary_table import summary_table
from pausefl.report import report_runs
from pausefl.results.tally import RunTally
from pausefl.terminal_table import plain_console
from rigs.log import record
from test_report import summary, write_run


@pytest.mark.parametrize(
    ("chosen", "asked"),
    [(["abc", "a", "aab"], [1, 3]), (["ab", "bc"], [2, 2]), ([], None)],
)
def test_each_client_of_a_round_counts_once(chosen: Sequence[str], asked: list[int] | None) -> None:
    rounds = [record(t, chosen=tuple(clients)) for t, clients in enumerate(chosen, start=1)]
    assert RunTally(rounds).asked_per_round == asked


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"asked_per_round": [3, 3]}, "3"), ({"asked_per_round": [1, 3]}, "1 to 3"), ({}, "2")],
)
def test_terminal_and_report_say_how_many_were_asked(
    tmp_path: Path, changes: dict[str, Any], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An older run's summary has m alone, which is 2."""
    plain_console().print(summary_table(summary(data=None, final_accuracy=None, **changes)))
    assert f"3 with 3 clients, {words} a round" in capsys.readouterr().out
    page, *_ = report_runs([write_run(tmp_path / "run", **changes)], csv=False)
    assert f"{words} of 3 clients a round, seed 7." in page.read_text(encoding="utf-8")
