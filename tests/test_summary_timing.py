"""What summary.json says about time: measured minus drawn, and the overruns of a run whose delays are totals."""

import pytest

from pausefl.results.tally import RunTally
from pausefl_server.records import Observation, RoundRecord, Timing


def record(*timings: Timing, drawn_s: float) -> RoundRecord:
    seen = tuple(
        Observation(f"c{i}", t, t.round_trip_s, 1, 0, 0.0, 0.0, drawn_down_s=drawn_s / 2, drawn_up_s=drawn_s / 2)
        for i, t in enumerate(timings)
    )
    return RoundRecord(1, 0, tuple(o.client_id for o in seen), None, seen, (), 1.0, 1.0, 0.0, "")


IN_TIME = Timing(1.02, download_s=0.1, train_s=0.5, injected_up_s=0.4, upload_s=0.01)
LATE = Timing(1.32, download_s=0.1, train_s=1.2, upload_s=0.01)


def test_an_overrun_is_an_update_ready_after_it_was_due() -> None:
    assert RunTally.of([record(IN_TIME, LATE, drawn_s=1.0), record(LATE, drawn_s=1.0)]).overruns == 2
    assert RunTally.of([record(IN_TIME, LATE, drawn_s=2.0)]).overruns == 0


def test_a_total_is_held_against_the_round_trip() -> None:
    rounds = [record(IN_TIME, drawn_s=1.0)]
    assert RunTally.of(rounds, mode="total").timing_error_s["p50"] == pytest.approx(0.02)
    assert RunTally.of(rounds).timing_error_s["p50"] == pytest.approx(0.48)


def test_delays_that_were_never_held_do_not_hide_behind_a_sign() -> None:
    """With it, both quantiles were those of the other clients."""
    rounds = [record(*9 * [IN_TIME], drawn_s=0.5), record(IN_TIME, drawn_s=1e6)]
    found = RunTally.of(rounds).timing_error_s
    assert found["p50"] == pytest.approx(0.02)
    assert found["p99"] is not None
    assert found["p99"] > 1e5
