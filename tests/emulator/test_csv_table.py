"""Tables written as CSV files."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pausefl.results.csv_table import write_csv, write_records


def test_a_table_is_read_back_as_it_was_but_no_text_is_a_formula_to_a_spreadsheet(tmp_path: Path) -> None:
    """Texts of clients stand in tables, and one of them may be `=HYPERLINK(...)`; numbers stay numbers."""
    formulas = ["=1+1", "+1", "-1", "@a"]
    rows: list[list[Any]] = [['comma, quote"', 0.1], ["ε", None], ["a=1", -0.5], *[[text, ""] for text in formulas]]
    write_csv(tmp_path / "a.csv", ["name", "value"], rows)
    assert b"\r" not in (tmp_path / "a.csv").read_bytes()
    with (tmp_path / "a.csv").open(encoding="utf-8", newline="") as file:
        header, *found = csv.reader(file)
    assert header == ["name", "value"]
    assert found[:3] == [['comma, quote"', "0.1"], ["ε", ""], ["a=1", "-0.5"]]
    assert found[3:] == [[f"'{text}", ""] for text in formulas]


def test_records_have_a_column_for_each_name_that_any_of_them_has(tmp_path: Path) -> None:
    write_records(tmp_path / "a.csv", [{"a": 1}, {"b": 2, "a": 3}])
    assert (tmp_path / "a.csv").read_text("utf-8") == "a,b\n1,\n3,2\n"


def test_a_table_that_breaks_off_leaves_the_one_before(tmp_path: Path) -> None:
    def rows() -> Iterator[list[int]]:
        yield [1]
        raise OSError("the disk is full")

    write_csv(tmp_path / "a.csv", ["x"], [[0]])
    with pytest.raises(OSError, match="full"):
        write_csv(tmp_path / "a.csv", ["x"], rows())
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]
    assert (tmp_path / "a.csv").read_text("utf-8") == "x\n0\n"
