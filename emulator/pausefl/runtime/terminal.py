"""The live view of a run: a fold over its progress events, shown on a terminal or as plain lines."""

import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pausefl.runtime.processes.logs import is_asked_for
from pausefl.runtime.processes.outbox import READ_WITHIN_S, is_file, posted
from pausefl.terminal_table import FittingTable, plain_console
from pausefl_process.events import (
    Finished,
    Interrupted,
    MetricsServed,
    ModelEvaluated,
    Notice,
    Preparing,
    ProgressEvent,
    Ready,
    Report,
    RoundCommitted,
    WaitingForClients,
    print_event,
    write_event,
)

log = logging.getLogger("pausefl")

LAST_ROUNDS = 8
LAST_MESSAGES = 3
NAMED_CLIENTS = 5
PLAIN_INTERVAL_S = 0.5


def make_view(console: Console, title: str) -> AbstractContextManager[Report]:
    """A live display on a terminal, plain lines elsewhere, or only notices in quiet mode."""
    if is_asked_for("quiet"):
        return nullcontext(print_notice)
    can_redraw = console.is_terminal and not console.is_dumb_terminal
    return terminal_view(console, title) if can_redraw else PlainView(console, title)


def printed_events(title: str) -> AbstractContextManager[Report]:
    """Print a process's events to stdout: plain lines on a terminal; JSON elsewhere and with --log-json."""
    console = plain_console()
    if is_asked_for("quiet"):
        return nullcontext(print_notice)
    if is_asked_for("json") or not console.is_terminal:
        write = write_event if is_file(sys.stdout) else print_event
        return posted(_while_read(write), end_within_s=READ_WITHIN_S)
    return PlainView(console, title)


def print_notice(event: ProgressEvent) -> None:
    """Print a notice to standard error. Ignore other events."""
    if isinstance(event, Notice):
        print(event.message, file=sys.stderr)


def to_output(report: Report, event: ProgressEvent) -> None:
    """Report, and raise errors of the output without their number: ENOSPC would be taken for the run directory's."""
    try:
        report(event)
    except OSError as error:
        raise type(error)(error.strerror) from error


def _while_read(report: Report) -> Report:
    """Report while the disk has room, and until the reader has gone: neither may end a process others depend on."""
    failed: OSError | None = None

    def show(event: ProgressEvent) -> None:
        nonlocal failed
        try:
            if not isinstance(failed, BrokenPipeError):
                report(event)
                failed = None
        except OSError as error:
            if failed is None:
                log.warning("progress is not printed: %s", error)
            failed = error

    return show


@dataclass(frozen=True)
class RunProgress:
    """The run so far. Immutable: the display's thread reads it while events come in."""

    status: str = "starting"
    connected: int = 0
    rounds: tuple[RoundCommitted, ...] = ()
    """The last "round" events, oldest first."""
    accuracies: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    """The last value and its round, by split and metric, such as "test accuracy"."""
    messages: tuple[str, ...] = ()
    where: str = ""
    """Where the live page and the metrics are; empty if they are not served."""
    began_s: float = 0.0
    """When the display began, on this process's clock: the run's own clock may be virtual."""
    first_round: int = 0
    """The first round that was reported."""
    first_s: float = 0.0
    """When the first round was reported, on this process's clock, too."""
    last_s: float = 0.0

    @property
    def last(self) -> RoundCommitted | None:
        """The last round's event."""
        return self.rounds[-1] if self.rounds else None

    @property
    def time_left_s(self) -> float | None:
        """The estimated time left at the mean pace so far; None until two rounds were reported."""
        if self.last is None or self.last.round <= self.first_round:
            return None
        pace_s = (self.last_s - self.first_s) / (self.last.round - self.first_round)
        return pace_s * (self.last.rounds - self.last.round)


def fold(progress: RunProgress, event: ProgressEvent, now_s: float) -> RunProgress:
    """The progress after `event`, which arrived at `now_s`."""
    changes: dict[str, Any] = {}
    match event:
        case Ready(port):
            changes = {"status": f"listening at port {port}"}
        case Preparing(what):
            changes = {"status": what}
        case WaitingForClients(connected, minimum, missing):
            named = f", {', '.join(missing)} missing" if missing and connected else ""
            changes = {"status": f"waiting for clients: {connected} of {minimum}{named}", "connected": connected}
        case RoundCommitted():
            rounds = (*progress.rounds, event)[-LAST_ROUNDS:]
            changes = {"status": "running", "connected": event.connected, "rounds": rounds, "last_s": now_s}
            if not progress.rounds:
                changes |= {"first_round": event.round, "first_s": now_s}
        case ModelEvaluated(round, split, accuracy, metric=metric):
            changes = {"accuracies": {**progress.accuracies, f"{split} {metric}": (accuracy, round)}}
        case Notice(message) | Interrupted(message):
            changes = {"messages": (*progress.messages, message)[-LAST_MESSAGES:]}
        case MetricsServed(url, page):
            changes = {"where": f"{f'live page at {page}  ' if page else ''}metrics at {url}"}
        case Finished(reason):
            changes = {"status": f"finished: {reason}"}
    return replace(progress, **changes)


@contextmanager
def terminal_view(console: Console, title: str, clock: Callable[[], float] = time.monotonic) -> Iterator[Report]:
    """A display that is redrawn four times a second, however many rounds there are in between."""
    progress = RunProgress(began_s=clock())

    def show(event: ProgressEvent) -> None:
        nonlocal progress
        progress = fold(progress, event, clock())

    with Live(console=console, get_renderable=lambda: _picture(title, progress), refresh_per_second=4) as live:
        live.refresh()
        yield show


def _picture(title: str, progress: RunProgress) -> RenderableType:
    clients = f"{progress.connected} client{'s' * (progress.connected != 1)} connected"
    said = "  ".join(filter(None, (progress.status, clients, progress.where)))
    parts: list[RenderableType] = [Text.assemble((title, "bold"), "  ", (said, "dim"))]
    if progress.last:
        numbers, rounds = _numbers(progress, progress.last), _rounds(progress)
        parts += [_bar(progress, progress.last), Text(), numbers, Text(), rounds]
    parts += [Text(message, style="yellow", overflow="fold") for message in progress.messages]
    return Group(*parts)


class PlainView:
    """Plain lines for logs and pipes, at most two rounds a second. A line's totals include the rounds skipped."""

    def __init__(self, console: Console, title: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._title = title
        self._clock = clock
        self._progress = RunProgress()
        self._next_s = 0.0
        self._held: list[str] = []
        """The last line that is held back, other than a notice."""
        self._notices: list[str] = []
        """The first few notices that are held back. Further ones are only counted, in `_unread`."""
        self._unread = 0

    def show(self, event: ProgressEvent) -> None:
        """Print one event now, or hold it back until half a second has passed since the last line."""
        self._progress = fold(self._progress, event, self._clock())
        line = _line(self._progress, event)
        if line is None:
            return
        is_of_a_wait = isinstance(event, Notice) and event.topic in ("waiting", "evaluator")  # no event follows soon
        if is_of_a_wait or isinstance(event, Ready | Preparing | MetricsServed | Interrupted | Finished):
            self._print(*self._held, line)
        elif self._clock() >= self._next_s:
            self._print(line)
        elif not isinstance(event, Notice):
            self._held = [line]
        elif len(self._notices) < LAST_MESSAGES:
            self._notices.append(line)
        else:
            self._unread += 1

    def __enter__(self) -> Report:
        self._print(self._title)
        self._next_s = 0.0
        return self.show

    def __exit__(self, *_: object) -> None:
        self._print(*self._held)

    def _print(self, *lines: str) -> None:
        """Print the notices that are held back, then these lines, if there are any of either."""
        if shown := "\n".join([*self._notices, *lines]):
            unread = f"  (+{self._unread} messages not shown)" if self._unread else ""
            self._console.print(Text(shown + unread), soft_wrap=True)
        self._held, self._notices, self._unread = [], [], 0
        self._next_s = self._clock() + PLAIN_INTERVAL_S


def _line(progress: RunProgress, event: ProgressEvent) -> str | None:
    """An event in one line; None if the next round's line will show it."""
    match event:
        case Ready() | Preparing() | WaitingForClients() | Finished():
            return progress.status
        case MetricsServed():
            return progress.where
        case Notice(message) | Interrupted(message):
            return message
        case RoundCommitted():
            return "  ".join([f"round {event.round}/{event.rounds}", *_facts(progress, event)])
        case ModelEvaluated(round, split, accuracy, metric=metric) if progress.last and round >= progress.last.rounds:
            of = "of a part of the data" if event.subset else "of all data"
            return f"{split} {metric} {accuracy:.1%} after round {round}, {of}"
    return None


def _facts(progress: RunProgress, last: RoundCommitted) -> Iterator[str]:
    for name, (accuracy, number) in progress.accuracies.items():
        yield f"{name} {accuracy:.1%} (round {number})"
    yield f"latency {last.total_latency_s:,.2f} {_unit(last)}"
    if last.privacy_unit is not None:
        yield f"ε {last.max_epsilon_spent:.3g} of {last.epsilon_budget:g} ({last.privacy_unit})"
    yield f"{last.connected} client{'s' * (last.connected != 1)}"
    if last.rejected:
        yield f"{last.rejected} rejected"
    if last.missed_jobs:
        yield f"{last.missed_jobs} missed"
    if last.suspect_rounds:
        yield f"suspect rounds {last.suspect_rounds}"
    if progress.time_left_s:
        yield f"{_duration(progress.time_left_s)} left"


def _unit(event: RoundCommitted) -> str:
    """The unit of latencies; elapsed times are in real seconds."""
    return "s" if event.time_scale == 1 else "emulated s"


def _duration(seconds: float) -> str:
    minutes, s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{s:02}" if hours else f"{minutes}:{s:02}"


def _bar(progress: RunProgress, last: RoundCommitted) -> Table:
    done, total = last.round, last.rounds
    left = progress.time_left_s
    bar = Table.grid(padding=(0, 2), expand=True)
    bar.add_column(ratio=1)
    bar.add_column(no_wrap=True)
    times = [f"{_duration(progress.last_s - progress.began_s)} elapsed", *([f"{_duration(left)} left"] if left else [])]
    bar.add_row(ProgressBar(total=total, completed=done), Text(f"round {done}/{total}  {', '.join(times)}"))
    return bar


def _numbers(progress: RunProgress, last: RoundCommitted) -> FittingTable:
    cells = {name: f"{accuracy:.1%}" for name, (accuracy, _) in sorted(progress.accuracies.items())}
    cells["total latency"] = f"{last.total_latency_s:,.1f} {_unit(last)}"
    if last.privacy_unit is not None:
        cells[f"greatest ε ({last.privacy_unit})"] = f"{last.max_epsilon_spent:.3g} of {last.epsilon_budget:g}"
    cells["selection"] = f"{1e3 * last.selection_s:.2f} ms"
    cells["rejected"] = str(last.rejected)
    if last.missed_jobs:
        cells["missed jobs"] = str(last.missed_jobs)
    cells["suspect rounds"] = str(last.suspect_rounds)
    table = Table(*cells, box=None, show_edge=False, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    table.add_row(*cells.values(), style="bold")
    return FittingTable(table)


def _rounds(progress: RunProgress) -> Table:
    """The last rounds, newest on top."""
    table = Table(box=None, show_edge=False, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    table.add_column("round", justify="right")
    table.add_column("latency", justify="right")
    table.add_column("chosen", overflow="fold")
    for event in reversed(progress.rounds):
        named, more = event.chosen[:NAMED_CLIENTS], len(event.chosen) - NAMED_CLIENTS
        chosen = Text(", ".join(named) + (f" and {more} more" if more > 0 else ""))
        table.add_row(str(event.round), f"{event.round_latency_s:.3f} {_unit(event)}", chosen)
    return table
