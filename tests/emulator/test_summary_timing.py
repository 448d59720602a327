"""What summary.json says about time, about who made rounds suspect, and how many clients a round asked."""

import dataclasses
from collections.abc import Sequence

import pytest

from pausefl.results.summary import by_whom
from pausefl.results.tally import RunTally
from pausefl_process.host_monitor import HostReport
from pausefl_server.host_limits import HostLimits, ordered
from pausefl_server.records import Observation, RoundRecord, Timing
from rigs import log


def record(*timings: Timing, drawn_s: float) -> RoundRecord:
    seen = tuple(
        Observation(f"c{i}", t, t.round_trip_s, 1, 0, 0.0, 0.0, drawn_down_s=drawn_s / 2, drawn_up_s=drawn_s / 2)
        for i, t in enumerate(timings)
    )
    return RoundRecord(1, 0, tuple(o.client_id for o in seen), None, seen, (), 1.0, 1.0, 0.0, "")


IN_TIME = Timing(1.02, download_s=0.1, train_s=0.5, injected_up_s=0.4, upload_s=0.01)
LATE = Timing(1.32, download_s=0.1, train_s=1.2, upload_s=0.01)


def test_an_overrun_is_an_update_ready_after_it_was_due() -> None:
    assert RunTally([record(IN_TIME, LATE, drawn_s=1.0), record(LATE, drawn_s=1.0)]).overruns == 2
    assert RunTally([record(IN_TIME, LATE, drawn_s=2.0)]).overruns == 0


def test_a_total_is_held_against_the_round_trip() -> None:
    rounds = [record(IN_TIME, drawn_s=1.0)]
    assert RunTally(rounds, mode="total").timing_error_s["p50"] == pytest.approx(0.02)
    assert RunTally(rounds).timing_error_s["p50"] == pytest.approx(0.48)


def test_delays_that_were_never_held_do_not_hide_behind_a_sign() -> None:
    """With it, both quantiles were those of the other clients."""
    rounds = [record(*9 * [IN_TIME], drawn_s=0.5), record(IN_TIME, drawn_s=1e6)]
    found = RunTally(rounds).timing_error_s
    assert found["p50"] == pytest.approx(0.02)
    assert found["p99"] is not None
    assert found["p99"] > 1e5


def test_a_client_that_makes_rounds_suspect_is_named() -> None:
    """What a client says of its host cannot be checked: one that says ill of it in each round is known by that."""
    limits, busy = HostLimits(steal_share=0.2), HostReport(steal_share=0.3)
    played = record(IN_TIME, IN_TIME, IN_TIME, drawn_s=0.5)
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
    server = dataclasses.replace(rounds[0], suspect=tuple(limits.of_server(busy)))
    assert RunTally([server]).suspect_because["server steal_share"]["clients"] == {}


@pytest.mark.parametrize(("chosen", "asked"), [(["abc", "a", "aab"], [1, 3]), (["ab", "bc"], [2, 2]), ([], None)])
def test_each_client_of_a_round_counts_once(chosen: Sequence[str], asked: list[int] | None) -> None:
    rounds = [log.record(t, chosen=tuple(clients)) for t, clients in enumerate(chosen, start=1)]
    assert RunTally(rounds).asked_per_round == asked
