"""The live view of the server's events, on a terminal and in a log."""

import io
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from pausefl.cli.experiments import summary_table
from pausefl.results.report.comparison import compare
from pausefl.runtime.terminal import PlainView, RunProgress, fold, make_view, terminal_view
from pausefl.studies.compare import print_comparison
from pausefl.terminal_table import FittingTable
from pausefl_process.events import (
    Done,
    Finished,
    Interrupted,
    MetricsServed,
    Notice,
    Preparing,
    ProgressEvent,
    WaitingForClients,
)
from rigs.clock import Clock
from rigs.comparisons import grouped_runs
from rigs.reports import summary
from rigs.telemetry import evaluation, round_event


def plain(*events: ProgressEvent | float) -> list[str]:
    """The plain lines printed for events; a number advances the clock by that many seconds."""
    out, clock = io.StringIO(), Clock()
    with PlainView(Console(file=out, width=40), "demo", clock) as show:
        for event in events:
            if isinstance(event, float):
                clock.advance(event)
            else:
                show(event)
    return out.getvalue().splitlines()


def test_plain_lines_say_where_the_run_is() -> None:
    served = MetricsServed("http://a:1/metrics", "http://a:1/")
    begun = Preparing("the first model is made"), served, 1.0, WaitingForClients(3, 30), round_event(10), 4.0
    end = evaluation(10, 0.5), round_event(12), Finished("all rounds done")
    first, preparing, where, waiting, running, last = plain(*begun, *end)
    assert (preparing, where) == (begun[0].what, "live page at http://a:1/  metrics at http://a:1/metrics")
    assert (first, waiting, last) == ("demo", "waiting for clients: 3 of 30", "finished: all rounds done")
    assert running == (
        "round 12/100  test accuracy 50.0% (round 10)  latency 3.00 s  ε 1.5 of 40 (coordinate)  30 clients"
        "  2 rejected  2:56 left"
    )


def test_plain_lines_come_at_most_twice_a_second_with_the_first_messages_and_the_last_round() -> None:
    lines = plain(*(event for number in range(1, 101) for event in (round_event(number), 0.01)))
    assert len(lines) == 4
    assert lines[-1].startswith("round 100/100")
    left = [Notice(f"client {client_id} left") for client_id in "defgh"]
    *messages, last = plain(round_event(1), *left, 1.0, round_event(2))[2:]
    assert messages == ["client d left", "client e left", "client f left"]
    assert last.startswith("round 2/100")
    assert last.endswith("(+2 messages not shown)")


@pytest.mark.parametrize("event", [Interrupted("finishing"), *(Notice("wait", of) for of in ("waiting", "evaluator"))])
def test_an_interrupt_is_answered_at_once_and_a_wait_is_announced(event: Interrupted | Notice) -> None:
    out = io.StringIO()
    with PlainView(Console(file=out, width=40), "demo", Clock()) as show:
        show(round_event(1))
        show(event)
        assert out.getvalue().splitlines()[-1] == event.message


def test_without_privacy_no_epsilon_is_named_and_the_last_evaluation_is_printed_by_itself() -> None:
    lines = plain(round_event(100, privacy_unit=None, epsilon_budget=None), 1.0, evaluation(100, 0.75))
    assert "ε" not in "".join(lines)
    assert lines[-1] == "test accuracy 75.0% after round 100, of all data"


def test_progress_is_a_fold_that_names_who_is_waited_for_and_keeps_the_last_rounds_only() -> None:
    progress = fold(RunProgress(), WaitingForClients(28, 30, ("client-003", "client-017")), 0.0)
    assert progress.status == "waiting for clients: 28 of 30, client-003, client-017 missing"
    assert fold(progress, WaitingForClients(0, 30, ("a", "b")), 0.0).status == "waiting for clients: 0 of 30"
    for number in range(1, 21):
        progress = fold(progress, round_event(number), now_s=0.0)
    assert [event.round for event in progress.rounds] == list(range(13, 21))
    assert fold(progress, Done(), now_s=1.0) == progress


@pytest.mark.parametrize("run_clock_s", [0.0, 1e6])
def test_the_time_left_is_real_time_whatever_clock_the_run_has(run_clock_s: float) -> None:
    progress = fold(RunProgress(), round_event(41, wall_clock_s=run_clock_s), now_s=500.0)
    assert progress.time_left_s is None  # the duration of a resumed run's first round is unknown
    progress = fold(progress, round_event(43, wall_clock_s=2 * run_clock_s), now_s=506.0)
    assert progress.time_left_s == pytest.approx(3.0 * 57)


def test_the_terminal_shows_the_numbers_and_ids_are_no_markup() -> None:
    out = io.StringIO()
    console, clock = Console(file=out, force_terminal=True, width=100, color_system=None), Clock()
    with terminal_view(console, "demo", clock) as show:
        show(MetricsServed("http://127.0.0.1:9000/metrics"))
        show(round_event(10))
        clock.advance(4)
        show(evaluation(10, 0.5))
        show(round_event(12))
        show(Notice("client [b]d left"))
    texts = ["round 12/100", "0:04 elapsed, 2:56 left", "50.0%", "3.0 s", "greatest ε (coordinate)", "1.5 of 40"]
    texts += ["30 clients connected", "0.250 s", "[red]c, d", "client [b]d left", "127.0.0.1:9000"]
    for text in texts:
        assert text in out.getvalue()


def test_a_terminal_is_shown_something_before_anything_is_known_and_a_pipe_gets_plain_lines() -> None:
    out = io.StringIO()
    with make_view(Console(file=out, force_terminal=True, color_system=None), "demo"):
        for console in (Console(file=out), Console(file=out, force_terminal=True, _environ={"TERM": "dumb"})):
            assert isinstance(make_view(console, "demo"), PlainView)
    assert "demo" in out.getvalue()


# -- a terminal of 60 columns shows all that a wide one does

COLUMNS = 60


def words(text: str) -> set[str]:
    """The words shown, without the lines of tables."""
    return set(re.findall(r"[^\s\u2500-\u257f]+", text))


def shown_at(width: int, draw: Callable[[Console], None]) -> str:
    out = io.StringIO()
    draw(Console(file=out, width=width, color_system=None))
    return out.getvalue()


def check_nothing_is_cut(draw: Callable[[Console], None]) -> str:
    narrow, wide = shown_at(COLUMNS, draw), shown_at(400, draw)
    assert words(wide) <= words(narrow), f"cut: {sorted(words(wide) - words(narrow))}\n{narrow}"
    return narrow


def printed(what: RenderableType) -> Callable[[Console], None]:
    return lambda console: console.print(what)


def widest(text: str) -> int:
    return max(map(len, text.splitlines()))


def wide_table() -> Table:
    table = Table("question", "seen", "p", "", title="releases of a process", caption="a caption")
    table.add_row("is the noise what the ledger charges?", "Kolmogorov-Smirnov", "0.25", "holds")
    table.add_row(Text("are-two-draws-ever-alike-in-any-process"), Text("none-of-10,000\n"), "", "BROKEN")
    table.add_column("coordinates", justify="right")
    table.columns[-1]._cells += ["101,632", "101,632"]
    return table


def test_a_table_that_would_be_cut_is_lines_of_name_and_value_and_a_comparison_is_not_cut(tmp_path: Path) -> None:
    assert "…" in shown_at(COLUMNS, printed(wide_table()))
    narrow = check_nothing_is_cut(printed(FittingTable(wide_table())))
    assert "coordinates  101,632\n" in re.sub(r" +\n", "\n", narrow)
    assert widest(narrow) <= COLUMNS
    comparison = compare(grouped_runs(tmp_path))
    check_nothing_is_cut(lambda console: print_comparison(comparison, tmp_path, console))


def test_the_summary_and_the_progress_of_a_run_fit_and_are_not_cut() -> None:
    data = "digits, examples: 1,200 with the clients, 297 for validation, 300 to test on"
    told = summary(data=data, best_round=2, test_examples=300)
    assert widest(check_nothing_is_cut(printed(summary_table(told)))) <= COLUMNS
    assert "…" not in shown_at(20, printed(summary_table(told)))
    assert "validated" not in check_nothing_is_cut(printed(summary_table(told | {"best_accuracy": None})))

    def draw(console: Console) -> None:
        with terminal_view(console, "demo") as show:
            show(evaluation(10, 0.5))
            show(round_event(12, chosen=tuple(f"client-{k:03}" for k in (1, 2, 3, 5, 8, 13, 21)), missed_jobs=3))
            show(Notice("client-021 left: its stream broke while the server was waiting for its update"))

    assert "and 2 more" in re.sub(r"\s+", " ", check_nothing_is_cut(draw))
