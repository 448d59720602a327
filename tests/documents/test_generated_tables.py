"""The documents' measured tables are what their result files give."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from rigs.places import ROOT

DOCS = ROOT / "docs"


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tables = load(DOCS / "generated_tables.py")


@pytest.mark.parametrize("document", sorted({document for _, document, *_ in tables.TABLES}))
def test_the_tables_of_a_document_are_those_of_the_results(document: str) -> None:
    written = text = (DOCS / document).read_text("utf-8")
    for name, _, results, table in (row for row in tables.TABLES if row[1] == document):
        written = tables.with_table(written, name, table(tables.read_lines(DOCS / "results" / results)))
    assert written == text, "run python docs/generated_tables.py"


def test_the_table_of_chaos_tells_of_runs_in_which_something_did_not_hold() -> None:
    play = {"scenario": "disk", "rounds": 0, "seconds": 60.0, "faults": {"full disk": 2}, "held": {}}
    assert "did not hold: 0." in tables.reliability.chaos_table([play])
    assert "2 faults in 1 runs" in tables.reliability.chaos_table([play])
    assert "did not hold: 1." in tables.reliability.chaos_table([play, play | {"violated": "a round was lost"}])
