"""Tables as CSV files."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

_FORMULA = ("=", "+", "-", "@")
"""First characters of a formula (OWASP, CSV Injection)."""


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Iterable[Any]]) -> None:
    """Replace the file at `path` by a table, once it is whole; OSError leaves what was there before.

    UTF-8; a line ends in a newline alone, and None is an empty field. A text that a spreadsheet would take for a
    formula has an apostrophe before it: ids and reasons come from clients.
    """
    fresh = path.with_name(f".{path.name}.new")
    try:
        with fresh.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(columns)
            writer.writerows([_inert(value) for value in row] for row in rows)
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def _inert(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def write_records(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """Write a row for each record as `write_csv` does, with a column for each name that any of them has."""
    columns = list(dict.fromkeys(name for record in records for name in record))
    write_csv(path, columns, ([record.get(name) for name in columns] for record in records))
