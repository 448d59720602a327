"""Tables of results: CSV files, and pandas DataFrames if pandas is installed."""

import codecs
import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pausefl.extras import needs
from pausefl_process.files import replaced

if TYPE_CHECKING:
    import pandas as pd

_FORMULA = ("=", "+", "-", "@")
"""First characters of a formula (OWASP, CSV Injection)."""


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Iterable[Any]]) -> None:
    """Write a table to `path`. An older file is replaced only once the new one is complete; after an error it stays.

    The file is UTF-8, lines end with a newline, and None is an empty field. Texts that a spreadsheet would read as a
    formula get a leading apostrophe, because ids and reasons come from clients.
    """
    with replaced(path) as file:
        writer = csv.writer(codecs.getwriter("utf-8")(file), lineterminator="\n")
        writer.writerow(columns)
        for row in rows:
            writer.writerow(f"'{v}" if isinstance(v, str) and v.startswith(_FORMULA) else v for v in row)


def write_records(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """Write records as rows with `write_csv`. There is a column for each name that occurs in any record."""
    columns = list(dict.fromkeys(name for record in records for name in record))
    write_csv(path, columns, ([record.get(name) for name in columns] for record in records))


@needs("pandas")
def data_frame(found: Path | Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> "pd.DataFrame":
    """A DataFrame from a CSV file, columns or rows."""
    import pandas as pd

    return pd.read_csv(found) if isinstance(found, Path) else pd.DataFrame(found)


def flat(found: Mapping[str, Any]) -> dict[str, Any]:
    """The figures with nested mappings flattened: {"a": {"b": 1}} becomes {"a.b": 1}."""
    return {
        f"{name}.{part}" if part else name: value
        for name, of_it in found.items()
        for part, value in (flat(of_it).items() if isinstance(of_it, Mapping) else [("", of_it)])
    }
