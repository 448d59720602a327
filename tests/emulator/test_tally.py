"""Figures and tables from a run's log: times, doubts, choices per group, CSV files."""

import csv
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pausefl.experiment.tables import ClientGroup
from pausefl.results.in_words import by_whom
from pausefl.results.selections import GroupChoices, choices_by_group, per_client_round, relevant_to_irrelevant
from pausefl.results.tables import write_csv, write_records
from pausefl.results.tally import RunTally
from pausefl_process.host_monitor import HostReport
from pausefl_server.host_limits import HostLimits, ordered
from pausefl_server.records import LogEvent, Miss, Observation, RoundRecord, Timing
from rigs.log import observation, record


def timed(*timings: Timing, drawn_s: float) -> RoundRecord:
    seen = tuple(
        Observation(f"c{i}", t, t.round_trip_s, 1, 0, 0.0, 0.0, drawn_down_s=drawn_s / 2, drawn_up_s=drawn_s / 2)
        for i, t in enumerate(timings)
    )
    return RoundRecord(1, 0, tuple(o.client_id for o in seen), None, seen, (), 1.0)


IN_TIME = Timing(1.02, download_s=0.1, train_s=0.5, injected_up_s=0.4, upload_s=0.01)
LATE = Timing(1.32, download_s=0.1, train_s=1.2, upload_s=0.01)


def test_an_overrun_is_an_update_ready_after_it_was_due_and_a_total_is_held_against_the_round_trip() -> None:
    """Errors are absolute values. With a sign, delays that were not held hid behind the other clients' quantiles."""
    assert RunTally([timed(IN_TIME, LATE, drawn_s=1.0), timed(LATE, drawn_s=1.0)]).overruns == 2
    assert RunTally([timed(IN_TIME, LATE, drawn_s=2.0)]).overruns == 0
    rounds = [timed(IN_TIME, drawn_s=1.0)]
    assert RunTally(rounds, mode="total").timing_error_s["p50"] == pytest.approx(0.02)
    assert RunTally(rounds).timing_error_s["p50"] == pytest.approx(0.48)
    rounds = [timed(*9 * [IN_TIME], drawn_s=0.5), timed(IN_TIME, drawn_s=1e6)]
    found = RunTally(rounds).timing_error_s
    assert found["p50"] == pytest.approx(0.02)
    assert found["p99"] is not None
    assert found["p99"] > 1e5


def test_a_client_that_makes_rounds_suspect_is_named() -> None:
    """A client's report of its host cannot be checked, but the table shows who reports trouble in every round."""
    limits, busy = HostLimits(steal_share=0.2), HostReport(steal_share=0.3)
    played = timed(IN_TIME, IN_TIME, IN_TIME, drawn_s=0.5)
    rounds = []
    for who in ({0}, {0, 2}, {0}, set()):
        seen = [dataclasses.replace(o, host=busy) if i in who else o for i, o in enumerate(played.observations)]
        seen = [dataclasses.replace(o, suspect=tuple(limits.of_client(o.host, "round_trip"))) for o in seen]
        doubts = ordered(doubt for o in seen for doubt in o.suspect)
        rounds.append(dataclasses.replace(played, observations=tuple(seen), suspect=doubts))
    found = RunTally(rounds).suspect_because["clients steal_share"]
    assert (found["rounds"], found["clients"]) == (3, {"c0": 3, "c2": 1})
    assert by_whom(found["clients"]) == "; c0 (3), c2 (1)"
    assert by_whom({f"c{i}": 9 - i for i in range(6)}) == "; c0 (9), c1 (8), c2 (7), c3 (6) and 2 more"
    doubts = (*limits.of_server(busy), *limits.of_client(busy, "round_trip"))
    seen = [dataclasses.replace(o, suspect=doubts) for o in played.observations]  # the server was busy meanwhile
    both = dataclasses.replace(played, observations=tuple(seen), suspect=ordered(reversed(doubts)))
    clients = [(doubt, found["clients"]) for doubt, found in RunTally([both]).suspect_because.items()]
    assert clients == [("server steal_share", {}), ("clients steal_share", {"c0": 1, "c1": 1, "c2": 1})]


@pytest.mark.parametrize(("chosen", "asked"), [(["abc", "a", "aab"], [1, 3]), (["ab", "bc"], [2, 2]), ([], None)])
def test_each_client_of_a_round_counts_once(chosen: Sequence[str], asked: list[int] | None) -> None:
    rounds = [record(t, chosen=tuple(clients)) for t, clients in enumerate(chosen, start=1)]
    assert RunTally(rounds).asked_per_round == asked


def test_the_time_of_selections_is_their_median() -> None:
    assert RunTally([record(t, selection_s=t * t) for t in (1, 2, 4)]).selection_s_median == 4


def test_places_are_idle_while_nobody_is_at_work_and_staleness_is_a_mean_over_updates() -> None:
    late = observation("b", handed_out_s=2.0, came_back_s=2.5, staleness=3)
    again = observation("a", handed_out_s=3.0, came_back_s=3.5)
    tally = RunTally([record(1, observation("a", came_back_s=3.0), late), record(2, again)])
    assert tally.clients_at_work(4.0) == 1.0
    assert [tally.idle_share(*of) for of in ((4.0, None), (4.0, 4), (2.0, 1))] == [0.5, 0.75, 0.0]
    assert tally.staleness == {"mean": 1.0, "max": 3}
    missed = record(1, misses=(Miss("b", "timeout", 2.0, 2.0, at_work_s=2.0),))
    assert RunTally([missed], [missed], broken_off=[{"a": 1.0}]).clients_at_work(4.0) == 1.25


GROUPS = {
    "original": ClientGroup(count=2),
    "relevant": ClientGroup(count=2, role="relevant"),
    "poisoned": ClientGroup(count=2, role="irrelevant"),
}


def log(*rounds: tuple[Sequence[LogEvent], Sequence[str]]) -> list[RoundRecord]:
    """The records of rounds, each given as (events before it, clients chosen)."""
    return [record(t, chosen=tuple(chosen), events=tuple(events)) for t, (events, chosen) in enumerate(rounds, 1)]


def joined(*ids: str) -> list[LogEvent]:
    return [LogEvent("joined", client_id) for client_id in ids]


def counts(choices: Mapping[str, GroupChoices], group: str) -> tuple[list[int], list[int]]:
    return choices[group].eligible.tolist(), choices[group].chosen.tolist()


def test_a_client_can_be_chosen_while_it_is_connected_and_not_retired() -> None:
    records = log(
        (joined("original-000", "original-001"), ("original-000",)),
        (joined("relevant-000"), ("original-001", "relevant-000")),
        ([LogEvent("left", "original-000")], ("original-001", "relevant-000")),
        ([*joined("original-000"), LogEvent("retired", "original-001")], ("original-000", "original-000")),
    )
    choices = choices_by_group(records, GROUPS)
    assert counts(choices, "original") == ([2, 2, 1, 1], [1, 1, 1, 2])
    assert counts(choices, "relevant") == ([0, 1, 1, 1], [0, 1, 1, 0])
    assert (choices["original"].clients, choices["original"].join_round) == (2, 1)
    assert choices["relevant"].join_round == 2
    assert per_client_round([choices["relevant"]]) == pytest.approx(2 / 3)


def test_a_group_that_never_came_has_no_share_and_clients_of_failed_attempts_are_known() -> None:
    choices = choices_by_group(log((joined("original-000", "a-stranger", "alone"), ("alone", "a-stranger"))), GROUPS)
    assert counts(choices, "original") == ([1], [0])
    assert per_client_round([choices["original"]]) == 0
    assert (choices["poisoned"].clients, choices["poisoned"].join_round) == (0, None)
    assert per_client_round([choices["poisoned"]]) is None
    failed, answered = log((joined("original-000", "original-001"), ("original-000",)), ((), ("original-001",)))
    played = replace(answered, round=1, attempt=2, failed_attempts=(failed,))
    assert counts(choices_by_group([played], GROUPS), "original") == ([2], [1])


def test_the_ratio_is_of_newcomers_per_client_and_round() -> None:
    rounds = [
        (joined("relevant-000"), ("relevant-000",)),  # an original, despite its group's name
        (joined("relevant1-000", "poisoned-000", "poisoned-001"), ("relevant1-000", "poisoned-000")),
        ([], ("relevant1-000",)),
    ]
    groups = {
        "relevant": ClientGroup(count=1, role="relevant"),
        "relevant1": ClientGroup(count=1, role="relevant"),
        "poisoned": ClientGroup(count=2, role="irrelevant"),
    }
    assert relevant_to_irrelevant(choices_by_group(log(*rounds), groups)) == 1 / (1 / 4)
    assert relevant_to_irrelevant(choices_by_group(log(*rounds[:1]), groups)) is None
    relevant_alone = {name: groups[name] for name in ("relevant", "relevant1")}
    assert relevant_to_irrelevant(choices_by_group(log(*rounds), relevant_alone)) is None
    never = [rounds[0], (rounds[1][0], ("relevant1-000",))]
    assert relevant_to_irrelevant(choices_by_group(log(*never), groups)) is None


def test_a_groups_role_is_what_its_table_says_whatever_the_group_is_called() -> None:
    second = joined("relevant-000", "good-000"), ("good-000", "relevant-000")
    rounds = [(joined("old-000"), ("old-000",)), second, ((), ("good-000",))]
    groups = {
        "old": ClientGroup(count=1),
        "relevant": ClientGroup(count=1, role="irrelevant"),
        "good": ClientGroup(count=1, role="relevant"),
    }
    assert relevant_to_irrelevant(choices_by_group(log(*rounds), groups)) == 2
    unsaid = {**groups, "relevant": ClientGroup(count=1)}
    assert relevant_to_irrelevant(choices_by_group(log(*rounds), unsaid)) is None


def test_a_table_is_read_back_as_it_was_but_no_text_is_a_formula_to_a_spreadsheet(tmp_path: Path) -> None:
    """Clients' texts go into tables, and one of them may be `=HYPERLINK(...)`. Numbers stay numbers."""
    formulas = ["=1+1", "+1", "-1", "@a"]
    rows: list[list[Any]] = [['comma, quote"', 0.1], ["ε", None], ["a=1", -0.5], *[[text, ""] for text in formulas]]
    write_csv(tmp_path / "a.csv", ["name", "value"], rows)
    assert b"\r" not in (tmp_path / "a.csv").read_bytes()
    with (tmp_path / "a.csv").open(encoding="utf-8", newline="") as file:
        header, *found = csv.reader(file)
    assert header == ["name", "value"]
    assert found[:3] == [['comma, quote"', "0.1"], ["ε", ""], ["a=1", "-0.5"]]
    assert found[3:] == [[f"'{text}", ""] for text in formulas]


def test_records_have_a_column_for_each_name_and_a_table_that_breaks_off_leaves_the_one_before(tmp_path: Path) -> None:
    def rows() -> Iterator[list[int]]:
        yield [1]
        raise OSError("the disk is full")

    write_records(tmp_path / "a.csv", [{"a": 1}, {"b": 2, "a": 3}])
    with pytest.raises(OSError, match="full"):
        write_csv(tmp_path / "a.csv", ["x"], rows())
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]
    assert (tmp_path / "a.csv").read_text("utf-8") == "a,b\n1,\n3,2\n"
