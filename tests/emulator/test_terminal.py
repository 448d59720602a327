"""The live view: what it makes of the server's events, on a terminal and in a log."""

import io

import pytest
from rich.console import Console

from pausefl.runtime.terminal import PlainView, RunProgress, TerminalView, fold, make_view
from pausefl_process.events import (
    Done,
    Finished,
    Interrupted,
    MetricsServed,
    Notice,
    Preparing,
    WaitingForClients,
)
from rigs.clock import Clock
from rigs.events import evaluation, round_event


def plain(clock: Clock) -> tuple[PlainView, io.StringIO]:
    out = io.StringIO()
    return PlainView(Console(file=out, width=40), "demo", clock), out


def test_plain_lines_say_where_the_run_is() -> None:
    clock = Clock()
    view, out = plain(clock)
    with view:
        view.show(Preparing("the evaluator makes the first model"))
        clock.advance(1)
        view.show(WaitingForClients(3, 30))
        view.show(round_event(10))
        clock.advance(4)
        view.show(evaluation(10, 0.5))
        view.show(round_event(12))
        view.show(Finished("all rounds done"))
    first, preparing, waiting, running, last = out.getvalue().splitlines()
    assert preparing == "the evaluator makes the first model"
    assert (first, waiting, last) == ("demo", "waiting for clients: 3 of 30", "finished: all rounds done")
    assert running == (
        "round 12/100  test accuracy 50.0% (round 10)  latency 3.00 s  ε 1.5 of 40 (coordinate)  30 clients"
        "  2 rejected  2:56 left"
    )


def test_who_is_waited_for_is_named() -> None:
    progress = fold(RunProgress(), WaitingForClients(28, 30, ("client-003", "client-017")), 0.0)
    assert progress.status == "waiting for clients: 28 of 30, client-003, client-017 missing"


def test_plain_lines_come_at_most_twice_a_second_and_the_last_round_is_not_lost() -> None:
    clock = Clock()
    view, out = plain(clock)
    with view:
        for number in range(1, 101):
            view.show(round_event(number))
            clock.advance(0.01)
    lines = out.getvalue().splitlines()
    assert len(lines) == 4
    assert lines[-1].startswith("round 100/100")


def test_the_first_messages_held_back_are_printed_and_the_others_counted() -> None:
    clock = Clock()
    view, out = plain(clock)
    with view:
        view.show(round_event(1))
        for client_id in "defgh":
            view.show(Notice(f"client {client_id} left"))
        clock.advance(1)
        view.show(round_event(2))
    *messages, last = out.getvalue().splitlines()[2:]
    assert messages == ["client d left", "client e left", "client f left"]
    assert last.startswith("round 2/100")
    assert last.endswith("(+2 messages not shown)")


def test_an_interrupt_is_answered_at_once() -> None:
    view, out = plain(Clock())
    with view:
        view.show(round_event(1))
        view.show(Interrupted("finishing"))
        assert out.getvalue().splitlines()[-1] == "finishing"


def test_plain_lines_without_privacy_name_no_epsilon() -> None:
    view, out = plain(Clock())
    with view:
        view.show(round_event(1, privacy_unit=None, epsilon_budget=None))
    assert "ε" not in out.getvalue()


def test_the_last_evaluation_is_printed_by_itself() -> None:
    clock = Clock()
    view, out = plain(clock)
    with view:
        view.show(round_event(100))
        clock.advance(1)
        view.show(evaluation(100, 0.75))
    assert out.getvalue().splitlines()[-1] == "test accuracy 75.0% after round 100, of all data"


def test_progress_is_a_fold_and_keeps_the_last_rounds_only() -> None:
    progress = RunProgress()
    for number in range(1, 21):
        progress = fold(progress, round_event(number), now_s=0.0)
    assert [event.round for event in progress.rounds] == list(range(13, 21))
    assert fold(progress, Done(), now_s=1.0) == progress


@pytest.mark.parametrize("run_clock_s", [0.0, 1e6])
def test_the_time_left_is_real_time_whatever_clock_the_run_has(run_clock_s: float) -> None:
    progress = fold(RunProgress(), round_event(41, wall_clock_s=run_clock_s), now_s=500.0)
    assert progress.time_left_s is None  # how long a resumed run's first round took is not known
    progress = fold(progress, round_event(43, wall_clock_s=2 * run_clock_s), now_s=506.0)
    assert progress.time_left_s == pytest.approx(3.0 * 57)


def test_the_terminal_shows_the_numbers_and_ids_are_no_markup() -> None:
    out = io.StringIO()
    console, clock = Console(file=out, force_terminal=True, width=100, color_system=None), Clock()
    assert isinstance(make_view(console, "demo"), TerminalView)
    view = TerminalView(console, "demo", clock)
    with view:
        view.show(MetricsServed("http://127.0.0.1:9000/metrics"))
        view.show(round_event(10))
        clock.advance(4)
        view.show(evaluation(10, 0.5))
        view.show(round_event(12))
        view.show(Notice("client [b]d left"))
    shown = out.getvalue()
    for text in (
        *("round 12/100", "2:56 left", "50.0%", "3.0 s", "greatest ε (coordinate)", "1.5 of 40"),
        *("30 clients connected", "0.250 s", "[red]c, d", "client [b]d left", "127.0.0.1:9000"),
    ):
        assert text in shown


def test_a_terminal_is_asked_for_before_anything_is_known() -> None:
    out = io.StringIO()
    with make_view(Console(file=out, force_terminal=True, color_system=None), "demo"):
        pass
    assert "demo" in out.getvalue()


def test_a_pipe_gets_plain_lines() -> None:
    assert isinstance(make_view(Console(file=io.StringIO()), "demo"), PlainView)
