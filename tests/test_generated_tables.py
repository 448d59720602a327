"""The documents' measured tables are what their result files give."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parent.parent / "docs"


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tables = load(DOCS / "generated_tables.py")


@pytest.mark.parametrize("name", [name for name, *_ in tables.TABLES])
def test_a_table_is_that_of_its_results(name: str) -> None:
    ((_, document, results, table),) = [row for row in tables.TABLES if row[0] == name]
    text = (DOCS / document).read_text("utf-8")
    made = table(tables.read_lines(DOCS / "results" / results))
    assert tables.with_table(text, name, made) == text, "run python docs/generated_tables.py"


def test_annealing_rests_on_enough_runs() -> None:
    """Each with a seed and client ids of its own; intervals hold their means."""
    cases = tables.read_lines(DOCS / "results/annealing.jsonl")
    assert len(cases) == 32
    for case in cases:
        assert case["runs"] == len(case["optimal_share_by_run"]) >= 12
        low, high = case["optimal_share_ci95"]
        assert low <= case["optimal_share"] <= high


def test_a_document_without_the_place_is_refused() -> None:
    with pytest.raises(ValueError, match="no table annealing"):
        tables.with_table("nothing here", "annealing", "| |")


def test_the_table_of_chaos_tells_of_runs_in_which_something_did_not_hold() -> None:
    play = {"scenario": "disk", "rounds": 0, "seconds": 60.0, "faults": {"full disk": 2}, "held": {}}
    assert "did not hold: 0." in tables.reliability.chaos_table([play])
    assert "2 faults in 1 runs" in tables.reliability.chaos_table([play])
    assert "did not hold: 1." in tables.reliability.chaos_table([play, play | {"violated": "a round was lost"}])
