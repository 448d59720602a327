"""The rows of a CSV file of measurements, as spreadsheets write it."""

import csv
from pathlib import Path

from pausefl_process.files import reason

NumberedRows = list[tuple[int, list[str]]]
"""Rows with their line numbers."""


def read_measurements(file: Path) -> tuple[list[str], NumberedRows]:
    """The header, and the rows up to the last that is not blank; ValueError that does not name the file."""
    try:
        # A spreadsheet may have put a byte order mark first.
        with file.open(encoding="utf-8-sig", newline="") as lines:
            reader = csv.reader(lines)
            header = [name.strip() for name in next(reader, [])]
            rows = [(reader.line_num, row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"cannot be read ({reason(error)})") from error
    while rows and not rows[-1][1]:
        rows.pop()
    if not (header or rows):
        raise ValueError("is empty")
    for line, row in rows:
        if len(row) > len(header):
            raise ValueError(
                f"line {line} has {len(row)} values and the header {len(header)} names; decimals need a point, no comma"
            )
    return header, rows


def place_of(column: str, header: list[str]) -> int:
    """Where the column of this name stands; ValueError unless there is one."""
    if (times := header.count(column)) > 1:
        raise ValueError(f"there are {times} columns of that name")
    if not times:
        raise ValueError(f"there is no such column (it has: {', '.join(header)})")
    return header.index(column)
