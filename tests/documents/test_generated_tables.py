"""The documents' measured tables are what their result files give, and the drawings what the imports say."""

import pkgutil
import re

import pytest

from rigs.places import ROOT, script

DOCS = ROOT / "docs"


tables = script(DOCS / "generated_tables.py")


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


def test_the_drawings_of_the_architecture_are_what_the_imports_say() -> None:
    drawn = script(DOCS / "draw_architecture.py").drawn()
    kept = {path.name: path.read_text("utf-8") for path in DOCS.glob("architecture*")}
    assert drawn == kept, "python docs/draw_architecture.py draws them afresh"
    names = re.findall(r"`(pausefl\w*(?:\.\w+)+)`", drawn["architecture.md"])
    assert all(map(pkgutil.resolve_name, names)), "an error names what the code lacks"
    assert "pausefl_server.rounds.coordinator.Coordinator._play" in names
