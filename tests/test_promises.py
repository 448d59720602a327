"""Each sentence of the README's "What you can rely on" is held by tests, which this file names."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

PROMISES = {
    "Latency is measured.": ["test_session.test_every_part_of_an_exchange_is_timed_where_it_happens"],
    "`round_trip_s` runs on the server's clock, from the first frame of the model handed over to the last frame of the"
    " update received.": [
        "test_client_actor.test_the_round_trip_runs_from_the_first_frame_handed_over_to_the_last_received",
    ],
    "It runs on when a stream is lost.": [
        "test_broken_streams.test_a_stream_lost_while_a_client_trains_does_not_make_it_look_faster",
    ],
    "Its parts are measured where they happen; no two machines' clocks are subtracted.": [
        "test_session.test_every_part_of_an_exchange_is_timed_where_it_happens",
    ],
    "A client that does not answer costs at least the time waited for it, and the log says so.": [
        "test_straggler.test_a_client_that_answers_after_30_s_costs_the_timeout_of_2_s_each_round"
    ],
    "The records that policies receive have no field for a drawn delay.": [
        "test_what_policies_see.test_a_policy_that_searches_its_arguments_finds_no_drawn_delay",
        "test_what_policies_see.test_no_type_a_policy_is_handed_has_a_field_for_them",
    ],
    "ε is charged before the first byte leaves, on the client and durably.": [
        "test_crash.test_no_kill_at_any_instant_under_counts",
        "test_release.test_nothing_is_written_to_the_stream_before_the_ledger_has_it",
    ],
    "When asked again, a client sends the same bytes again.": [
        "test_release.test_after_a_lost_connection_the_same_bytes_are_sent_again",
        "test_release.test_after_a_crash_the_same_bytes_are_there_again",
    ],
    "The log is the source of everything else.": ["test_end_to_end.test_both_ledgers_tell_the_same"],
    "What a policy knows is computed from `run.db`.": [
        "test_end_to_end.test_what_a_policy_finds_in_the_updates_is_in_the_log",
    ],
    "A resumed run replays it.": ["test_restart.test_a_run_in_two_parts_is_the_run_in_one"],
    "Kills, broken lines and full disks lose no committed round.": [
        "test_chaos.test_a_run_under_faults_loses_nothing_and_its_books_agree"
    ],
}


def _sentences() -> list[str]:
    """The section's sentences, without the links that end its points."""
    section = (ROOT / "README.md").read_text("utf-8").split("## What you can rely on")[1].split("\n\n")[1]
    plain = re.sub(r"\[[^]]*\]\([^)]*\)[^.]*\.", "", section.replace("**", ""))
    points = (re.sub(r"\s+", " ", point).strip() for point in plain.split("\n- "))
    return [s for point in points for s in re.split(r"(?<=\.) (?=[A-Z`ε])", point.removeprefix("- ")) if s]


def test_each_sentence_names_what_holds_it() -> None:
    assert _sentences() == list(PROMISES)


@pytest.mark.parametrize("test", sorted({test for tests in PROMISES.values() for test in tests}))
def test_what_holds_a_promise_is_there(test: str) -> None:
    file, _, name = test.partition(".")
    tree = ast.parse((Path(__file__).with_name(f"{file}.py")).read_text("utf-8"))
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
