"""Output of commands: a console that shows text as it is, and a table for terminals of any width."""

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

_CUT = "…"  # what rich puts at the end of a word that it cuts


def plain_console(*, stderr: bool = False, quiet: bool = False) -> Console:
    """A console that does not interpret markup: names, paths and messages of users may contain `[x]`."""
    return Console(stderr=stderr, quiet=quiet, markup=False, emoji=False)


class FittingTable:
    """A table that fits any width. If it is too wide, each row becomes lines with a column's name and its value."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the table, or its rows as lines if the table would cut a word."""
        drawn = list(console.render(self._table, options))
        if any(_CUT in segment.text for segment in drawn):
            yield self._as_lines()
        else:
            yield from drawn

    def _as_lines(self) -> Group:
        columns = self._table.columns
        parts: list[RenderableType] = [self._table.title] if self._table.title else []
        for row in zip(*(column.cells for column in columns), strict=True):
            lines = Table.grid(padding=(0, 2))
            lines.add_column(style="dim", overflow="fold")
            lines.add_column(overflow="fold")
            for column, cell in zip(columns, row, strict=True):
                lines.add_row(column.header, _without_empty_end(cell))
            parts += [lines, Text()]
        return Group(*parts, *([self._table.caption] if self._table.caption else []))


def _without_empty_end(cell: RenderableType) -> RenderableType:
    if isinstance(cell, Text):
        cell = cell.copy()
        cell.rstrip()
    return cell
