"""Tables on a terminal of 60 columns: nothing that a wide terminal shows is cut."""

import io
import re
from collections.abc import Callable
from pathlib import Path

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from pausefl.cli.summary_table import summary_table
from pausefl.results.report.comparison import compare
from pausefl.runtime.terminal import TerminalView
from pausefl.studies.compare import print_comparison
from pausefl.terminal_table import FittingTable
from pausefl_process.events import Notice
from rigs.comparisons import grouped_runs
from rigs.events import evaluation, round_event
from rigs.reports import summary

COLUMNS = 60


def words(text: str) -> set[str]:
    """What is said, without the lines of tables."""
    return set(re.findall(r"[^\s\u2500-\u257f]+", text))


def shown(width: int, draw: Callable[[Console], None]) -> str:
    out = io.StringIO()
    draw(Console(file=out, width=width, color_system=None))
    return out.getvalue()


def check_nothing_is_cut(draw: Callable[[Console], None]) -> str:
    narrow, wide = shown(COLUMNS, draw), shown(400, draw)
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


def test_a_table_that_would_be_cut_is_lines_of_name_and_value() -> None:
    assert "…" in shown(COLUMNS, printed(wide_table()))
    narrow = check_nothing_is_cut(printed(FittingTable(wide_table())))
    assert "coordinates  101,632\n" in re.sub(r" +\n", "\n", narrow)
    assert widest(narrow) <= COLUMNS


def test_a_comparison_is_not_cut(tmp_path: Path) -> None:
    comparison = compare(grouped_runs(tmp_path))
    check_nothing_is_cut(lambda console: print_comparison(comparison, tmp_path, console))


def test_the_summary_of_a_run_fits_and_is_not_cut() -> None:
    data = "digits, examples: 1,200 with the clients, 297 for validation, 300 to test on"
    told = summary(data=data, best_round=2, test_examples=300)
    assert widest(check_nothing_is_cut(printed(summary_table(told)))) <= COLUMNS


def test_the_progress_of_a_run_fits_and_is_not_cut() -> None:
    def draw(console: Console) -> None:
        with TerminalView(console, "demo") as view:
            view.show(evaluation(10, 0.5))
            view.show(round_event(12, chosen=tuple(f"client-{k:03}" for k in (1, 2, 3, 5, 8, 13, 21)), missed_jobs=3))
            view.show(Notice("client-021 left: its stream broke while the server was waiting for its update"))

    narrow = check_nothing_is_cut(draw)
    assert "and 2 more" in re.sub(r"\s+", " ", narrow)
