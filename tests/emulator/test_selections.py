"""How often groups were chosen, counted from logs whose counts are known."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from pausefl.experiment.tables import ClientGroup
from pausefl.results.selections import GroupChoices, choices_by_group, relevant_to_irrelevant
from pausefl_server.records import LogEvent, RoundRecord
from rigs.log import record

GROUPS = {
    "original": ClientGroup(count=2),
    "relevant": ClientGroup(count=2, role="relevant"),
    "poisoned": ClientGroup(count=2, role="irrelevant"),
}


def log(*rounds: tuple[Sequence[LogEvent], Sequence[str]]) -> list[RoundRecord]:
    """Rounds as (what happened before, who was chosen)."""
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
    assert choices["relevant"].per_client_round == pytest.approx(2 / 3)


def test_clients_that_came_with_an_attempt_without_answers_are_known() -> None:
    failed, answered = log((joined("original-000", "original-001"), ("original-000",)), ((), ("original-001",)))
    played = replace(answered, round=1, attempt=2, failed_attempts=(failed,))
    assert counts(choices_by_group([played], GROUPS), "original") == ([2], [1])


def test_a_group_that_never_came_has_no_share_and_strangers_have_no_group() -> None:
    choices = choices_by_group(log((joined("original-000", "a-stranger", "alone"), ("alone", "a-stranger"))), GROUPS)
    assert counts(choices, "original") == ([1], [0])
    assert choices["original"].per_client_round == 0
    assert (choices["poisoned"].clients, choices["poisoned"].join_round) == (0, None)
    assert choices["poisoned"].per_client_round is None


def test_the_ratio_is_of_newcomers_per_client_and_round() -> None:
    rounds = [
        (joined("relevant-000"), ("relevant-000",)),  # an original, whatever its group is called
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
    rounds = [
        (joined("old-000"), ("old-000",)),
        (joined("relevant-000", "good-000"), ("good-000", "relevant-000")),
        ((), ("good-000",)),
    ]
    groups = {
        "old": ClientGroup(count=1),
        "relevant": ClientGroup(count=1, role="irrelevant"),
        "good": ClientGroup(count=1, role="relevant"),
    }
    assert relevant_to_irrelevant(choices_by_group(log(*rounds), groups)) == 2
    unsaid = {**groups, "relevant": ClientGroup(count=1)}
    assert relevant_to_irrelevant(choices_by_group(log(*rounds), unsaid)) is None
